"""The command line."""

import sys

from sheet.evaluate import Sheet
from sheet.parse import SheetError, key_of, parse


def name_of(key):
    """Return a cell's name."""
    column, row = key
    first, second = divmod(column - 1, 26)
    return f"{chr(ord('A') + first - 1) if first else ''}{chr(ord('A') + second)}{row}"


def main(arguments):
    """Print the cells and return the exit status."""
    sys.set_int_max_str_digits(0)
    sys.setrecursionlimit(100_000)
    sys.stdout.reconfigure(encoding="utf-8", newline="\n")
    try:
        if not arguments:
            raise SheetError("a FILE is needed")
        wanted = [key_of(name) for name in arguments[1:]]
        with open(arguments[0], encoding="utf-8", newline="\n") as file:
            sheet = Sheet(parse(file.read()))
    except (SheetError, OSError, UnicodeDecodeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for key in wanted if arguments[1:] else sorted(sheet.cells):
        sys.stdout.write(f"{name_of(key)}\t{sheet.values.get(key, '')}\n")
    return 0


sys.exit(main(sys.argv[1:]))
