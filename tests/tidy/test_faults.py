"""docs/faults.md lists every fault with the test that shows it; the list and the suite must agree."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| `([a-z0-9-]+)` \| [^|]+ \| `(tests/[\w/.-]+\.py)::(\w+)` \|$")


def _listed() -> dict[tuple[str, str, str], int]:
    rows = {}
    lines = (ROOT / "docs" / "faults.md").read_text().splitlines()
    for number, line in enumerate(lines, 1):
        if line.startswith("| `"):
            match = ROW.match(line)
            assert match, (
                f"docs/faults.md:{number} is not `name` | what the user sees | `tests/file.py::test`"
            )
            rows[match.group(1, 2, 3)] = number
    return rows


def _fault_names(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    names = []
    for call in (item for decorator in node.decorator_list for item in ast.walk(decorator)):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.fault":
            names += [argument.value for argument in call.args if isinstance(argument, ast.Constant)]
    return names


def _marked() -> set[tuple[str, str, str]]:
    found = set()
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for name in _fault_names(node):
                    found.add((str(name), str(path.relative_to(ROOT)), node.name))
    return found


def test_every_marked_test_is_listed() -> None:
    assert _marked() - set(_listed()) == set()


def test_every_listed_fault_has_its_test() -> None:
    assert set(_listed()) - _marked() == set()


def test_there_are_faults() -> None:
    assert len(_marked()) >= 30
