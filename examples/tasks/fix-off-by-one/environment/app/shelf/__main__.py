"""The command line."""

import argparse
import sys

from shelf.catalogue import read_titles
from shelf.pages import page_bounds, page_count, page_titles


def main():
    """Print one page and return the exit status."""
    parser = argparse.ArgumentParser(prog="shelf")
    parser.add_argument("file")
    parser.add_argument("--size", type=int, default=10)
    parser.add_argument("--page", type=int, default=1)
    options = parser.parse_args()
    if options.size < 1 or options.page < 1:
        print("error: size and page start at 1", file=sys.stderr)
        return 2
    titles = read_titles(options.file)
    pages = page_count(len(titles), options.size)
    if options.page > pages:
        print(f"error: there is no page {options.page}, only {pages}", file=sys.stderr)
        return 2
    for number, title in page_titles(titles, options.page, options.size):
        print(f"{number:4}. {title}")
    if not titles:
        print("page 1 of 1, no books")
        return 0
    first, last = page_bounds(options.page, len(titles), options.size)
    print(f"page {options.page} of {pages}, books {first}-{last} of {len(titles)}")
    return 0


sys.exit(main())
