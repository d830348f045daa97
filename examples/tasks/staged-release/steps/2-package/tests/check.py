"""Read the archive, header by header, and write the reward."""

import hashlib
import os
import sys
import zlib

NAME, EPOCH = "glass-cloche-1.10.0", 1772409600
FILES = {"CHANGES": 0o644, "README": 0o644, "VERSION": 0o644, "src/cloche.conf": 0o644, "src/open-lid": 0o755}
ARCHIVE = f"/app/dist/{NAME}.tar.gz"
PROJECT = "/app/project"
BLOCK = 512


def text(field):
    """Return a field up to its first NUL."""
    return field.split(b"\0")[0].decode("utf-8")


def number(field):
    """Return an octal field."""
    return int(field.strip(b" \0") or b"0", 8)


def members(data):
    """Return (path, kind, mode, owner, group, names, time, content) of each member of a tar."""
    found, at = [], 0
    while at + BLOCK <= len(data) and any(data[at : at + BLOCK]):
        head = data[at : at + BLOCK]
        size = number(head[124:136])
        prefix = text(head[345:500]) if head[257:263] == b"ustar\0" else ""
        path = (prefix + "/" if prefix else "") + text(head[:100])
        kind = head[156:157].replace(b"\0", b"0").decode("ascii")
        content = data[at + BLOCK : at + BLOCK + size]
        numbers = [number(head[start:end]) for start, end in ((100, 108), (108, 116), (116, 124))]
        names = text(head[265:297]), text(head[297:329])
        found.append((path.rstrip("/"), kind, *numbers, names, number(head[136:148]), content))
        at += BLOCK + (size + BLOCK - 1) // BLOCK * BLOCK
    return found


def wrong_content(found):
    """Yield what is wrong with paths, kinds and contents."""
    expected = sorted([NAME, f"{NAME}/src", *(f"{NAME}/{path}" for path in FILES)])
    if sorted(member[0] for member in found) != expected:
        yield "members: " + " ".join(member[0] for member in found)
        return
    for path, kind, *_, content in found:
        inner = path[len(NAME) + 1 :]
        if kind != ("0" if inner in FILES else "5"):
            yield f"{path} is of another kind"
        elif inner in FILES:
            with open(os.path.join(PROJECT, inner), "rb") as file:
                if file.read() != content:
                    yield f"{path} has another content"
    with open("/app/dist/SHA256SUMS", encoding="utf-8") as sums, open(ARCHIVE, "rb") as archive:
        if sums.read().split() != [hashlib.sha256(archive.read()).hexdigest(), f"{NAME}.tar.gz"]:
            yield "SHA256SUMS is wrong"
    present = {
        os.path.relpath(os.path.join(folder, name), PROJECT)
        for folder, _, names in os.walk(PROJECT)
        for name in names
    }
    if present != {*FILES, "release.conf", "src/notes.tmp", "src/cloche.conf~", "build/lid.o"}:
        yield "the project has other files: " + " ".join(sorted(present))


def differs(found, head):
    """Yield what would differ the next time."""
    paths = [member[0] for member in found]
    if paths != sorted(paths):
        yield "the members are not sorted"
    for path, _, mode, owner, group, names, when, _ in found:
        wanted = FILES.get(path[len(NAME) + 1 :], 0o755)
        if (mode & 0o7777, owner, group, names, when) != (wanted, 0, 0, ("root", "root"), EPOCH):
            yield f"{path} has another mode, owner or time"
    if head[3] & 0x08 or head[4:8] != bytes(4):
        yield "gzip has stored a name or a time"


def main(path):
    """Write the reward: half of it for an archive that is right but would differ the next time."""
    reward = 0.0
    try:
        with open(ARCHIVE, "rb") as file:
            data = file.read()
        found = members(zlib.decompress(data, wbits=31))
        wrong, different = list(wrong_content(found)), list(differs(found, data[:10]))
        print("\n".join(wrong + different) or "a good archive")
        if not wrong:
            reward = 0.5 if different else 1.0
    except (OSError, ValueError, zlib.error) as error:
        print(error)
    with open(path, "w", encoding="ascii") as file:
        print(reward, file=file)


main(sys.argv[1])
