"""A task's folder: its files read without leaving it, and their content digest.

Must never follow a link out of the folder, execute anything, or read more than a bounded amount of the
files that are parsed. The digest is the one that Harbor writes into locks and manifests: SHA-256 over
``path NUL sha256-of-file LF`` of the files that make the task, sorted by path.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cloche.tasks.ignore import IGNORE_FILE, Rules, TaskIgnores
from cloche.tasks.model import Doubt, Finding, Refusal
from cloche.tasks.toml import TomlError, decode

CONFIG = "task.toml"
INSTRUCTION = "instruction.md"
TEXT_BYTES_MAX = 1 << 20
FILES_MAX = 100_000
DEPTH_MAX = 64

_SINGLE_FILES = (CONFIG, INSTRUCTION, "README.md", "trajectory.json")
_FOLDERS = ("environment", "tests", "solution", "steps")
_IGNORED_ANYWHERE = re.compile(r"(?:.*\.(?:pyc|swp|swo)|.*~|\.DS_Store)\Z", re.DOTALL)
_IGNORED_FOLDER = "__pycache__"
_GITIGNORE = ".gitignore"

# leading canary lines tell trainers that a file is a benchmark's; the agent must not see them
_CANARY = re.compile(r"<!--.*canary.*-->|#.*canary.*", re.IGNORECASE)


def printable(text: str) -> str:
    """Return a path as one line that any terminal takes: what cannot be shown becomes U+FFFD."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


class FolderError(Exception):
    """The folder cannot be used as a task; ``finding`` says why."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


def strip_canary(text: str) -> str:
    """Return the instruction without the block of canary comments at its beginning."""
    lines = text.split("\n")
    first = 0
    while first < len(lines) and _CANARY.fullmatch(lines[first].strip()):
        first += 1
    while first < len(lines) and not lines[first].strip():
        first += 1
    return "\n".join(lines[first:])


@dataclass(frozen=True, slots=True)
class Folder:
    """A task's folder. ``root`` is absolute and free of links; ``shown`` is the path as it was given."""

    root: Path
    shown: str

    def where(self, name: str, line: int | None = None) -> str:
        """Return how a file of the task is named to people, with a line where there is one."""
        path = printable(str(Path(self.shown) / name))
        return path if line is None else f"{path}:{line}"

    def broken(self, name: str, code: str, message: str, hint: str = "", line: int | None = None) -> Finding:
        """Return a finding about a file of the task."""
        return Finding(code=code, message=printable(message), where=self.where(name, line), hint=hint)

    def inside(self, name: str) -> Path | None:
        """Return the path of a file or folder, ``None`` if it is not there.

        Raises FolderError if it leads out of the task.
        """
        path = self.root / name
        if not path.exists() and not path.is_symlink():
            return None
        resolved = Path(os.path.realpath(path))
        if not resolved.is_relative_to(self.root):
            message = f"`{name}` is a link that leads out of the task"
            raise FolderError(self.broken(name, "task/path_escape", message))
        return path if path.exists() else None

    def file(self, name: str) -> Path | None:
        """Return the path of a regular file inside the task, ``None`` if there is no such file."""
        path = self.inside(name)
        return path if path is not None and path.is_file() else None

    def text(self, name: str) -> str | None:
        """Return the text of a file in UTF-8, ``None`` if there is none. Raises FolderError."""
        path = self.file(name)
        if path is None:
            return None
        try:
            with path.open("rb") as file:
                content = file.read(TEXT_BYTES_MAX + 1)
        except OSError as error:
            message = f"`{name}` cannot be read: {error.strerror}"
            raise FolderError(self.broken(name, "task/unreadable", message)) from error
        if len(content) > TEXT_BYTES_MAX:
            message = f"`{name}` is larger than {TEXT_BYTES_MAX >> 10} KiB"
            raise FolderError(self.broken(name, "task/too_large", message))
        try:
            return decode(content)
        except TomlError as error:
            message = f"`{name}` is not valid: {error}, line {error.line}, column {error.column}"
            raise FolderError(
                self.broken(name, "task/encoding", message, "save it as UTF-8", error.line)
            ) from error

    def entries(self, name: str) -> list[str]:
        """Return the names in a folder of the task, sorted; none if it is not there."""
        path = self.inside(name)
        return sorted(entry.name for entry in path.iterdir()) if path is not None and path.is_dir() else []

    def check_tree(self, name: str) -> None:
        """Raise FolderError if anything below a folder leads out of the task or round in a circle."""
        path = self.inside(name)
        if path is not None and path.is_dir():
            self._check(path, frozenset(), [0])

    def _check(self, folder: Path, above: frozenset[str], count: list[int]) -> None:
        real = os.path.realpath(folder)
        shown = self.shown_name(folder)
        if real in above:
            raise self._cycle(shown)
        if len(above) > DEPTH_MAX:
            raise self.too_deep(shown)
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            count[0] += 1
            if count[0] > FILES_MAX:
                message = f"`{shown}` and its neighbours hold more than {FILES_MAX:,} files"
                raise FolderError(self.broken(shown, "task/too_large", message))
            path = Path(entry.path)
            if entry.is_symlink():
                self.inside(self.shown_name(path))
                if os.path.realpath(path) == entry.path:
                    raise self._cycle(self.shown_name(path))
            if entry.is_dir():
                self._check(path, above | {real}, count)

    def _cycle(self, name: str) -> FolderError:
        return FolderError(
            self.broken(name, "task/link_cycle", f"`{name}` is a link that goes round in a circle")
        )

    def too_deep(self, name: str) -> FolderError:
        """Return the error about folders in folders in folders."""
        message = f"its folders are nested more than {DEPTH_MAX} deep"
        return FolderError(self.broken(name.split("/", 1)[0], "task/too_large", message))

    def shown_name(self, path: Path) -> str:
        """Return the path of a file relative to the task."""
        return path.relative_to(self.root).as_posix()


