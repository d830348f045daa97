"""Every code block of the pages for users does what it says: shell lines and Python programs, as they stand.

The blocks of one page are run in its order, in one folder, against an installation of the test's own.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = ("quickstart", "sdk", "configuration")
RUN = {"sh": ["bash", "-euo", "pipefail", "-c"], "python": [sys.executable, "-W", "error", "-c"]}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@dataclass(frozen=True)
class Block:
    """One fenced block: where it begins, its language, its text."""

    line: int
    language: str
    text: str


def blocks(page: str) -> list[Block]:
    """Return the fenced blocks of a page."""
    text = (DOCS / f"{page}.md").read_text()
    return [
        Block(text.count("\n", 0, match.start()) + 2, match[1], match[2])
        for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ]


@pytest.fixture(scope="module")
def environ() -> Iterator[dict[str, str]]:
    """An installation with the image that the pages use, and a home of its own."""
    base = Path("/var/tmp") / f"cloche-docs-{os.getpid()}"
    environ = {name: value for name, value in os.environ.items() if not name.startswith("CLOCHE_")}
    environ |= {
        "CLOCHE_STATE_DIR": str(base / "state"),
        "CLOCHE_RUN_DIR": str(base / "run"),
        "HOME": str(base / "home"),
        "KEY": "clk_not_a_real_one",
        "NO_COLOR": "1",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
    }
    if "CLOCHE_CACHE_DIR" in os.environ:
        environ["CLOCHE_CACHE_DIR"] = os.environ["CLOCHE_CACHE_DIR"]
    (base / "home").mkdir(parents=True)
    program = [sys.executable, "-m", "cloche"]
    subprocess.run(
        [*program, "image", "bootstrap", "debian:12"], env=environ, check=True, capture_output=True
    )
    yield environ
    left = subprocess.run(
        [*program, "sandbox", "ls"], env=environ, capture_output=True, text=True, check=True
    )
    leaks = subprocess.run(
        [*program, "doctor", "--leaks", "--json"], env=environ, capture_output=True, check=False
    )
    shutil.rmtree(base, ignore_errors=True)
    assert left.stdout == "", "a page leaves sandboxes"
    assert leaks.stdout == b""


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_a_page_works(page: str, environ: dict[str, str], tmp_path: Path) -> None:
    found = blocks(page)
    assert found
    for block in found:
        assert block.language in RUN, f"docs/{page}.md:{block.line}: no language that can be run"
        done = subprocess.run(
            [*RUN[block.language], block.text],
            env=environ,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"docs/{page}.md:{block.line}\n{done.stdout}\n{done.stderr}"


def test_readme_begins_with_a_sandbox_that_works(environ: dict[str, str], tmp_path: Path) -> None:
    screen = "\n".join((ROOT / "README.md").read_text().splitlines()[:40])
    programs = re.findall(r"^```python\n(.*?)^```$", screen, re.MULTILINE | re.DOTALL)
    assert len(programs) == 1
    assert "Sandbox.create(" in programs[0]
    done = subprocess.run(
        [*RUN["python"], programs[0]], env=environ, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    said = re.search(r"# prints (.*)$", programs[0], re.MULTILINE)
    assert said is not None
    assert done.stdout.strip() == said[1]
