"""Build the project anew in a folder of its own, and try what was built and what was installed."""

import os
import random
import subprocess
import sys
import tempfile

PROJECT = "/app/tally"
INSTALLED = "/usr/local/bin/tally"
PARTS = ["MANUAL", "Makefile", "src/main.c", "src/table.c", "src/lines.c", "src/tally.h"]
FLAGS = "CFLAGS = -Wall -Werror -O2"


def run(*argv, cwd="/", data=b""):
    """Run a program and return its exit status, standard output and standard error."""
    env = {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}
    done = subprocess.run(argv, cwd=cwd, input=data, capture_output=True, timeout=30, env=env)
    return done.returncode, done.stdout, done.stderr


def expected(data, most=None):
    """Return what the manual promises for an input."""
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    counts = {}
    for line in lines:
        counts[line] = counts.get(line, 0) + 1
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return b"".join(b"%d\t%s\n" % (count, line) for line, count in ordered[:most])


def inputs():
    """Yield inputs of every kind."""
    dice = random.Random()
    yield b""
    yield b"\n"
    yield b"\n\n"
    yield b"one"
    yield b"b\na\nb\na\nb"
    yield b"ab\na\nab \n\xff\n\x80\nab\nZ\n"
    yield b"x" * 255 + b"\n" + b"x" * 256 + b"\n" + b"x" * 254 + b"\n" + b"x" * 255
    yield b"y" * 100_000 + b"\n" + b"y" * 100_001 + b"\n" + b"y" * 100_000
    words = [b"w%d" % dice.randrange(10**9) for _ in range(9000)]
    yield b"".join(dice.choice(words) + b"\n" for _ in range(40_000))
    yield b"".join(
        bytes(dice.randrange(1, 256) for _ in range(dice.randrange(4))) + b"\n" for _ in range(5000)
    )


def wrong_results(program, scratch):
    """Yield what a program does wrong."""
    path = os.path.join(scratch, "input")
    for number, data in enumerate(inputs(), 1):
        with open(path, "wb") as file:
            file.write(data)
        if run(program, path) != (0, expected(data), b""):
            yield f"input {number} from a file"
        if run(program, "-n", "3", data=data) != (0, expected(data, 3), b""):
            yield f"input {number} from standard input, three lines"
    huge = "9" * 40
    if run(program, "-n", huge, data=b"a\nb\n") != (0, b"1\ta\n1\tb\n", b""):
        yield "a large count"
    for arguments in (
        ["-n"], ["-n", "0"], ["-n", "-1"], ["-n", "2x"], ["-n", "x"], ["-n", ""], ["-n", " 2"], ["-n", "+2"],
        [path, path], ["-n", "1", path, path], ["/nowhere/at all"], ["/usr"],
    ):  # fmt: skip
        status, out, said = run(program, *arguments, data=b"a\n")
        if (status, out) != (2, b"") or not said.startswith(b"tally: ") or said.count(b"\n") != 1:
            yield f"arguments {arguments}"


def copied(folder):
    """Copy the parts of the project, none of what was made from them; return what is missing or strange."""
    names = {name for name in os.listdir(os.path.join(PROJECT, "src")) if name.endswith((".c", ".h"))}
    parts = sorted({*PARTS, *(f"src/{name}" for name in names)})
    os.mkdir(os.path.join(folder, "src"))
    for part in parts:
        with (
            open(os.path.join(PROJECT, part), "rb") as source,
            open(os.path.join(folder, part), "wb") as copy,
        ):
            copy.write(source.read())
    with open(os.path.join(folder, "Makefile"), encoding="utf-8") as file:
        return [] if FLAGS in file.read().splitlines() else ["the flags were changed"]


def problems(scratch):
    """Yield what is wrong."""
    folder, prefix = os.path.join(scratch, "tally"), os.path.join(scratch, "prefix")
    os.mkdir(folder)
    yield from copied(folder)
    before = sorted(os.listdir(folder) + os.listdir(os.path.join(folder, "src")))
    status, said, complaint = run("make", "install", f"PREFIX={prefix}", cwd=folder)
    if status or b"warning" in complaint:
        yield "it does not build: " + (said + complaint).decode("utf-8", "replace")[-1000:]
        return
    if run("make", "clean", cwd=folder)[0]:
        yield "make clean fails"
    after = sorted(os.listdir(folder) + os.listdir(os.path.join(folder, "src")))
    if before != after:
        yield "make clean leaves " + " ".join(sorted(set(after) ^ set(before)))
    for program in (os.path.join(prefix, "bin", "tally"), INSTALLED):
        with open(program, "rb") as file:
            if file.read(4) != b"\x7fELF":
                yield f"{program} is not a compiled program"
                return
        for wrong in wrong_results(program, scratch):
            yield f"{program}: {wrong}"


with tempfile.TemporaryDirectory() as scratch:
    try:
        found = list(problems(scratch))
    except (OSError, subprocess.TimeoutExpired) as error:
        found = [str(error)]
print("\n".join(found) or "it builds, installs and counts")
sys.exit(bool(found))
