"""Time the program against the one it was made from, on logs made here, and compare what they print."""

import os
import random
import subprocess
import sys
import tempfile
import time

REFERENCE, PROGRAM = "/tests/reference.py", "/app/standings.py"
RIDERS, RUNS = 2500, 3
TIMES_AS_FAST = 6.0  # in time of CPU, which others on the machine hardly change
TIMES_AS_FAST_CLOCK = 2.0  # so that nobody leaves the work to a process that is not waited for
LEAST_S = 0.01  # the system counts in steps of this size


def log_text(dice, riders, seconds):
    """Return a log; the fewer seconds the day has, the more riders start or finish in the same one."""
    lines = []
    for number in dice.sample(range(1, 20 * riders + 2), riders):
        start = dice.randrange(seconds)
        lines.append(f"{start} start {number}")
        if dice.random() < 0.96:
            lines.append(f"{start + dice.randrange(-2, seconds)} finish {number}")
        again = dice.choices(["start", "finish", "start"], k=dice.choice([0] * 30 + [1, 2]))
        lines += [f"{dice.randrange(seconds)} {kind} {number}" for kind in again]
    lines += dice.sample(lines, len(lines) // 40)
    dice.shuffle(lines)
    return "".join(line + "\n" for line in lines)


def timed(program, path, limit_s):
    """Return what a program takes, in seconds of CPU and of the clock, and prints (None if it fails)."""
    before, begun = os.times(), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-I", program, path], cwd="/", stdout=subprocess.PIPE, timeout=limit_s
    )
    took, after = time.perf_counter() - begun, os.times()
    cpu = sum(after[2:4]) - sum(before[2:4])  # of children that are over, and of theirs
    return (max(cpu, LEAST_S), took), done.stdout if done.returncode == 0 else None


def wrong_outputs(folder, dice):
    """Yield what is wrong on small logs, full of riders that are level."""
    path = os.path.join(folder, "small")
    for riders, seconds in [(0, 1), (1, 5), (2, 1), (40, 3), (60, 8), (90, 40), (120, 5000)] * 2:
        with open(path, "w", encoding="ascii") as file:
            file.write(log_text(dice, riders, seconds))
        expected, found = timed(REFERENCE, path, 60)[1], timed(PROGRAM, path, 60)[1]
        if expected is None or found != expected:
            yield f"another output for {riders} riders in {seconds} seconds"


def problems(folder):
    """Yield what is wrong; the best of several runs, each with another log, decides about the speed."""
    dice = random.SystemRandom()
    yield from wrong_outputs(folder, dice)
    slow, fast = [], []
    for run in range(RUNS):
        path = os.path.join(folder, f"log-{dice.getrandbits(32)}")
        with open(path, "w", encoding="ascii") as file:
            file.write(log_text(dice, RIDERS, 30_000))
        took, expected = timed(REFERENCE, path, 120)
        slow.append(took)
        took, found = timed(PROGRAM, path, 120)
        fast.append(took)
        if expected is None or found != expected:
            yield f"another output for the log of run {run + 1}"
    for index, (name, least) in enumerate([("CPU", TIMES_AS_FAST), ("clock", TIMES_AS_FAST_CLOCK)]):
        old, new = (min(pair[index] for pair in pairs) for pairs in (slow, fast))
        print(f"{name}: {old:.3f} s before, {new:.3f} s now: {old / new:.1f} times as fast")
        if old / new < least:
            yield f"that is less than {least:g} times"


with tempfile.TemporaryDirectory() as scratch:
    try:
        found = list(problems(scratch))
    except (OSError, subprocess.TimeoutExpired) as error:
        found = [str(error)]
print("\n".join(found) or "the same output, and fast enough")
sys.exit(bool(found))
