"""standings.py LOG: print the standings of a relay.

The log has lines ``SECOND KIND NUMBER`` in any order, KIND is ``start`` or ``finish``. Of several lines of
the same kind and rider the one with the earliest second counts. Only riders with both are in the standings,
sorted by the time they took, then by number. A line of the standings has the place (riders who took equally
long share one), the number, the time, how many riders in the standings were overtaken (started earlier,
finished later), and how many overtook this one.
"""

import sys


def read(path):
    """Return the events as (second, kind, number), without repeats."""
    events = []
    with open(path, encoding="ascii") as file:
        for line in file:
            second, kind, number = line.split()
            event = (int(second), kind, int(number))
            if event not in events:
                events.append(event)
    return events


def first(events, kind, number):
    """Return the earliest second of a rider's events of one kind, or None."""
    seconds = [event[0] for event in events if event[2] == number and event[1] == kind]
    return min(seconds) if seconds else None


def riders_of(events):
    """Return (number, start, finish) of the riders with both."""
    numbers = []
    for event in events:
        if event[2] not in numbers:
            numbers.append(event[2])
    riders = []
    for number in numbers:
        start, finish = first(events, "start", number), first(events, "finish", number)
        if start is not None and finish is not None:
            riders.append((number, start, finish))
    return riders


def main(path):
    """Print the standings."""
    riders = riders_of(read(path))
    for number, start, finish in sorted(riders, key=lambda rider: (rider[2] - rider[1], rider[0])):
        place = 1
        overtaken = 0
        overtook = 0
        for _, other_start, other_finish in riders:
            if other_finish - other_start < finish - start:
                place += 1
            if other_start < start and other_finish > finish:
                overtaken += 1
            if other_start > start and other_finish < finish:
                overtook += 1
        print(place, number, finish - start, overtaken, overtook)


main(sys.argv[1])
