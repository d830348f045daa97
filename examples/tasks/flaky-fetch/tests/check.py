"""Compare the parcels with what the depot holds, and read the depot's log."""

import hashlib
import os
import stat
import sys

PARCELS = "/app/parcels"
SEED = "string and brown paper"
NAMES = ["anvil", "bellows", "candle", "dibber", "easel", "funnel", "gimlet", "hammock"]
GONE = ["candle", "gimlet"]
HURRIED_MOST = 2


def parcel(name):
    """Return the bytes of a parcel."""
    text = ""
    for line in range(150 + 40 * (NAMES.index(name) + 1)):
        text += f"{name} {line:04} {hashlib.sha256(f'{SEED}/{name}/{line}'.encode()).hexdigest()}\n"
    return text.encode()


def read(path):
    """Return the bytes of a regular file, never of what a link points to."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is not a file")
        return file.read()


def problems():
    """Yield what is wrong."""
    present = sorted(os.listdir(PARCELS))
    whole = [name for name in NAMES if name not in GONE]
    for name in sorted(set(present) ^ set(whole)):
        yield f"{name} is missing" if name in whole else f"{name} does not belong here"
    for name in sorted(set(present) & set(whole)):
        if read(os.path.join(PARCELS, name)) != parcel(name):
            yield f"{name} is not as it was"
    if read("/app/gone.txt") != "".join(f"{name}\n" for name in GONE).encode():
        yield "gone.txt is wrong"
    log = [line.split(" ", 1) for line in read("/srv/depot/log").decode().splitlines()]
    notes = [note for note, _ in log]
    for name in whole:
        if ["whole", name] not in log:
            yield f"the depot never gave out {name}"
    if notes.count("hurried") > HURRIED_MOST:
        yield f"the depot was hurried {notes.count('hurried')} times"
    for name in GONE:
        if log.count(["gone", name]) > 1:
            yield f"the depot was asked again for {name}, which is gone"


try:
    found = list(problems())
except OSError as error:
    found = [str(error)]
print("\n".join(found) or "every parcel is there")
sys.exit(bool(found))
