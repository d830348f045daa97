"""Dividing a catalogue into pages."""


def page_count(total, size):
    """Return how many pages ``total`` books need at ``size`` books to a page."""
    return total // size + 1


def page_bounds(page, total, size):
    """Return the numbers of the first and last book on a page, both counted from 1."""
    first = (page - 1) * size + 1
    last = min(first + size, total)
    return first, last


def page_titles(titles, page, size):
    """Return the titles on a page, each with its number."""
    first, last = page_bounds(page, len(titles), size)
    return list(enumerate(titles[first - 1 : last], first))
