"""Try the program on a log made here, and compare with the repeats that were put into it."""

import os
import random
import subprocess
import sys
import tempfile

PROGRAM = "/app/repeats"
LINES, BLOCK = 2_500_000, 20_000
TIME_S = 120
LIMITED = 'ulimit -v 65536 && exec "$0" "$1"'
REMARKS = [
    "handed over to the person at the gate",
    "put behind the third cloche on the left",
    "",
    "rain;  wet ...",
]


def numbers(dice, count):
    """Return different numbers: they end in ``e``, as those made from a running count never do."""
    found = set()
    while len(found) < count:
        found.add(f"{dice.getrandbits(76):019x}e")
    return sorted(found)


def repeats(dice):
    """Return {number: how often}, from 2 to 12 times, some of them alike in their first digits."""
    chosen = numbers(dice, 500)
    for number in chosen[:40]:
        chosen.append(f"{number[:18]}{(int(number[18], 16) + 1) % 16:x}e")
    return {number: dice.choice([2, 2, 2, 3, 3, 5, 12]) for number in chosen}


def write_log(path, dice, repeated):
    """Write the log, block by block; a line's own number follows from where it stands."""
    often = [number for number, times in repeated.items() for _ in range(times)]
    dice.shuffle(often)
    places = dict(zip(dice.sample(range(LINES), len(often)), often))
    stir = dice.getrandbits(76) | 1
    with open(path, "w", encoding="ascii") as file:
        for start in range(0, LINES, BLOCK):
            lines = []
            for line in range(start, start + BLOCK):
                number = places.get(line) or f"{(line * stir) & (2**76 - 1):019x}{line % 13:x}"
                remarks = (
                    f"{often[line % 11]} {line % 3}" if line % 37 == 0 else f"{REMARKS[line % 4]} {line}"
                )
                lines.append(f"2026-03-02T{line % 86400:05}.{line % 991:09} {number} {remarks}\n")
            file.write("".join(lines))


def problems(folder):
    """Yield what is wrong."""
    if not os.access(PROGRAM, os.X_OK):
        yield f"{PROGRAM} is not there, or is not executable"
        return
    dice = random.SystemRandom()
    repeated = repeats(dice)
    path = os.path.join(folder, "log of today")
    write_log(path, random.Random(dice.getrandbits(64)), repeated)
    before, others = os.stat(path), sorted(os.listdir("/tmp"))
    try:
        done = subprocess.run(
            ["sh", "-c", LIMITED, PROGRAM, path], cwd="/", capture_output=True, text=True, timeout=TIME_S
        )
    except (subprocess.TimeoutExpired, UnicodeDecodeError) as error:
        yield f"no answer: {error}"
        return
    if done.returncode:
        yield f"status {done.returncode}: {done.stderr[-500:]}"
    expected = sorted(repeated.items(), key=lambda item: (-item[1], item[0]))
    if done.stdout != "".join(f"{times} {number}\n" for number, times in expected):
        yield f"the repeats are wrong: {len(done.stdout.splitlines())} lines, {len(expected)} expected"
    after = os.stat(path)
    if (before.st_ino, before.st_size, before.st_mtime_ns) != (
        after.st_ino,
        after.st_size,
        after.st_mtime_ns,
    ):
        yield "the log was changed"
    if sorted(os.listdir("/tmp")) != others:
        yield "something was left in /tmp"


with tempfile.TemporaryDirectory() as scratch:
    found = list(problems(scratch))
print("\n".join(found) or "every repeat was found")
sys.exit(bool(found))
