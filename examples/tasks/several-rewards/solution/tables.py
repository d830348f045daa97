"""Write the three tables. Temperatures are whole tenths of a degree throughout."""

import re
from datetime import datetime
from itertools import pairwise

TIME = "%Y-%m-%dT%H:%M"


def tenths(text):
    """Return a temperature, or None if it is not a good one."""
    if not re.fullmatch(r"[+-]?[0-9]+(\.[0-9])?", text, re.ASCII):
        return None
    whole, _, digit = text.lstrip("+-").partition(".")
    value = int(whole) * 10 + int(digit or 0)
    return (-value if text[0] == "-" else value) if value <= 600 else None


def shown(value):
    """Return a temperature as text."""
    return f"{'-' if value < 0 else ''}{abs(value) // 10}.{abs(value) % 10}"


def mean(values):
    """Return the mean, halves away from zero."""
    total = sum(values)
    rounded = (2 * abs(total) + len(values)) // (2 * len(values))
    return -rounded if total < 0 else rounded


def good_readings(lines):
    """Return {(station, time): temperature} of the good lines, later ones over earlier ones."""
    good = {}
    for line in lines:
        fields = [field.strip() for field in line.split(",")]
        if len(fields) != 3 or not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d", fields[0], re.ASCII):
            continue
        try:
            datetime.strptime(fields[0], TIME)
        except ValueError:
            continue
        value = tenths(fields[2])
        if fields[1] and value is not None:
            good[fields[1], fields[0]] = value
    return good


def write(name, header, rows):
    """Write a table."""
    with open(f"/app/{name}.csv", "w", encoding="utf-8") as file:
        file.writelines(",".join(map(str, row)) + "\n" for row in [header, *rows])


with open("/app/readings.csv", encoding="utf-8") as file:
    good = good_readings(file.read().splitlines()[1:])
keys = sorted(good)
write(
    "clean",
    ("time", "station", "celsius"),
    [(time, station, shown(good[station, time])) for station, time in keys],
)

days = {}
for station, time in keys:
    days.setdefault((station, time[:10]), []).append(good[station, time])
write(
    "daily",
    ("station", "day", "readings", "lowest", "mean", "highest"),
    [(*day, len(of), shown(min(of)), shown(mean(of)), shown(max(of))) for day, of in sorted(days.items())],
)

gaps = []
for (station, start), (other, end) in pairwise(keys):
    minutes = (datetime.strptime(end, TIME) - datetime.strptime(start, TIME)).total_seconds() / 60
    if station == other and minutes > 60:
        gaps.append((station, start, end, int(minutes)))
write("gaps", ("station", "from", "to", "minutes"), gaps)
