"""Unified diffs: taken apart and applied to texts. Pure: reads and writes nothing (``patch`` does).

The format is that of ``diff -u`` and of ``git diff`` (with its headers for new, deleted and renamed files
and for modes). Context must match exactly: a hunk may have moved by some lines, never be guessed at. Binary
patches and links are refused. Must never half-understand a patch: what cannot be read is an error with its
line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from cloche.core.errors import InvalidInput

PATCH_BYTES_MAX = 64 << 20
FILES_MAX = 10_000
_HUNK = re.compile(rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_ESCAPES = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}
_NOWHERE = "/dev/null"


class PatchKind(StrEnum):
    """What a patch does to one file."""

    ADDED = "added"
    MODIFIED = "modified"
    DELETED = "deleted"
    RENAMED = "renamed"
    COPIED = "copied"


@dataclass(frozen=True, slots=True)
class Hunk:
    """A run of lines: ``old`` must stand at line ``start`` (from 1; 0 in an empty file) or near it."""

    start: int
    old: tuple[bytes, ...]
    new: tuple[bytes, ...]
    line: int


@dataclass(slots=True)
class FilePatch:
    """What a patch says about one file. ``old`` and ``new`` are its paths, "" where there is none."""

    old: str = ""
    new: str = ""
    mode: int | None = None
    kind: PatchKind = PatchKind.MODIFIED
    hunks: list[Hunk] = field(default_factory=list)
    line: int = 0

    @property
    def path(self) -> str:
        """The path to speak of."""
        return self.new or self.old


def parse(data: bytes, *, strip: int = 1) -> list[FilePatch]:
    """Take a patch apart; ``strip`` leading components go from each path (``a/`` and ``b/``).

    Text before, between and after the files is ignored, as mail headers are. Raises InvalidInput.
    """
    if len(data) > PATCH_BYTES_MAX:
        raise InvalidInput(f"a patch of more than {PATCH_BYTES_MAX >> 20} MiB")
    found = list(_Parser(data, strip).files())
    if not found:
        raise InvalidInput("the patch changes nothing: it has no hunk and no git header")
    return found


class _Parser:
    def __init__(self, data: bytes, strip: int) -> None:
        self._lines = data.split(b"\n")
        if self._lines[-1] == b"":
            self._lines.pop()
        self._at = 0
        self._strip = strip

    def _wrong(self, problem: str) -> InvalidInput:
        return InvalidInput(f"line {self._at + 1} of the patch: {problem}")

    def _peek(self) -> bytes | None:
        return self._lines[self._at] if self._at < len(self._lines) else None

    def files(self) -> Iterator[FilePatch]:
        """Yield the files in order."""
        count = 0
        while (line := self._peek()) is not None:
            if line.startswith(b"diff --git "):
                patch = self._git()
            elif line.startswith(b"--- ") and self._next_is(b"+++ "):
                patch = FilePatch(line=self._at + 1)
                self._content(patch)
            elif line.startswith(b"@@ -"):
                raise self._wrong("a hunk of no file")
            else:
                self._at += 1
                continue
            count += 1
            if count > FILES_MAX:
                raise self._wrong(f"more than {FILES_MAX} files")
            yield patch

    def _next_is(self, prefix: bytes) -> bool:
        return self._at + 1 < len(self._lines) and self._lines[self._at + 1].startswith(prefix)

    def _git(self) -> FilePatch:
        patch = FilePatch(line=self._at + 1)
        header = self._lines[self._at][len(b"diff --git ") :]
        self._at += 1
        while (line := self._peek()) is not None and self._extended(patch, line):
            self._at += 1
        if line is not None and line.startswith(b"--- ") and self._next_is(b"+++ "):
            self._content(patch)
        elif not patch.path:
            self._names_of_header(patch, header)
        if patch.kind is PatchKind.ADDED:
            patch.old = ""
        elif patch.kind is PatchKind.DELETED:
            patch.new = ""
        if patch.kind is PatchKind.MODIFIED and not patch.hunks and patch.mode is None:
            raise self._wrong(f"nothing is said about {patch.path!r}")
        return patch

    def _extended(self, patch: FilePatch, line: bytes) -> bool:
        """Take one of git's header lines; False for what is none."""
        word, _, rest = line.partition(b" mode ")
        if word in {b"new file", b"deleted file", b"new", b"old"} and rest:
            self._mode(patch, word, rest)
            return True
        for prefix, kind, is_new in _MOVES:
            if line.startswith(prefix):
                name = self._name(line[len(prefix) :], strip=max(self._strip - 1, 0))
                patch.kind = kind
                if is_new:
                    patch.new = name
                else:
                    patch.old = name
                return True
        if line.startswith((b"GIT binary patch", b"Binary files ")):
            raise self._wrong("a binary patch, which cannot be applied: write the file itself")
        return line.startswith((b"index ", b"similarity index ", b"dissimilarity index "))

    def _mode(self, patch: FilePatch, word: bytes, text: bytes) -> None:
        if not re.fullmatch(rb"[0-7]{5,6}", text):
            raise self._wrong(f"{text!r} is no mode")
        mode = int(text, 8)
        if mode >> 12 != 0o10:
            raise self._wrong("only regular files can be patched, no links and no submodules")
        if word == b"new file":
            patch.kind = PatchKind.ADDED
        elif word == b"deleted file":
            patch.kind = PatchKind.DELETED
        if word in {b"new file", b"new"}:
            patch.mode = mode & 0o777

    def _names_of_header(self, patch: FilePatch, header: bytes) -> None:
        """Take the two names of ``diff --git``, which are the same one where no other line has them."""
        if header.startswith(b'"'):
            end = re.match(rb'"(?:[^"\\]|\\.)*"', header)
            if end is None:
                raise self._wrong("a name without its closing quote")
            first = end[0]
        else:
            size = (len(header) - 1) // 2
            first = header[:size]
        patch.old = patch.new = self._name(first)
        if self._strip and not header.startswith(b'"') and header[size + 1 :][1:] != first[1:]:
            raise self._wrong("the two names of the header differ")

    def _content(self, patch: FilePatch) -> None:
        """Take ``---``, ``+++`` and the hunks."""
        old, new = self._name_line(b"--- "), self._name_line(b"+++ ")
        if old == _NOWHERE and new == _NOWHERE:
            raise self._wrong("a file that is nowhere before and after")
        if patch.kind in {PatchKind.RENAMED, PatchKind.COPIED}:
            if self._strip and (old, new) != (patch.old, patch.new):
                raise self._wrong(f"not the names that {patch.path!r} is moved from and to")
        elif old == _NOWHERE:
            patch.kind, patch.new = PatchKind.ADDED, new
        elif new == _NOWHERE:
            patch.kind, patch.old = PatchKind.DELETED, old
        else:
            patch.old = patch.new = new
        while (line := self._peek()) is not None and line.startswith(b"@@ -"):
            patch.hunks.append(self._hunk(line))
        if not patch.hunks:
            raise self._wrong(f"no hunk for {patch.path!r}")

    def _name_line(self, prefix: bytes) -> str:
        line = self._lines[self._at][len(prefix) :]
        text = line if line.startswith(b'"') else line.partition(b"\t")[0]  # a time may follow
        name = _NOWHERE if text.rstrip(b" \r") == _NOWHERE.encode() else self._name(text)
        self._at += 1
        return name

    def _name(self, text: bytes, strip: int | None = None) -> str:
        raw = _unquoted(text) if text.startswith(b'"') else text.removesuffix(b"\r")
        parts = raw.split(b"/")[self._strip if strip is None else strip :]
        name = b"/".join(parts).decode("utf-8", "surrogateescape")
        if not name:
            raise self._wrong(f"{raw[:200]!r} is no path below {self._strip} folders")
        return name

    def _hunk(self, header: bytes) -> Hunk:
        match = _HUNK.match(header)
        if match is None:
            raise self._wrong("a hunk's header that makes no sense")
        line = self._at + 1
        old_left, new_left = (1 if match[at] is None else int(match[at]) for at in (2, 4))
        self._at += 1
        old: list[bytes] = []
        new: list[bytes] = []
        while old_left > 0 or new_left > 0 or self._is_no_newline():
            text = self._peek()
            if text is None:
                raise self._wrong("the patch ends in the middle of a hunk")
            if text.startswith(b"\\"):
                _cut_newline(old, new, self._lines[self._at - 1][:1] or b" ")
            elif text[:1] in {b" ", b""}:
                old.append(text[1:] + b"\n")
                new.append(text[1:] + b"\n")
                old_left, new_left = old_left - 1, new_left - 1
            elif text[:1] == b"-":
                old.append(text[1:] + b"\n")
                old_left -= 1
            elif text[:1] == b"+":
                new.append(text[1:] + b"\n")
                new_left -= 1
            else:
                raise self._wrong("a hunk's line begins with a space, '+', '-' or '\\'")
            self._at += 1
        if old_left < 0 or new_left < 0:
            raise self._wrong("a hunk has more lines than its header says")
        return Hunk(int(match[1]), tuple(old), tuple(new), line)

    def _is_no_newline(self) -> bool:
        line = self._peek()
        return line is not None and line.startswith(b"\\ ")


