"""standings.py LOG: print the standings of a relay, in a time that grows little faster than the log.

The log has lines ``SECOND KIND NUMBER`` in any order, KIND is ``start`` or ``finish``. Of several lines of
the same kind and rider the one with the earliest second counts. Only riders with both are in the standings,
sorted by the time they took, then by number. A line of the standings has the place (riders who took equally
long share one), the number, the time, how many riders in the standings were overtaken (started earlier,
finished later), and how many overtook this one.
"""

import sys
from bisect import bisect_left, bisect_right, insort


def read(path):
    """Return {number: earliest second} of the starts and of the finishes."""
    earliest = {"start": {}, "finish": {}}
    with open(path, encoding="ascii") as file:
        for line in file:
            text, kind, number = line.split()
            second, number = int(text), int(number)
            seconds = earliest.setdefault(kind, {})
            if seconds.get(number, second) >= second:
                seconds[number] = second
    return earliest["start"], earliest["finish"]


def inside(riders, step):
    """Count for each rider the others before it in order of starts whose finish lies on the far side.

    A step of -1 takes the starts from the last to the first. Riders with the same start are counted
    first and seen afterwards, since neither has overtaken the other.
    """
    seen, counts, at = [], {}, 0
    ordered = sorted(riders, key=lambda rider: step * rider[1])
    while at < len(ordered):
        end = at
        while end < len(ordered) and ordered[end][1] == ordered[at][1]:
            number, _, finish = ordered[end]
            later = len(seen) - bisect_right(seen, finish)
            counts[number] = later if step > 0 else bisect_left(seen, finish)
            end += 1
        for _, _, finish in ordered[at:end]:
            insort(seen, finish)
        at = end
    return counts


def main(path):
    """Print the standings."""
    starts, finishes = read(path)
    riders = [(number, start, finishes[number]) for number, start in starts.items() if number in finishes]
    overtaken, overtook = inside(riders, 1), inside(riders, -1)
    lines, place, last = [], 0, None
    standings = sorted((finish - start, number) for number, start, finish in riders)
    for index, (took, number) in enumerate(standings, 1):
        if took != last:
            place, last = index, took
        lines.append(f"{place} {number} {took} {overtaken[number]} {overtook[number]}\n")
    sys.stdout.write("".join(lines))


main(sys.argv[1])
