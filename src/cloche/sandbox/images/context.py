"""The content digest of a build context: what a Dockerfile can see of a folder.

It counts paths, kinds, permission bits, symlink targets and content of what ``.dockerignore`` leaves, but no
owners and no times: ``COPY`` gives neither on. Must never leave out what the build can see: then an
old image would be taken for a new context.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from cloche.core.errors import InvalidInput

CHUNK_BYTES = 1 << 20


class IgnoreRules:
    """The rules of a ``.dockerignore``: the last rule that matches a path, or a folder above it, decides."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._rules: list[tuple[re.Pattern[str], bool]] = []
        for line in lines:
            text = line.strip()
            if not text or line.startswith("#"):
                continue
            keeps = text.startswith("!")
            pattern = os.path.normpath(text[1:].strip() if keeps else text).lstrip("/")
            if pattern not in {"", "."}:
                self._rules.append((_regex(pattern), keeps))
        self.keeps_some = any(keeps for _, keeps in self._rules)

    def ignores(self, path: str) -> bool:
        """Whether the build cannot see this relative path."""
        parts = path.split("/")
        above = ["/".join(parts[: length + 1]) for length in range(len(parts))]
        ignored = False
        for pattern, keeps in self._rules:
            if any(pattern.fullmatch(item) for item in above):
                ignored = not keeps
        return ignored


def _regex(pattern: str) -> re.Pattern[str]:
    """Translate a pattern of Go's ``filepath.Match`` with ``**``, as Docker reads it."""
    result, at = "", 0
    while at < len(pattern):
        char = pattern[at]
        if pattern.startswith("**", at):
            at += 2
            if pattern[at : at + 1] == "/":
                at += 1
                result += "(?:.*/)?"
            else:
                result += ".*"
            continue
        at += 1
        if char == "*":
            result += "[^/]*"
        elif char == "?":
            result += "[^/]"
        elif char == "[" and "]" in pattern[at:]:
            end = pattern.index("]", at)
            result += f"[{pattern[at:end]}]"
            at = end + 1
        elif char == "\\" and at < len(pattern):
            result += re.escape(pattern[at])
            at += 1
        else:
            result += re.escape(char)
    try:
        return re.compile(result, re.DOTALL)
    except re.error as error:
        raise InvalidInput(f".dockerignore has a pattern that is none: {pattern!r}: {error}") from error


def ignore_file(context: Path, dockerfile: Path) -> Path | None:
    """Return the file whose rules hold: ``<Dockerfile>.dockerignore`` before ``.dockerignore``."""
    for path in (dockerfile.with_name(dockerfile.name + ".dockerignore"), context / ".dockerignore"):
        if path.is_file():
            return path
    return None


def visible(context: Path, rules: IgnoreRules) -> Iterator[tuple[str, os.stat_result]]:
    """Yield (relative path, status) of all that the build can see, in order."""

    def walk(folder: str) -> Iterator[tuple[str, os.stat_result]]:
        with os.scandir(context / folder) as found:
            entries = sorted(found, key=lambda entry: entry.name)
        for entry in entries:
            path = folder + entry.name
            ignored = rules.ignores(path)
            if not ignored:
                yield path, entry.stat(follow_symlinks=False)
            if entry.is_dir(follow_symlinks=False) and (not ignored or rules.keeps_some):
                yield from walk(path + "/")

    yield from walk("")


def context_digest(context: Path, rules: IgnoreRules) -> str:
    """Return 64 hexadecimal digits. Raises InvalidInput naming a file that cannot be read."""
    total = hashlib.sha256()
    try:
        for path, found in visible(context, rules):
            place = context / path
            content = ""
            if stat.S_ISREG(found.st_mode):
                content = _file_digest(place)
            elif stat.S_ISLNK(found.st_mode):
                content = str(place.readlink())
            for item in (path, f"{found.st_mode:o}", content):
                data = os.fsencode(item)
                total.update(len(data).to_bytes(8, "big") + data)
    except OSError as error:
        raise InvalidInput(f"the build context cannot be read: {error}") from error
    return total.hexdigest()


def _file_digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
