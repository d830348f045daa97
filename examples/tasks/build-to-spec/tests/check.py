"""Try the program on the sheets of every section; write the share of sections that are right."""

import os
import random
import subprocess
import sys
import tempfile
import time
from itertools import pairwise

sys.path.insert(0, "/tests")
import cases

LIMIT_S, LIMIT_OF_ALL_S = 60, 300
BEGUN = time.monotonic()


def sheet(path, arguments):
    """Run the program and return its exit status and both outputs; a status of -1 if it takes too long."""
    left_s = min(LIMIT_S, BEGUN + LIMIT_OF_ALL_S - time.monotonic())
    command = [sys.executable, "-m", "sheet", path, *arguments]
    try:
        done = subprocess.run(command, cwd="/app", capture_output=True, timeout=max(0.1, left_s))
    except (OSError, subprocess.TimeoutExpired) as error:
        return -1, "", str(error)
    return done.returncode, *(stream.decode("utf-8", "replace") for stream in (done.stdout, done.stderr))


def right(folder, text, arguments, expected):
    """Whether the program prints what is expected."""
    path = os.path.join(folder, "a sheet")
    with open(path, "wb") as file:
        file.write(text.encode())
    return sheet(path, arguments) == (0, expected, "")


def refused(path, arguments, line):
    """Whether the program refuses, naming the line if there is one."""
    status, out, said = sheet(path, arguments)
    start = "error: " if line is None else f"error: line {line}: "
    return (status, out, said.count("\n")) == (2, "", 1) and said.startswith(start)


def expression(dice, depth, leaves):
    """Return (text, value, rank of the outermost operator: 0 sum, 1 product, 2 the rest), all at random."""
    shape = dice.randrange(8) if depth else 7
    if shape == 7:
        return (*dice.choice(leaves), 2)
    left, a, left_rank = expression(dice, depth - 1, leaves)
    if shape == 6:
        return f"-{left}" if left_rank == 2 else f"-({left})", -a, 2
    operator = "+-*/+-"[shape]
    right, b, right_rank = expression(dice, depth - 1, leaves)
    rank = 1 if operator in "*/" else 0
    left = left if left_rank >= rank else f"({left})"
    right = right if right_rank > rank else f"({right})"
    if operator == "/":
        right, b = (f"({right}*0+7)", 7) if b == 0 else (right, b)
        value = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    else:
        value = {"+": a + b, "-": a - b, "*": a * b}[operator]
    space = dice.choice(["", " ", "\t "])
    return f"{left}{space}{operator}{space}{right}", value, rank


def table(dice, count, linked):
    """Return a sheet of expressions, linked to each other or not, and what is printed."""
    names = [f"{column}{row}" for column in "ABCDEFGHIJ" for row in range(1, count // 10 + 1)]
    worked, values = dice.sample(names, len(names)), {}
    lines = []
    for name in worked:
        leaves = [(str(number), number) for number in (0, 1, 2, 3, 10, dice.randrange(10**12))]
        leaves += [
            (other, values[other]) for other in dice.sample(list(values), min(9, len(values)))
        ] * linked
        text, values[name], _ = expression(dice, 4 - 2 * linked, leaves)
        if abs(values[name]) > 10**40:
            text, values[name] = "1", 1
        lines.append(f"{name} = {text}\n")
    dice.shuffle(lines)
    return "".join(lines), "".join(f"{name}\t{values[name]}\n" for name in names)


def chain():
    """Return a sheet of 20,000 cells each of which needs the one before, the last line first."""
    names = [f"{a}{row}" for a in "BCDEFGHIJKLMNOPQRSTUV" for row in range(1, 1000)][:20_000]
    lines = [f"{names[0]} = 1\n"] + [f"{name} = {before} + 1\n" for before, name in pairwise(names)]
    return "".join(reversed(lines)), names[-1]


def ranges(dice):
    """Return a sheet of numbers and ranges over them, what to ask for, and what is printed."""
    grid = {
        (column, row): dice.randrange(-999, 999)
        for column in range(8)
        for row in range(1, 31)
        if dice.random() < 0.6
    }
    text = "".join(f"{chr(65 + column)}{row} = {value}\n" for (column, row), value in grid.items())
    text += "".join(f"{chr(65 + column)}40 : {column}\n" for column in range(8))
    asked, printed = [], ""
    for row in range(1, 41):
        (c1, r1), (c2, r2) = ((dice.randrange(8), dice.randrange(1, 45)) for _ in range(2))
        inside = [
            value
            for (c, r), value in grid.items()
            if min(c1, c2) <= c <= max(c1, c2) and min(r1, r2) <= r <= max(r1, r2)
        ]
        name = dice.choice(["SUM", "MIN", "MAX", "COUNT"])
        value = {
            "SUM": sum(inside),
            "MIN": min(inside or [0]),
            "MAX": max(inside or [0]),
            "COUNT": len(inside),
        }[name]
        text += f"K{row} = {name}({chr(65 + c1)}{r1}:{chr(65 + c2)}{r2}) + 1\n"
        asked.append(f"K{row}")
        printed += f"K{row}\t{value + 1}\n"
    return text, asked, printed


def sections(folder):
    """Yield (section, how many sheets are wrong)."""
    dice = random.SystemRandom()
    by_hand = [cases.OUTPUT, cases.ARITHMETIC, cases.REFERENCES, cases.RANGES, cases.VALUE_ERRORS]
    more = {2: [], 3: [], 4: []}
    for _ in range(3):
        text, printed = table(dice, 100, False)
        more[2].append((text, [], printed))
        text, printed = table(dice, 400, True)
        more[3].append((text, [], printed))
        more[4].append(ranges(dice))
    text, last = chain()
    more[3].append((text, [last], f"{last}\t20000\n"))
    for section, tried in enumerate(by_hand, 1):
        yield section, sum(not right(folder, *case) for case in tried + more.get(section, []))
    path, wrong = os.path.join(folder, "wrong.sheet"), 0
    for text, arguments, line in cases.SHEET_ERRORS:
        with open(path, "wb") as file:
            file.write(text.encode())
        wrong += not refused(path, arguments, line)
    with open(path, "wb") as file:
        file.write(b"A1 : \xff\n")
    wrong += not refused(path, [], None)
    wrong += not refused("/nowhere/at all", [], None)
    wrong += not refused("/usr", [], None)
    yield 6, wrong


def main(path):
    """Write the reward."""
    share = 0.0
    with tempfile.TemporaryDirectory() as folder:
        found = dict(sections(folder))
    for section, wrong in found.items():
        print(f"section {section}: {f'{wrong} wrong' if wrong else 'right'}")
    if not found[1]:
        share = sum(not wrong for wrong in found.values()) / len(found)
    with open(path, "w", encoding="ascii") as file:
        print(share, file=file)


main(sys.argv[1])
