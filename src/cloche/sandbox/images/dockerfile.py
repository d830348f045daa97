"""Which images a Dockerfile starts from. Reads only what that needs; buildah judges the rest.

Must never guess: a name with a variable that has no value is reported, not built from nothing.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cloche.core.errors import InvalidInput

_ESCAPE = re.compile(r"#\s*escape\s*=\s*([\\`])\s*", re.IGNORECASE)
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?:(:[-+])([^}]*))?\})")
_HEREDOC = re.compile(r"<<-?\s*[\"']?(\w+)[\"']?")
_FROM_OPTION = re.compile(r"--from=(\S+)")
_MOUNT_FROM = re.compile(r"--mount=\S*?\bfrom=([^,\s]+)")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: its name in capitals, the rest, and the line it begins on (from 1)."""

    name: str
    rest: str
    line: int


def instructions(text: str) -> Iterator[Instruction]:
    """Yield the instructions, with continued lines joined, comments and here-documents left out."""
    lines = text.splitlines()
    escape = _escape(lines)
    number = 0
    while number < len(lines):
        start = number
        logical = ""
        while number < len(lines):
            line = lines[number].strip()
            number += 1
            if not line or line.startswith("#"):
                if logical:
                    continue
                break
            if not line.endswith(escape):
                logical += line
                break
            logical += line[:-1] + " "
        if not logical:
            continue
        name, _, rest = logical.partition(" ")
        instruction = Instruction(name.upper(), rest.strip(), start + 1)
        if instruction.name in {"RUN", "COPY", "ADD"}:
            number = _after_heredocs(lines, number, rest)
        yield instruction


def _escape(lines: list[str]) -> str:
    for line in lines:
        if not line.strip().startswith("#"):
            break
        match = _ESCAPE.fullmatch(line.strip())
        if match is not None:
            return match[1]
    return "\\"


def _after_heredocs(lines: list[str], number: int, rest: str) -> int:
    """Return the number of the line after the here-documents that ``rest`` opens, if they are closed."""
    for word in _HEREDOC.findall(rest):
        closing = next((at for at in range(number, len(lines)) if lines[at].strip() == word), None)
        if closing is None:
            return number
        number = closing + 1
    return number


@dataclass(frozen=True, slots=True)
class BaseImage:
    """An image that must be there: its name as written, after substitution, and the line that names it."""

    written: str
    name: str
    line: int


def base_images(text: str, build_args: Mapping[str, str], *, where: str) -> tuple[BaseImage, ...]:
    """Return the images that ``FROM``, ``COPY --from`` and ``RUN --mount=from`` need; stages are none.

    Raises InvalidInput with ``where:line``.
    """
    values: dict[str, str] = {}
    stages: list[str] = []
    found: dict[str, BaseImage] = {}
    for item in instructions(text):
        place = f"{where}:{item.line}"
        if item.name == "ARG" and not stages:
            values.update(_arguments(item.rest, values, build_args))
        elif item.name == "FROM":
            written, stage = _from(item.rest, place)
            base = substitute(written, values, place)
            if base != "scratch" and base.lower() not in stages:
                found.setdefault(written, BaseImage(written, base, item.line))
            stages.append(stage or str(len(stages)))
        elif item.name in {"COPY", "RUN"}:
            pattern = _FROM_OPTION if item.name == "COPY" else _MOUNT_FROM
            for name in pattern.findall(item.rest):
                if not name.isdigit() and name.lower() not in stages:
                    found.setdefault(name, BaseImage(name, substitute(name, values, place), item.line))
    if not stages:
        raise InvalidInput("the Dockerfile has no FROM", where=where)
    return tuple(found.values())


def _arguments(rest: str, values: Mapping[str, str], build_args: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for word in _words(rest):
        name, equals, default = word.partition("=")
        if name in build_args:
            found[name] = build_args[name]
        elif equals:
            found[name] = substitute(default, {**values, **found}, "", strict=False)
    return found


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # quotes that do not close: buildah says so
        return text.split()


def _from(rest: str, place: str) -> tuple[str, str]:
    words = [word for word in rest.split() if not word.startswith("--")]
    if not words or (len(words) != 1 and (len(words) != 3 or words[1].upper() != "AS")):
        raise InvalidInput(f"cannot read 'FROM {rest}'", where=place)
    return words[0].strip("\"'"), words[2].lower() if len(words) == 3 else ""


def substitute(text: str, values: Mapping[str, str], place: str, *, strict: bool = True) -> str:
    """Put values for ``$NAME``, ``${NAME}``, ``${NAME:-default}`` and ``${NAME:+other}``."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        found = values.get(name, "")
        if match[3] == ":-":
            return found or match[4]
        if match[3] == ":+":
            return match[4] if found else ""
        if not found and strict:
            raise InvalidInput(
                f"{text!r} uses {name}, which has no value",
                where=place,
                hint=f"give it one: --build-arg {name}=…, or a default with ARG before the first FROM",
            )
        return found

    return _VARIABLE.sub(value, text)
