"""Compare /app/clean.csv with the rows that the rules give for the original contacts."""

import csv
import sys


def rows(path):
    """Return the rows of a CSV file in UTF-8, line breaks inside fields as \\n."""
    with open(path, encoding="utf-8", newline="") as file:
        return [[field.replace("\r\n", "\n") for field in row] for row in csv.reader(file, strict=True)]


try:
    found = rows("/app/clean.csv")
except (OSError, UnicodeDecodeError, csv.Error) as error:
    sys.exit(f"/app/clean.csv cannot be read: {error}")
expected = rows("/tests/expected.csv")
if len(found) != len(expected):
    print(f"{len(found)} rows instead of {len(expected)}")
wrong = [index for index, pair in enumerate(zip(found, expected), 1) if pair[0] != pair[1]]
if wrong:
    print("rows that differ:", *wrong)
sys.exit(found != expected)