_MOVES = (
    (b"rename from ", PatchKind.RENAMED, False),
    (b"rename to ", PatchKind.RENAMED, True),
    (b"copy from ", PatchKind.COPIED, False),
    (b"copy to ", PatchKind.COPIED, True),
)


def _cut_newline(old: list[bytes], new: list[bytes], mark: bytes) -> None:
    """Take the newline from the last line of the side or sides that the line before stands on."""
    for side, marks in ((old, b" -"), (new, b" +")):
        if mark in marks and side:
            side[-1] = side[-1].removesuffix(b"\n")


def _unquoted(text: bytes) -> bytes:
    """Return a name that git has quoted as C does."""
    match = re.match(rb'"((?:[^"\\]|\\.)*)"', text)
    if match is None:
        raise InvalidInput(f"{text[:200]!r} is a name without its closing quote")

    def plain(found: re.Match[bytes]) -> bytes:
        if found[1][:1].isdigit():
            return bytes([int(found[1], 8) & 0xFF])
        return _ESCAPES.get(found[1], found[1])

    return re.sub(rb"\\([0-7]{1,3}|.)", plain, match[1])


def apply(patch: FilePatch, content: bytes) -> bytes:
    """Return a file's content with the hunks applied. Raises InvalidInput with path, hunk and line."""
    lines = _split(content)
    moved, floor = 0, 0
    for number, hunk in enumerate(patch.hunks, 1):
        wanted = (hunk.start if not hunk.old else hunk.start - 1) + moved
        at = _find(lines, hunk.old, wanted, floor)
        if at is None:
            raise InvalidInput(
                f"hunk {number} of {patch.path!r} (line {hunk.line} of the patch) does not fit: "
                f"{_mismatch(lines, hunk.old, wanted)}"
            )
        lines[at : at + len(hunk.old)] = hunk.new
        moved = at - (hunk.start if not hunk.old else hunk.start - 1) + len(hunk.new) - len(hunk.old)
        floor = at + len(hunk.new)
    return b"".join(lines)


def _split(content: bytes) -> list[bytes]:
    """Split at line feeds only: a carriage return is a character like others."""
    parts = content.split(b"\n")
    last = parts.pop()
    return [part + b"\n" for part in parts] + ([last] if last else [])


def _find(lines: list[bytes], old: tuple[bytes, ...], wanted: int, floor: int) -> int | None:
    """Return where ``old`` stands: as near to ``wanted`` as can be, not above ``floor``."""
    last = len(lines) - len(old)
    if not old:
        return wanted if floor <= wanted <= len(lines) else None
    for distance in range(max(last - wanted, wanted - floor, 0) + 1):
        for at in {wanted - distance, wanted + distance}:
            if floor <= at <= last and lines[at] == old[0] and tuple(lines[at : at + len(old)]) == old:
                return at
    return None


def _mismatch(lines: list[bytes], old: tuple[bytes, ...], wanted: int) -> str:
    for offset, expected in enumerate(old):
        at = wanted + offset
        found = lines[at] if 0 <= at < len(lines) else None
        if found != expected:
            shown = "the file ends" if found is None else f"it has {found[:120]!r}"
            return f"line {at + 1} should be {expected[:120]!r}, {shown}"
    return "it overlaps the hunk before"
