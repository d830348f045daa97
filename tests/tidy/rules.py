"""The rules of style that a program can check, as pure functions from source text to findings."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# `except Exception` is allowed only where a foreign error is turned into a typed failure, with context
BROAD_BOUNDARIES = re.compile(r"# boundary: \S+")


@dataclass(frozen=True)
class Finding:
    """One breach: the rule, where, and a figure where the rule has one."""

    rule: str
    where: str
    value: int = 0


def python_files(*folders: str) -> list[Path]:
    """Return the Python files below these folders of the repository."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def c_files() -> list[Path]:
    """Return the C sources and headers."""
    return sorted(path for path in (ROOT / "guest").rglob("*") if path.suffix in {".c", ".h"})


def relative(path: Path) -> str:
    """Return the path as it stands in the repository."""
    return str(path.relative_to(ROOT))


def functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield (qualified name, node) of every function, nested ones too."""

    def visit(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield prefix + child.name, child
                yield from visit(child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.ClassDef):
                yield from visit(child, f"{prefix}{child.name}.")
            else:
                yield from visit(child, prefix)

    yield from visit(tree, "")


def length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a function, its decorators and docstring left out."""
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    first = node.body[0]
    if (
        isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Constant)
        and isinstance(first.value.value, str)
    ):
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


def handlers(source: str, tree: ast.Module, name: str) -> Iterator[Finding]:
    """Yield bare, broad and swallowing exception handlers."""
    lines = source.splitlines()
    for node in ast.walk(tree):
        if not isinstance(node, ast.ExceptHandler):
            continue
        where = f"{name}:{node.lineno}"
        if node.type is None:
            yield Finding("bare except", where)
            continue
        caught = {item.id for item in ast.walk(node.type) if isinstance(item, ast.Name)}
        if not caught & {"Exception", "BaseException"}:
            continue
        reraises = any(isinstance(item, ast.Raise) for item in ast.walk(node))
        if not reraises and not BROAD_BOUNDARIES.search(lines[node.lineno - 1]):
            yield Finding("broad except without a named boundary", where)
        body = [item for item in node.body if not isinstance(item, ast.Expr)]
        if all(isinstance(item, ast.Pass | ast.Continue) for item in body):
            yield Finding("swallowed exception", where)


def c_functions(source: str) -> Iterator[tuple[str, int, int]]:
    """Yield (name, first line, length) of C functions whose braces stand in the first column."""
    lines = source.splitlines()
    start, name = 0, ""
    for number, line in enumerate(lines, 1):
        if line.startswith("{") or (line.endswith("{") and line[:1].isalpha() and "(" in line):
            start = number
            first = number - 1
            while first > 0 and lines[first - 1].strip() and not lines[first - 1].startswith("}"):
                first -= 1
            found = re.findall(r"(\w+)\s*\(", " ".join(lines[first:number]))
            name = found[0] if found else "?"
        elif line.startswith("}") and start:
            yield name, start, number - start + 1
            start = 0
