"""Reading sheets: statements into cells, expressions into trees.

A tree is ("number", n), ("cell", key), ("negate", tree), (operator, left, right) or (function, keys of two
corners). A key is (column, row), both from 1, so that keys sort as cells are printed.
"""

import re

NAME = re.compile(r"([A-Z]{1,2})([1-9][0-9]{0,2})")
TOKEN = re.compile(r"[ \t]*(?:([0-9]+)|([A-Z]+[0-9]*)|([-+*/():]))")
FUNCTIONS = {"SUM", "MIN", "MAX", "COUNT"}
BLANK = " \t"


class SheetError(Exception):
    """A sheet, or what was asked for, is wrong."""


def key_of(name):
    """Return the key of a cell's name."""
    match = NAME.fullmatch(name)
    if not match:
        raise SheetError(f"{name!r} is not a cell")
    column = 0
    for letter in match[1]:
        column = column * 26 + ord(letter) - ord("A") + 1
    return column, int(match[2])


class Parser:
    """One expression."""

    def __init__(self, text):
        self.tokens = []
        at, text = 0, text.rstrip(BLANK)
        while at < len(text):
            match = TOKEN.match(text, at)
            if not match:
                raise SheetError(f"unexpected {text[at:].lstrip()[:1]!r}")
            self.tokens.append(match[0].lstrip(BLANK))
            at = match.end()
        self.at = 0

    def next(self, *wanted):
        """Take the next token if it is one of those wanted (or any), else return an empty text."""
        token = self.tokens[self.at] if self.at < len(self.tokens) else ""
        if wanted and token not in wanted:
            return ""
        self.at += 1
        return token

    def expect(self, token):
        """Take a token that must be there."""
        if not self.next(token):
            raise SheetError(f"{token!r} expected")

    def whole(self):
        """Return the tree of all tokens."""
        tree = self.sum()
        if self.at < len(self.tokens):
            raise SheetError(f"unexpected {self.tokens[self.at]!r}")
        return tree

    def sum(self):
        """Terms with + and -."""
        tree = self.product()
        while operator := self.next("+", "-"):
            tree = operator, tree, self.product()
        return tree

    def product(self):
        """Factors with * and /."""
        tree = self.factor()
        while operator := self.next("*", "/"):
            tree = operator, tree, self.factor()
        return tree

    def factor(self):
        """A number, a cell, a function, something in parentheses, or any of them negated."""
        negative = False
        while self.next("-"):
            negative = not negative
        token = self.next()
        if token == "(":
            tree = self.sum()
            self.expect(")")
        elif token in FUNCTIONS:
            tree = token, *self.corners()
        elif token.isdecimal():
            tree = "number", int(token)
        else:
            tree = "cell", key_of(token)
        return ("negate", tree) if negative else tree

    def corners(self):
        """The range behind a function's name."""
        self.expect("(")
        first = key_of(self.next())
        self.expect(":")
        second = key_of(self.next())
        self.expect(")")
        return first, second


def parse(text):
    """Return {key: tree or text} of a sheet."""
    cells = {}
    for number, whole in enumerate(text.split("\n"), 1):
        line = whole.strip(BLANK)
        if not line or line.startswith("#"):
            continue
        try:
            match = re.search("[=:]", line)
            if not match:
                raise SheetError("neither '=' nor ':'")
            key = key_of(line[: match.start()].rstrip(BLANK))
            rest = line[match.end() :].lstrip(BLANK)
            if key in cells:
                raise SheetError("the cell is set twice")
            cells[key] = rest if match[0] == ":" else Parser(rest).whole()
        except SheetError as error:
            raise SheetError(f"line {number}: {error}") from None
    return cells
