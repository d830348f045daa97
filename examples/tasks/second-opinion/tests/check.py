"""Judge the plan by the verifier's own copy of the conditions."""

import collections
import sys

CROPS = {"beans", "chard", "leeks", "squash"}
BEDS = sorted(f"{side}{number}" for side in "NESW" for number in range(1, 10))


def problems():
    """Yield what is wrong."""
    with open("/app/plan.txt", encoding="ascii") as file:
        rows = [line.rstrip("\n").split(" ") for line in file]
    if [row[0] for row in rows] != BEDS or any(len(row) != 2 for row in rows):
        yield "the plan has not one line for each bed, sorted"
        return
    plan = dict(rows)
    counts = collections.Counter(plan.values())
    if counts != dict.fromkeys(CROPS, 9):
        yield f"the crops are not spread evenly: {dict(counts)}"
    with open("/tests/beds.txt", encoding="ascii") as file:
        for line in file:
            first, *rest = line.split()
            if rest[0] == "=" and plan[first] != rest[1]:
                yield f"{first} does not hold {rest[1]}"
            if rest[0] != "=" and plan[first] == plan[rest[0]]:
                yield f"{first} and {rest[0]} hold the same"


try:
    found = list(problems())
except (OSError, UnicodeDecodeError) as error:
    found = [str(error)]
print("\n".join(found) or "a good plan")
sys.exit(bool(found))
