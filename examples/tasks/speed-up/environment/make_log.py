"""make_log.py RIDERS SEED: print a log to practise on."""

import random
import sys

riders, dice = int(sys.argv[1]), random.Random(sys.argv[2])
numbers = dice.sample(range(1, 10 * riders), riders)
lines = []
for number in numbers:
    start = dice.randrange(20_000)
    lines.append((start, "start", number))
    if dice.random() < 0.97:
        lines.append((start + dice.randrange(3000, 12_000), "finish", number))
    if dice.random() < 0.03:  # a check-point that reads a rider twice
        lines.append((start + dice.randrange(1, 50), "start", number))
dice.shuffle(lines)
for second, kind, number in lines:
    print(second, kind, number)
