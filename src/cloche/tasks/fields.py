"""Typed reading of a parsed TOML table: each key once, each wrong value named with its line and path.

A reader must never raise for what the file holds: it notes a finding and gives the default, so that one
look at a task finds all that is wrong with it.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from cloche.tasks.model import Doubt, Env, EnvValue, Finding, Refusal
from cloche.tasks.toml import Document, Path

T = TypeVar("T")

_KINDS: dict[type, str] = {
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    str: "a text",
    list: "a list",
    dict: "a table",
}


def kind_of(value: object) -> str:
    """Return what a TOML value is, in words."""
    return _KINDS.get(type(value), "a date or time")


@dataclass(slots=True)
class Findings:
    """What has been found in one file so far."""

    file: str
    document: Document
    broken: list[Finding] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    doubts: list[Doubt] = field(default_factory=list)

    def where(self, path: Path) -> str:
        """Return ``file:line`` of a key."""
        return f"{self.file}:{self.document.line(path)}"


def dotted(path: Path) -> str:
    """Return the path of a field as people write it: ``steps[0].agent.timeout_sec``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


class Table:
    """One table of the document. Ask for its keys, then call :meth:`finish`."""

    def __init__(self, findings: Findings, data: dict[str, Any], path: Path = ()) -> None:
        """Read ``data``, which stands at ``path`` in the document."""
        self._findings = findings
        self._data = data
        self._path = path
        self._known: list[str] = []

    def __contains__(self, key: str) -> bool:
        return key in self._data

    @property
    def file(self) -> str:
        """The file that the table stands in."""
        return self._findings.file

    def where(self, key: str) -> str:
        """Return ``file:line`` of a key."""
        return self._findings.where((*self._path, key))

    def name(self, key: str) -> str:
        """Return the key with the names of the tables around it."""
        return dotted((*self._path, key))

    def broken(self, key: str, code: str, message: str, hint: str = "") -> None:
        """Note that the value of ``key`` cannot be used."""
        text = f"`{self.name(key)}` {message}"
        self._findings.broken.append(Finding(code=code, message=text, where=self.where(key), hint=hint))

    def refuse(self, key: str, code: str, message: str, hint: str = "") -> None:
        """Note that the value of ``key`` is understood and cannot be executed."""
        self._findings.refused.append(Refusal(code=code, message=message, where=self.where(key), hint=hint))

    def doubt(self, key: str, code: str, message: str, hint: str = "") -> None:
        """Note that ``key`` may not be what was meant."""
        self._findings.doubts.append(Doubt(code=code, message=message, where=self.where(key), hint=hint))

    def value(self, key: str, kinds: tuple[type, ...], wanted: str) -> Any:
        """Return the value if it is of one of ``kinds`` (a boolean is no number), else ``None``."""
        self._known.append(key)
        value = self._data.get(key)
        if value is None or type(value) in kinds:
            return value
        self.broken(key, "task/type", f"must be {wanted}, not {kind_of(value)}")
        return None

    def text(self, key: str) -> str | None:
        """Return a text, which may not hold a null character."""
        value = self.value(key, (str,), "a text")
        if value is not None and "\0" in value:
            self.broken(key, "task/value", "holds a null character")
            return None
        return value if value is None else str(value)

    def boolean(self, key: str) -> bool | None:
        """Return a boolean."""
        value = self.value(key, (bool,), "true or false")
        return value if value is None else bool(value)

    def number(self, key: str, *, above: float = 0.0, or_equal: bool = False) -> float | None:
        """Return a finite number greater than ``above``, or equal to it where that is allowed."""
        value = self.value(key, (int, float), "a number")
        if value is None:
            return None
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number) or number < above or (number == above and not or_equal):
            least = f"of at least {above:g}" if or_equal else f"above {above:g}"
            self.broken(key, "task/range", f"must be a finite number {least}, not {_short(value)}")
            return None
        return number

    def integer(self, key: str, *, least: int = 1, most: int = 1 << 40) -> int | None:
        """Return an integer in a range; ``2.0`` counts as ``2``."""
        value = self.value(key, (int, float), "an integer")
        if value is None:
            return None
        if isinstance(value, float) and not value.is_integer():
            self.broken(key, "task/type", f"must be an integer, not {value}")
            return None
        if not least <= value <= most:
            self.broken(key, "task/range", f"must be from {least} to {most}, not {_short(value)}")
            return None
        return int(value)

    def choice(self, key: str, choices: Sequence[str], *, fold: bool = False) -> str | None:
        """Return one of the words in ``choices``."""
        value = self.text(key)
        if value is None:
            return None
        word = value.lower() if fold else value
        if word in choices:
            return word
        near = difflib.get_close_matches(word, choices, 1)
        hint = f"did you mean `{near[0]}`?" if near else ""
        self.broken(key, "task/value", f"must be one of {', '.join(choices)}, not {_short(value)}", hint)
        return None

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of texts."""
        values = self.value(key, (list,), "a list of texts") or []
        for index, item in enumerate(values):
            if not isinstance(item, str):
                self.broken(key, "task/type", f"must hold texts, but item {index} is {kind_of(item)}")
                return ()
        return tuple(values)

    def items(self, key: str, kinds: tuple[type, ...], wanted: str) -> list[Any]:
        """Return a list whose items are all of one of ``kinds``."""
        values: list[Any] = self.value(key, (list,), f"a list of {wanted}") or []
        for index, item in enumerate(values):
            if type(item) not in kinds:
                message = f"must hold {wanted}, but item {index} is {kind_of(item)}"
                self.broken(key, "task/type", message)
                return []
        return values

    def user(self, key: str) -> str | None:
        """Return a user: a name or a number."""
        value = self.value(key, (str, int), "a user's name or number")
        if value is None:
            return None
        text = str(value)
        if not text or "\0" in text or ":" in text or text != text.strip() or text.startswith("-"):
            self.broken(key, "task/value", f"is not a user's name or number: {_short(value)}")
            return None
        return text

    def env(self, key: str) -> Env:
        """Return a table of environment variables."""
        table = self.value(key, (dict,), "a table of texts") or {}
        values = {}
        for name, value in table.items():
            path = f"{key}.{name}"
            if not isinstance(value, str):
                problem = f"must be a text, not {kind_of(value)}"
            elif not name or "=" in name or "\0" in name or "\0" in value:
                problem = "is not a variable that a process can have"
            else:
                # the line matters where the host has to give a value; to count lines takes time
                at = self._findings.where((*self._path, key, name)) if "${" in value else self._findings.file
                values[name] = EnvValue(text=value, where=at)
                continue
            where = self._findings.where((*self._path, key, name))
            message = f"`{self.name(path)}` {problem}"
            self._findings.broken.append(Finding(code="task/type", message=message, where=where))
        return values

    def raw(self, key: str) -> dict[str, Any]:
        """Return a table in which anything may stand."""
        return self.value(key, (dict,), "a table") or {}

    def table(self, key: str, read: Callable[[Table], T]) -> T:
        """Read a table inside this one; a missing one is empty."""
        inner = Table(self._findings, self.raw(key), (*self._path, key))
        result = read(inner)
        inner.finish()
        return result

    def item(self, key: str, index: int, data: dict[str, Any]) -> Table:
        """Return the table that is one item of a list; the caller calls its ``finish``."""
        return Table(self._findings, data, (*self._path, key, index))

    def tables(self, key: str, read: Callable[[Table], T]) -> list[T]:
        """Read a list of tables; a missing one is empty."""
        found = []
        for index, data in enumerate(self.items(key, (dict,), "tables")):
            inner = self.item(key, index, data)
            found.append(read(inner))
            inner.finish()
        return found

    def thresholds(self, key: str, name: str) -> dict[str, float]:
        """Return numbers by name, from a table of them or from one number, which goes by ``name``."""
        value = self.value(key, (int, float, dict), "a number or a table of numbers")
        if value is None:
            return {}
        numbers = value if isinstance(value, dict) else {name: value}
        found = {}
        for word, number in numbers.items():
            shown = f"{key}.{word}" if isinstance(value, dict) else key
            if type(number) not in {int, float}:
                self.broken_inside(key, word, "task/type", shown, f"must be a number, not {kind_of(number)}")
            elif not _finite(number):
                self.broken_inside(key, word, "task/range", shown, "must be a finite number")
            else:
                found[word] = float(number)
        return found

    def broken_inside(self, key: str, inner: str, code: str, shown: str, message: str) -> None:
        """Note that something inside the value of ``key`` cannot be used."""
        where = self._findings.where((*self._path, key, inner))
        text = f"`{self.name(shown)}` {message}"
        self._findings.broken.append(Finding(code=code, message=text, where=where))

    def finish(self) -> None:
        """Doubt every key that nobody has asked for."""
        for key in self._data:
            if key not in self._known:
                near = difflib.get_close_matches(key, self._known, 1)
                hint = f"did you mean `{near[0]}`?" if near else ""
                message = f"`{self.name(key)}` is not a key of the format and has no effect"
                self.doubt(key, "task/unknown_key", message, hint)


def _finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # an integer beyond what a float can hold
        return False


def _short(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # an integer of too many digits has no text
        text = "a huge number"
    return text if len(text) <= 60 else text[:57] + "..."
