"""Check the notes: who owns them, their modes and contents, and the two lists."""

import hashlib
import os
import stat
import sys

ROOT = "/app/notes"
SCRIBE, READERS = 1500, 1600
INDEX = [
    (8, ".hidden/key.txt"),
    (3, "diary/2024/dream.txt"),
    (4, "diary/2024/first.txt"),
    (7, "diary/2024/second.txt"),
    (6, "diary/2025/january.txt"),
    (3, "diary/lent.txt"),
    (6, "plans/a list.txt"),
    (0, "plans/empty.txt"),
    (7, "plans/far/well.txt"),
    (7, "plans/notice.txt"),
    (8, "shopping.txt"),
]
SEALED = ["plans/deed.txt", "vault/"]
OF_THE_HOUSE = {
    "plans/deed.txt": (0, 0, 0o600),
    "plans/notice.txt": (0, 0, 0o644),
    "vault": (0, 0, 0o700),
    "vault/inventory.txt": (0, 0, 0o644),
    "diary/lent.txt": (0, READERS, 0o040),
}
FOLDERS = ["", "diary", "diary/2024", "diary/2025", "plans", "plans/far", ".hidden", "vault"]
CONTENT = "3d53e3a2e1a26137296e91acf63449107eedeca691b6ce824abb5ea7924db039"


def present():
    """Return every path below the notes, folders too."""
    paths = [""]
    for folder, folders, files in os.walk(ROOT):
        paths += [os.path.relpath(os.path.join(folder, name), ROOT) for name in folders + files]
    return sorted(paths)


def read(path):
    """Return the bytes of a file, never of what a link points to."""
    descriptor = os.open(os.path.join(ROOT, path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


def problems():
    """Yield what is wrong."""
    notes = sorted([path for _, path in INDEX] + ["plans/deed.txt", "vault/inventory.txt"])
    expected = sorted([*FOLDERS, *notes, "INDEX", "SEALED"])
    if present() != expected:
        yield "the tree is not as expected: " + " ".join(sorted(set(present()) ^ set(expected)))
        return
    for path in expected:
        found = os.lstat(os.path.join(ROOT, path))
        kind = stat.S_ISDIR if path in FOLDERS else stat.S_ISREG
        if not kind(found.st_mode):
            yield f"{path or '.'} is of another kind"
            return
        want = OF_THE_HOUSE.get(path, (SCRIBE, READERS, 0o2750 if path in FOLDERS else 0o640))
        if (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) != want:
            yield f"{path or '.'}: owner, group or mode is wrong"
    digest = hashlib.sha256()
    for path in notes:
        digest.update(path.encode() + b"\0" + read(path) + b"\0")
    if digest.hexdigest() != CONTENT:
        yield "a note was changed"
    if read("INDEX") != "".join(f"{words}\t{path}\n" for words, path in INDEX).encode():
        yield "INDEX is wrong"
    if read("SEALED") != "".join(f"{path}\n" for path in SEALED).encode():
        yield "SEALED is wrong"


found = list(problems())
print("\n".join(found) or "the notes are in order")
sys.exit(bool(found))
