"""Check /app/manifest.tsv byte for byte, and that the files are still those that it describes."""

import hashlib
import os
import stat
import sys

ROOT = b"/app/inbox"


def contents():
    """Yield (path as hexadecimal, size, digest) of every regular file, in no order."""
    for folder, _, names in os.walk(ROOT):
        for name in names:
            path = os.path.join(folder, name)
            if stat.S_ISREG(os.lstat(path).st_mode):
                with open(path, "rb") as file:
                    data = file.read()
                yield os.path.relpath(path, ROOT).hex(), str(len(data)), hashlib.sha256(data).hexdigest()


with open("/tests/manifest.tsv", "rb") as file:
    expected = file.read()
rows = [line.split("\t") for line in expected.decode("ascii").splitlines()]
if sorted(contents()) != [(row[0], row[1], row[3]) for row in rows]:
    sys.exit("the inbox was changed")
try:
    with open("/app/manifest.tsv", "rb") as file:
        found = file.read()
except OSError as error:
    sys.exit(f"/app/manifest.tsv cannot be read: {error}")
if found != expected:
    pairs = zip(found.split(b"\n"), expected.split(b"\n"))
    line = next((number for number, pair in enumerate(pairs, 1) if pair[0] != pair[1]), 0)
    sys.exit(f"the manifest differs, first in line {line}" if line else "the manifest has another length")
print("the manifest is right")
