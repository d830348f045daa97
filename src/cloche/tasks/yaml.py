"""The part of YAML that compose files are written in, with the line of every value.

Mappings, lists, plain and quoted scalars, block scalars and flow collections are read; anchors, aliases,
tags and several documents are refused, each with its line. Every scalar is a text. Must never build anything
but mappings, lists and texts, nor recurse deeper than ``DEPTH_MAX``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

DEPTH_MAX = 40
LINE_CHARS_MAX = 4000
FLOW_CHARS_MAX = 8000

_KEY = re.compile(
    r"""("(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^\s\[\]{}"'#,&*!|>%@`-][^#:]*?|-[^\s#:][^#:]*?)\s*:(?=\s|$)\s*"""
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "e": "\x1b", '"': '"', "\\": "\\", "/": "/", " ": " "}
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})


class YamlError(Exception):
    """The text is not YAML, or not of the part that is read; ``line`` counts from 1."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True, slots=True)
class Node:
    """A value: a mapping, a list, a text, or ``None`` for nothing; and its line."""

    value: dict[str, Node] | list[Node] | str | None
    line: int

    @property
    def kind(self) -> str:
        """What it is, in words."""
        if isinstance(self.value, dict):
            return "a mapping"
        if isinstance(self.value, list):
            return "a list"
        return "nothing" if self.value is None else "a text"


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    indent: int
    text: str


def parse(text: str) -> Node:
    """Return the document. Raises YamlError."""
    reader = _Reader(text)
    if not reader.lines:
        return Node(None, 1)
    node = reader.block(reader.lines[0].indent, 0)
    if reader.at < len(reader.lines):
        raise YamlError("it is indented in a way that does not fit", reader.lines[reader.at].number)
    return node


class _Reader:
    def __init__(self, text: str) -> None:
        self.raw = text.split("\n")
        self.lines = [line for number, raw in enumerate(self.raw, 1) if (line := _line(number, raw))]
        self.at = 0

    def block(self, indent: int, depth: int) -> Node:
        """Read the mapping, list or scalar whose lines begin at ``indent``."""
        line = self.lines[self.at]
        if depth > DEPTH_MAX:
            raise YamlError("it is nested too deeply", line.number)
        if line.text == "-" or line.text.startswith("- "):
            return self._list(indent, depth)
        if _KEY.match(line.text):
            return self._mapping(indent, depth)
        self.at += 1
        return self._value(line.text, line, depth)

    def _list(self, indent: int, depth: int) -> Node:
        first = self.lines[self.at].number
        items: list[Node] = []
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if line.indent != indent or not (line.text == "-" or line.text.startswith("- ")):
                break
            rest = line.text[1:].lstrip(" ")
            if rest:
                inner = indent + len(line.text) - len(rest)
                self.lines[self.at] = _Line(line.number, inner, rest)
                items.append(self.block(inner, depth + 1))
            else:
                self.at += 1
                items.append(self._below(indent, line.number, depth))
        self._check_indent(indent)
        return Node(items, first)

    def _mapping(self, indent: int, depth: int) -> Node:
        first = self.lines[self.at].number
        found: dict[str, Node] = {}
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if line.indent != indent:
                break
            match = _KEY.match(line.text)
            if match is None:
                raise YamlError("a key with a colon is missing", line.number)
            key = _scalar(match[1], line.number)
            if key is None or key == "<<":
                raise YamlError("merged mappings are not read", line.number)
            if key in found:
                raise YamlError(f"`{key}` is there twice", line.number)
            self.at += 1
            rest = line.text[match.end() :]
            node = (
                self._value(rest, line, depth) if rest else self._below(indent, line.number, depth, key=True)
            )
            found[key] = Node(node.value, line.number)
        self._check_indent(indent)
        return Node(found, first)

    def _check_indent(self, indent: int) -> None:
        if self.at < len(self.lines) and self.lines[self.at].indent > indent:
            raise YamlError("it is indented in a way that does not fit", self.lines[self.at].number)

    def _below(self, indent: int, number: int, depth: int, *, key: bool = False) -> Node:
        """Read what stands below a key or dash; a list may stand at the key's own indent."""
        if self.at < len(self.lines):
            line = self.lines[self.at]
            dashed = line.text == "-" or line.text.startswith("- ")
            if line.indent > indent or (key and dashed and line.indent == indent):
                return self.block(line.indent, depth + 1)
        return Node(None, number)

    def _value(self, text: str, line: _Line, depth: int) -> Node:
        if text[0] in "|>":
            return Node(self._block_scalar(text, line), line.number)
        if text[0] in "[{":
            while not _balanced(text):
                if self.at >= len(self.lines):
                    raise YamlError("a bracket is not closed", line.number)
                text += " " + self.lines[self.at].text
                if len(text) > FLOW_CHARS_MAX:
                    raise YamlError("a bracket is closed too late", line.number)
                self.at += 1
            return _flow(text, line.number, depth)
        return Node(_scalar(text, line.number), line.number)

    def _block_scalar(self, header: str, line: _Line) -> str:
        if not re.fullmatch(r"[|>][+-]?", header):
            raise YamlError("this kind of block text is not read", line.number)
        taken: list[str] = []
        number = line.number
        base = line.indent
        inner: int | None = None
        while number < len(self.raw):
            raw = self.raw[number]
            indent = len(raw) - len(raw.lstrip(" "))
            if raw.strip() and indent <= (base if inner is None else inner - 1):
                break
            inner = indent if inner is None and raw.strip() else inner
            taken.append(raw[inner or 0 :])
            number += 1
        while self.at < len(self.lines) and self.lines[self.at].number <= number:
            self.at += 1
        joined = ("\n" if header[0] == "|" else " ").join(taken).rstrip()
        return joined if header.endswith("-") else joined + "\n"


