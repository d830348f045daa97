"""TOML with positions: the parsed document, and the line on which each of its keys stands.

Must never accept what ``tomllib`` refuses, nor fail in any way but :class:`TomlError`. The parser of the
standard library keeps no positions, so a second, forgiving pass over a valid document finds them.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from typing import Any

Path = tuple[str | int, ...]

_POSITION = re.compile(r"\s*\(at line (\d+), column (\d+)\)$")
_AT_END = re.compile(r"\s*\(at end of document\)$")
_BARE_OR_QUOTED = re.compile(r"""[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'""")


class TomlError(Exception):
    """The text is not TOML; ``line`` and ``column`` count from 1, columns in characters."""

    def __init__(self, message: str, line: int, column: int) -> None:
        super().__init__(message)
        self.line = line
        self.column = column


class Document:
    """``data`` as ``tomllib`` gives it, and the line of each of its keys, counted from 1."""

    def __init__(self, data: dict[str, Any], text: str) -> None:
        """``text`` is what ``data`` was read from; its lines are counted when the first is asked for."""
        self.data = data
        self._text = text
        self._lines: dict[Path, int] | None = None

    @property
    def lines(self) -> dict[Path, int]:
        """The line of every key and table by its path."""
        if self._lines is None:
            self._lines = dict(_positions(self._text))
        return self._lines

    def line(self, path: Path) -> int:
        """The line of a key, or of the nearest table around it that has one."""
        while path:
            if path in self.lines:
                return self.lines[path]
            path = path[:-1]
        return 1


def decode(content: bytes) -> str:
    """Return the text of a UTF-8 file, its lines ended by line feeds; raises TomlError where it is none."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8")
        line, column = _end_of(before)
        byte = content[error.start]
        raise TomlError(f"byte 0x{byte:02x} is not UTF-8", line, column) from error
    if text.startswith("\ufeff"):
        raise TomlError("it begins with a byte order mark", 1, 1)
    return text.replace("\r\n", "\n")


def _end_of(text: str) -> tuple[int, int]:
    lines = text.split("\n")
    return len(lines), len(lines[-1]) + 1


def parse(text: str) -> Document:
    """Parse a document. Raises TomlError, for nesting that is too deep and impossible values as well."""
    try:
        data = tomllib.loads(text)
    except RecursionError as error:
        raise TomlError("values are nested too deeply", 1, 1) from error
    except ValueError as error:  # TOMLDecodeError, and what int() and datetime refuse
        raise _located(str(error), text) from error
    return Document(data, text)


def _located(message: str, text: str) -> TomlError:
    found = _POSITION.search(message)
    if found:
        return TomlError(message[: found.start()], int(found[1]), int(found[2]))
    end = _AT_END.search(message)
    if end:
        return TomlError(message[: end.start()], *_end_of(text))
    return TomlError(message, 1, 1)


def _key_parts(text: str) -> tuple[str, ...]:
    parts = []
    for found in _BARE_OR_QUOTED.finditer(text):
        part = found[0]
        if part[0] == '"' and "\\" in part:
            part = str(next(iter(tomllib.loads(f"{part} = 0"))))
        elif part[0] in "\"'":
            part = part[1:-1]
        parts.append(part)
    return tuple(parts)


def _positions(text: str) -> Iterator[tuple[Path, int]]:
    """Yield the path of every table header and of every key that opens a line, with its line."""
    table: Path = ()
    arrays: dict[Path, int] = {}
    for line, statement in _statements(text):
        if statement.startswith("[["):
            base = _resolve(_key_parts(statement[2:].partition("]]")[0]), arrays)
            arrays[base] = arrays.get(base, -1) + 1
            if arrays[base] == 0:
                yield base, line
            table = (*base, arrays[base])
            yield table, line
        elif statement.startswith("["):
            table = _resolve(_key_parts(_header(statement[1:])), arrays)
            yield table, line
        else:
            yield (*table, *_key_parts(_left_side(statement))), line


def _resolve(parts: tuple[str, ...], arrays: dict[Path, int]) -> Path:
    """Return the path that a header means: inside an array of tables it is the latest one."""
    path: Path = ()
    for index, part in enumerate(parts):
        path = (*path, part)
        if path in arrays and index < len(parts) - 1:
            path = (*path, arrays[path])
    return path


def _header(text: str) -> str:
    return _cut(text, "]")


def _left_side(text: str) -> str:
    return _cut(text, "=")


def _cut(text: str, stop: str) -> str:
    """Return what stands before the first ``stop`` outside quotes."""
    quote = ""
    skip = False
    for index, character in enumerate(text):
        if skip:
            skip = False
        elif quote:
            skip = character == "\\" and quote == '"'
            if character == quote:
                quote = ""
        elif character in "\"'":
            quote = character
        elif character == stop:
            return text[:index]
    return text


_TOKEN = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}'
    r"|'''.*?'{3,5}"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'"
    r"|#[^\n]*"
    r"|[\[{]|[\]}]|\n|[^\"'#\[\]{}\n]+",
    re.DOTALL,
)


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of each header and assignment of a valid document, comments left out."""
    line, depth, start = 1, 0, 1
    parts: list[str] = []
    for found in _TOKEN.finditer(text):
        piece = found[0]
        if piece.startswith("\n") and depth == 0:
            yield from _statement(start, parts)
            parts = []
        elif not piece.startswith("#"):
            if not parts:
                start = line
            parts.append(piece)
            depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(piece, 0)
        line += piece.count("\n")
    yield from _statement(start, parts)


def _statement(line: int, parts: list[str]) -> Iterator[tuple[int, str]]:
    text = "".join(parts).strip()
    if text:
        yield line, text
