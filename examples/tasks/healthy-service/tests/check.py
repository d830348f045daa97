"""Compare the file with what the service knew; the number that its readings follow from is root's alone."""

import hashlib
import sys

STATIONS = {"Ebbing": 410, "Northhaven": 333, "Old Quay": 507, "Sandend": 24, "Withy": 480}


def line_of(secret, name):
    """Return the line of a station."""
    levels, waters = [], 0
    for hour in range(STATIONS[name]):
        first, second = hashlib.sha256(f"{secret}/{name}/{hour}".encode()).digest()[:2]
        levels.append(200 + abs((hour + first % 2) % 12 - 6) * 30 + second % 40)
    for hour in range(1, len(levels) - 1):
        waters += levels[hour - 1] < levels[hour] and levels[hour] >= levels[hour + 1]
    return f"{name} {max(levels)} {levels.index(max(levels))} {waters}\n"


try:
    with open("/srv/tide/seed", encoding="ascii") as file:
        secret = file.read()
    with open("/app/tides.txt", encoding="utf-8") as file:
        found = file.read()
except (OSError, UnicodeDecodeError) as error:
    sys.exit(str(error))
right = found == "".join(line_of(secret, name) for name in sorted(STATIONS))
print("the tides are right" if right else "the tides are wrong")
sys.exit(not right)
