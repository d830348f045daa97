"""Grade the three tables, each by the share of stations that are right, and write reward.json."""

import hashlib
import sys

FOLDER = "/tests/expected"
LOG = "2f6d1ffa810595fe5a078e2dc9eacadc63963c2ad051e3e8aca5fc6af8294f41"
COLUMN = {"clean": 1, "daily": 0, "gaps": 0}  # where the station stands


def rows(path):
    """Return the lines of a table, each divided into its fields; none if it cannot be read."""
    try:
        with open(path, encoding="utf-8") as file:
            return [[field.strip() for field in line.split(",")] for line in file.read().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        print(f"{path} cannot be read: {error}")
        return []


def by_station(table, column):
    """Return the rows of each station in their order."""
    found = {}
    for row in table:
        found.setdefault(row[column] if len(row) > column else "", []).append(row)
    return found


def share(name):
    """Return the share of stations whose rows are as expected; 0 for a wrong header, order or station."""
    expected, found = rows(f"{FOLDER}/{name}.csv"), rows(f"/app/{name}.csv")
    if found[:1] != expected[:1]:
        return 0.0
    right, given = (by_station(table[1:], COLUMN[name]) for table in (expected, found))
    if list(given) != sorted(given) or not set(given) <= {"alder", "birch", "cedar", "damson"}:
        print(f"{name}: the stations are out of order, or there are others")
        return 0.0
    good = [station for station in right if given.get(station) == right[station]]
    wrong = sorted((set(right) | set(given)) - set(good))
    print(f"{name}:", "all stations are right" if not wrong else f"wrong for {' '.join(wrong)}")
    return len(good) / len(set(right) | set(given))


rewards = {name: share(name) for name in COLUMN}
try:
    with open("/app/readings.csv", "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
except OSError:
    digest = ""
if digest != LOG:
    print("the log was changed")
    rewards = dict.fromkeys(rewards, 0.0)
rewards["reward"] = round(sum(rewards.values()) / len(rewards), 6)
with open(sys.argv[1], "w", encoding="ascii") as file:
    file.write("{" + ", ".join(f'"{name}": {value}' for name, value in rewards.items()) + "}\n")
