"""Ask for all readings, page by page, and write what is wanted of them."""

import socket


def ask(request):
    """Return the lines of an answer."""
    with socket.create_connection(("127.0.0.1", 7070), timeout=10) as connection:
        connection.sendall(request.encode() + b"\n")
        with connection.makefile("r", encoding="utf-8") as file:
            return file.read().splitlines()


def readings(name):
    """Return the readings of a station as (hour, centimetres)."""
    found, start = [], "0"
    while start:
        lines, at, start = ask(f"READ {name} {start}"), start, ""
        if lines and lines[-1].startswith("MORE "):
            start = lines.pop().split()[1]
            assert start != at
        found += [tuple(map(int, line.split())) for line in lines]
    return found


with open("/app/tides.txt", "w", encoding="utf-8") as file:
    for name in sorted(ask("STATIONS")):
        levels = readings(name)
        highest = max(level for _, level in levels)
        hour = next(hour for hour, level in levels if level == highest)
        around = zip(levels, levels[1:], levels[2:])
        waters = sum(before < level >= after for (_, before), (_, level), (_, after) in around)
        print(name, highest, hour, waters, file=file)
