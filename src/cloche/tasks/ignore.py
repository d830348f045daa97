"""Ignore rules as git reads them: which files make the task, and which of them go into a sandbox.

``.gitignore`` at the top of a task decides what its digest counts; ``.harborignore`` files in the folders of
tests and solutions decide that too, and what is uploaded. Must never read a rule outside the task.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

IGNORE_FILE = ".harborignore"

_SCOPE = re.compile(r"(?:steps/[^/]+/)?(?:tests|solution)(?:/.*)?\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Rule:
    """One line: what it matches, and whether it takes in again (``!``)."""

    pattern: re.Pattern[str]
    includes: bool


class Rules:
    """The rules of one file; the last that matches a path, or a folder above it, decides."""

    def __init__(self, lines: Iterable[str]) -> None:
        """Read the lines; those that mean nothing are left out, as git does."""
        self._rules = [rule for line in lines if (rule := parse_rule(line)) is not None]

    def __bool__(self) -> bool:
        return bool(self._rules)

    def verdict(self, path: str) -> bool | None:
        """Return whether a path is ignored, ``None`` where no rule says; a folder's path ends with ``/``."""
        for rule in reversed(self._rules):
            if rule.pattern.match(path):
                return not rule.includes
        return None


def parse_rule(line: str) -> Rule | None:
    """Return the rule of a line, ``None`` for a comment, an empty line or a pattern that matches nothing."""
    text = line.rstrip("\r\n")
    text = text if text.endswith("\\ ") else text.rstrip()
    if not text or text.startswith("#"):
        return None
    includes = text.startswith("!")
    text = text[1:] if includes else text
    if text == "/":
        text = "**"  # git says nothing about it; the digest takes it for everything
    folder = text.endswith("/")
    parts = text.removesuffix("/").split("/")
    anchored = len(parts) > 1
    if parts[0] == "":
        parts = parts[1:]
    if not parts or "" in parts:
        return None
    try:
        return Rule(re.compile(_regex(parts, anchored=anchored, folder=folder), re.DOTALL), includes)
    except re.error:
        return None


def _regex(parts: list[str], *, anchored: bool, folder: bool) -> str:
    pieces = [part for index, part in enumerate(parts) if part != "**" or parts[index - 1 : index] != ["**"]]
    if pieces == ["**"]:
        return r"[^/]+/.*\Z" if folder else r".+\Z"
    text = "" if anchored else "(?:.+/)?"
    last = len(pieces) - 1
    for index, piece in enumerate(pieces):
        if piece == "**":
            text += "(?:.+/)?" if index < last else ".+"
        else:
            text += _segment(piece) + ("/" if index < last else "")
    if pieces[-1] == "**":
        return text + r"\Z"
    if pieces[-1] == "*" and not folder and (anchored and pieces[:-1] != ["**"]):
        return text + r"/?\Z"  # `x/*` is about what lies in x, and not about what lies below that
    return text + (r"/.*\Z" if folder else r"(?:/.*)?\Z")


def _segment(glob: str) -> str:
    """Translate one part of a pattern: stars, question marks and classes never reach over a slash."""
    if glob == "*":
        return "[^/]+"
    text, at = "", 0
    while at < len(glob):
        character = glob[at]
        at += 1
        if character == "*":
            text += "[^/]*"
        elif character == "?":
            text += "[^/]"
        elif character == "\\" and at < len(glob):
            text += re.escape(glob[at])
            at += 1
        elif character == "[" and (end := _class_end(glob, at)) > 0:
            inner = glob[at:end]
            negated = inner[:1] in {"!", "^"}
            inner = (inner[1:] if negated else inner).replace("\\", "\\\\")
            text += f"[{'^' if negated else ''}{inner}]"
            at = end + 1
        else:
            text += re.escape(character)
    return text


def _class_end(glob: str, start: int) -> int:
    """Return where a character class ends, -1 if it does not."""
    at = start + 1 if glob[start : start + 1] in {"!", "^"} else start
    return glob.find("]", at + 1)


class TaskIgnores:
    """The ``.harborignore`` rules of one task; each file holds for its folder and those below."""

    def __init__(self, root: Path) -> None:
        """``root`` is the task's folder, free of links."""
        self._root = root
        self._rules: dict[str, Rules] = {}

    def excluded(self, name: str, *, folder: bool) -> bool:
        """Whether a path relative to the task is left out, by itself or as the target of a link."""
        if self._matches(name, folder=folder):
            return True
        path = self._root / name
        if not path.is_symlink():
            return False
        real = Path(os.path.realpath(path))
        return (
            real != path
            and real.is_relative_to(self._root)
            and self._matches(real.relative_to(self._root).as_posix(), folder=folder)
        )

    def _matches(self, name: str, *, folder: bool) -> bool:
        parts = name.split("/")
        if parts[-1] == IGNORE_FILE:
            return True
        above: list[tuple[int, Rules]] = []
        for depth in range(1, len(parts) + 1):
            candidate = "/".join(parts[:depth])
            if not _SCOPE.match(candidate):
                continue
            end = "/" if depth < len(parts) or folder else ""
            ignored = False
            for start, rules in above:
                verdict = rules.verdict("/".join(parts[start:depth]) + end)
                ignored = ignored if verdict is None else verdict
            if ignored:
                return True
            if end and (rules := self._of(candidate)):
                above.append((depth, rules))
        return False

    def _of(self, folder: str) -> Rules:
        if folder not in self._rules:
            self._rules[folder] = Rules(self._lines(self._root / folder / IGNORE_FILE))
        return self._rules[folder]

    def _lines(self, path: Path) -> list[str]:
        if not path.is_file() or not Path(os.path.realpath(path)).is_relative_to(self._root):
            return []
        return path.read_text("utf-8", "replace").splitlines()
