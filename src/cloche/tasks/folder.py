"""A task's folder: its files read without leaving it, and their content digest.

Must never follow a link out of the folder, execute anything, or read more than a bounded amount of the
files that are parsed. The digest is the one that Harbor writes into locks and manifests: SHA-256 over
``path NUL sha256-of-file LF`` of the files that make the task, sorted by path.
"""

# paths are texts here: thousands of tasks are read at once, and a Path costs more than a stat
# ruff: noqa: PTH110, PTH112, PTH113, PTH114, PTH120, PTH123, PTH208

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator
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
_BLOCK_BYTES = 1 << 18

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


class Folder:
    """A task's folder. ``root`` is absolute and free of links; ``shown`` is the path as it was given.

    What has been found to be inside is remembered: one reading of a task asks for the same folders often.
    """

    def __init__(self, root: Path, shown: str) -> None:
        """Look at nothing yet."""
        self.root = root
        self.shown = shown
        self._root = str(root)
        self._real: dict[str, bool] = {"": True}
        self._checked: set[str] = set()

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
        return self.root / name if self.is_there(name) else None

    def is_there(self, name: str) -> bool:
        """Whether there is such a file or folder. Raises FolderError if it leads out of the task."""
        path = f"{self._root}/{name}"
        try:
            found = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        if not stat.S_ISLNK(found.st_mode) and self._is_real(os.path.dirname(name)):
            return True
        if not self._holds(os.path.realpath(path)):
            message = f"`{name}` is a link that leads out of the task"
            raise FolderError(self.broken(name, "task/path_escape", message))
        return os.path.exists(path)

    def _is_real(self, name: str) -> bool:
        """Whether no link is on the way to a folder."""
        if name not in self._real:
            path = f"{self._root}/{name}"
            self._real[name] = self._is_real(os.path.dirname(name)) and not os.path.islink(path)
        return self._real[name]

    def _holds(self, real: str) -> bool:
        return real == self._root or real.startswith(f"{self._root}/")

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
        return sorted(os.listdir(path)) if path is not None and path.is_dir() else []

    def check_tree(self, name: str) -> None:
        """Raise FolderError if anything below a folder leads out of the task or round in a circle."""
        if name in self._checked or not self.is_there(name):
            return
        path = f"{self._root}/{name}"
        if os.path.isdir(path):
            real = path if self._is_real(name) else os.path.realpath(path)
            self._check(name, (real,), [0])
        self._checked.add(name)

    def _check(self, name: str, above: tuple[str, ...], count: list[int]) -> None:
        """Check a folder; ``above`` has the true paths of the folders on the way to it, itself the last."""
        if len(above) > DEPTH_MAX:
            raise self.too_deep(name)
        with os.scandir(f"{self._root}/{name}") as opened:
            entries = sorted(opened, key=lambda entry: entry.name)
        count[0] += len(entries)
        if count[0] > FILES_MAX:
            message = f"`{name}` and its neighbours hold more than {FILES_MAX:,} files"
            raise FolderError(self.broken(name, "task/too_large", message))
        for entry in entries:
            inner = f"{name}/{entry.name}"
            real = f"{above[-1]}/{entry.name}"
            if entry.is_symlink():
                self.is_there(inner)
                real = os.path.realpath(entry.path)
                if real == entry.path:
                    raise self._cycle(inner)
            if entry.is_dir():
                if real in above:
                    raise self._cycle(inner)
                self._check(inner, (*above, real), count)

    def _cycle(self, name: str) -> FolderError:
        return FolderError(
            self.broken(name, "task/link_cycle", f"`{name}` is a link that goes round in a circle")
        )

    def too_deep(self, name: str) -> FolderError:
        """Return the error about folders in folders in folders."""
        message = f"its folders are nested more than {DEPTH_MAX} deep"
        return FolderError(self.broken(name.split("/", 1)[0], "task/too_large", message))


def task_files(folder: Folder) -> Iterator[str]:
    """Yield the paths of the files that make the task, in order.

    A ``.gitignore`` at the top decides what is left out, and replaces the list that holds without one.
    """
    root = str(folder.root)
    found = [name for name in _SINGLE_FILES if os.path.isfile(f"{root}/{name}")]
    ignores = TaskIgnores(folder.root)
    for top in _FOLDERS:
        found += _below(folder, top, ignores, ruled=False)
    text = folder.text(_GITIGNORE)
    rules = None if text is None else Rules(text.split("\n"))
    for name in sorted(found):
        if not (_ignored(name) if rules is None else rules.verdict(name)):
            yield name


def _below(folder: Folder, prefix: str, ignores: TaskIgnores, *, ruled: bool) -> Iterator[str]:
    """Yield the files below a folder; ``ruled`` says that an ignore file stands in one above."""
    if prefix.count("/") > DEPTH_MAX:
        raise folder.too_deep(prefix)
    try:
        with os.scandir(f"{folder.root}/{prefix}") as opened:
            entries = list(opened)
    except (FileNotFoundError, NotADirectoryError):
        return
    ruled = ruled or any(entry.name == IGNORE_FILE for entry in entries)
    for entry in entries:
        name = f"{prefix}/{entry.name}"
        if (ruled or entry.is_symlink()) and ignores.excluded(name, folder=entry.is_dir()):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _below(folder, name, ignores, ruled=ruled)
        elif entry.is_file():
            yield name


def _ignored(name: str) -> bool:
    parts = name.split("/")
    return _IGNORED_FOLDER in parts[:-1] or any(_IGNORED_ANYWHERE.match(part) for part in parts)


def content_digest(folder: Folder) -> str:
    """Return ``sha256:`` and the content digest. Raises FolderError for a file that cannot be read."""
    outer = hashlib.sha256()
    for name in task_files(folder):
        folder.is_there(name)
        outer.update(os.fsencode(f"{name}\0{_file_digest(folder, name)}\n"))
    return f"sha256:{outer.hexdigest()}"


def _file_digest(folder: Folder, name: str) -> str:
    inner = hashlib.sha256()
    try:
        with open(f"{folder.root}/{name}", "rb", buffering=0) as file:
            while block := file.read(_BLOCK_BYTES):
                inner.update(block)
    except OSError as error:
        message = f"`{name}` cannot be read: {error.strerror}"
        raise FolderError(folder.broken(name, "task/unreadable", message)) from error
    return inner.hexdigest()


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