def task_files(folder: Folder) -> Iterator[tuple[str, Path]]:
    """Yield (path, file) of the files that make the task, in order of their paths.

    A ``.gitignore`` at the top decides what is left out, and replaces the list that holds without one.
    """
    found = [(name, folder.root / name) for name in _SINGLE_FILES]
    ignores = TaskIgnores(folder.root)
    for top in _FOLDERS:
        found += _below(folder, top, ignores, ruled=False)
    text = folder.text(_GITIGNORE)
    rules = None if text is None else Rules(text.split("\n"))
    for name, path in sorted(found):
        left_out = _ignored(name) if rules is None else rules.verdict(name)
        if not left_out and path.is_file():
            yield name, path


def _below(folder: Folder, prefix: str, ignores: TaskIgnores, *, ruled: bool) -> Iterator[tuple[str, Path]]:
    """Yield what lies below a folder; ``ruled`` says that an ignore file stands in one above."""
    if prefix.count("/") > DEPTH_MAX:
        raise folder.too_deep(prefix)
    path = folder.root / prefix
    if not path.is_dir():
        return
    with os.scandir(path) as opened:
        entries = list(opened)
    ruled = ruled or any(entry.name == IGNORE_FILE for entry in entries)
    for entry in entries:
        name = f"{prefix}/{entry.name}"
        below = entry.is_dir(follow_symlinks=False)
        if (ruled or entry.is_symlink()) and ignores.excluded(name, folder=entry.is_dir()):
            continue
        if below:
            yield from _below(folder, name, ignores, ruled=ruled)
        else:
            yield name, Path(entry.path)


def _ignored(name: str) -> bool:
    parts = name.split("/")
    return _IGNORED_FOLDER in parts[:-1] or any(_IGNORED_ANYWHERE.match(part) for part in parts)


def content_digest(folder: Folder) -> str:
    """Return ``sha256:`` and the content digest. Raises FolderError for a file that cannot be read."""
    outer = hashlib.sha256()
    for name, path in task_files(folder):
        folder.inside(name)
        try:
            with path.open("rb") as file:
                inner = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            message = f"`{name}` cannot be read: {error.strerror}"
            raise FolderError(folder.broken(name, "task/unreadable", message)) from error
        outer.update(os.fsencode(f"{name}\0{inner}\n"))
    return f"sha256:{outer.hexdigest()}"


def refused_files(folder: Folder, steps: Iterable[str]) -> Iterator[Refusal]:
    """Yield a refusal for each file that asks for something which cannot be executed yet."""
    for name in ("trajectory.json", *(f"steps/{step}/trajectory.json" for step in steps)):
        if folder.inside(name) is not None:
            message = f"it starts from an earlier conversation ({name}), which agents are not given yet"
            yield Refusal(code="plan/trajectory", message=message, where=folder.where(name))


def doubtful_files(folder: Folder, steps: Iterable[str]) -> Iterator[Doubt]:
    """Yield a doubt for each file that changes nothing."""
    known = set(steps)
    if known and folder.inside(INSTRUCTION) is not None:
        message = f"`{INSTRUCTION}` is not used: each step has an instruction of its own"
        yield Doubt(code="task/no_effect", message=message, where=folder.where(INSTRUCTION))
    for name in folder.entries("steps"):
        if name not in known:
            message = f"`steps/{name}` is not used: there is no step of that name"
            yield Doubt(code="task/no_effect", message=message, where=folder.where(f"steps/{name}"))