def _line(number: int, raw: str) -> _Line | None:
    """Return what a line says, without its comment; ``None`` if that is nothing."""
    if len(raw) > LINE_CHARS_MAX:
        raise YamlError(f"a line has more than {LINE_CHARS_MAX:,} characters", number)
    text = _uncommented(raw).rstrip()
    bare = text.lstrip(" ")
    if not bare or (bare == "---" and number == 1):
        return None
    if bare.startswith("\t"):
        raise YamlError("it is indented by a tab", number)
    if bare in {"---", "..."} or bare.startswith("%"):
        raise YamlError("there is more than one document", number)
    return _Line(number, len(text) - len(bare), bare)


def _uncommented(text: str) -> str:
    quote = ""
    skip = False
    for index, character in enumerate(text):
        if skip:
            skip = False
        elif quote:
            skip = quote == '"' and character == "\\"
            quote = "" if character == quote else quote
        elif character in "\"'" and (index == 0 or text[index - 1] in " \t[{,:"):
            quote = character
        elif character == "#" and (index == 0 or text[index - 1] in " \t"):
            return text[:index]
    return text


def _balanced(text: str) -> bool:
    depth, quote = 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        else:
            depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(character, 0)
    return depth <= 0


def _scalar(text: str, line: int) -> str | None:
    """Return the text of a scalar that stands on one line."""
    text = text.strip()
    if text[:1] in {"&", "*", "!"}:
        raise YamlError("anchors, aliases and tags are not read", line)
    if text[:1] == "'":
        if not re.fullmatch(r"'(?:[^']|'')*'", text):
            raise YamlError("a quote is not closed", line)
        return text[1:-1].replace("''", "'")
    if text[:1] == '"':
        if not re.fullmatch(r'"(?:[^"\\]|\\.)*"', text):
            raise YamlError("a quote is not closed", line)
        return re.sub(r"\\(.)", lambda match: _escape(match[1], line), text[1:-1])
    if re.search(r":(?:\s|$)", text):
        raise YamlError("there is a colon where none may be", line)
    return None if text in _NULLS else text


def _escape(character: str, line: int) -> str:
    if character not in _ESCAPES:
        raise YamlError(f"`\\{character}` is not read", line)
    return _ESCAPES[character]


_FLOW = re.compile(r"""\s*(?:([\[\]{},])|("(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^\[\]{},"']+))""")


def _flow(text: str, line: int, depth: int) -> Node:
    tokens = [match[1] or match[2].strip() for match in _FLOW.finditer(text)]
    if "".join(tokens).replace(" ", "") != re.sub(r"\s", "", text):
        tokens = [token for token in tokens if token]
    node, at = _flow_at([token for token in tokens if token], 0, line, depth)
    if at < len([token for token in tokens if token]):
        raise YamlError("something follows a closed bracket", line)
    return node


def _flow_at(tokens: list[str], at: int, line: int, depth: int) -> tuple[Node, int]:
    if depth > DEPTH_MAX:
        raise YamlError("it is nested too deeply", line)
    if at >= len(tokens):
        raise YamlError("a bracket is not closed", line)
    if tokens[at] not in {"[", "{"}:
        return Node(_scalar(tokens[at], line), line), at + 1
    close = "]" if tokens[at] == "[" else "}"
    items: list[Node] = []
    pairs: dict[str, Node] = {}
    at += 1
    while at < len(tokens) and tokens[at] != close:
        if close == "]":
            node, at = _flow_at(tokens, at, line, depth + 1)
            items.append(node)
        else:
            at = _flow_pair(tokens, at, line, depth, pairs)
        if at < len(tokens) and tokens[at] == ",":
            at += 1
        elif at < len(tokens) and tokens[at] != close:
            raise YamlError("a comma is missing", line)
    if at >= len(tokens):
        raise YamlError("a bracket is not closed", line)
    return Node(items if close == "]" else pairs, line), at + 1


def _flow_pair(tokens: list[str], at: int, line: int, depth: int, pairs: dict[str, Node]) -> int:
    """Read ``key: value`` of a flow mapping into ``pairs``; return where it ends."""
    head = tokens[at]
    at += 1
    if head[:1] in {'"', "'"} and at < len(tokens) and tokens[at].startswith(":"):
        key, rest = _scalar(head, line), tokens[at][1:].strip()
        at += 1
    else:
        name, colon, rest = head.partition(":")
        if not colon:
            raise YamlError("a key with a colon is missing", line)
        key, rest = _scalar(name, line), rest.strip()
    if key is None or key in pairs:
        raise YamlError("a key is missing or there twice", line)
    if rest:
        pairs[key] = Node(_scalar(rest, line), line)
    elif at < len(tokens) and tokens[at] not in {",", "}", "]"}:
        pairs[key], at = _flow_at(tokens, at, line, depth + 1)
    else:
        pairs[key] = Node(None, line)
    return at
