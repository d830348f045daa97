"""The repository speaks of the product alone, its documents name what exists, importing does nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# written in pieces, so that this file does not hold what it forbids
FOREIGN = {
    "a path of somebody's machine": r"/(?:Users/[a-z]|root/\.|home/\w+/(?:src|code|projects?)/)",
    "a registry's host name": r"\b(?:deb\.debian|pypi|registry\.npmjs|files\.pythonhosted)\.(?:org|com)\b",
}


def tracked_files() -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    names = [name for name in listing.stdout.decode().split("\0") if name]
    return [path for name in names if (path := ROOT / name).is_file() and not path.is_symlink()]


@pytest.mark.parametrize("what", FOREIGN)
def test_the_repository_speaks_of_the_product_alone(what: str) -> None:
    pattern = re.compile(FOREIGN[what])
    here = Path(__file__).resolve()
    found = []
    for path in tracked_files():
        if path == here:
            continue
        text = path.read_bytes().decode("utf-8", "replace")
        found += [
            f"{path.relative_to(ROOT)}:{number}"
            for number, line in enumerate(text.splitlines(), 1)
            if pattern.search(line)
        ]
    assert not found


def test_importing_any_module_writes_nothing(tmp_path: Path) -> None:
    """Every module is imported with an empty, read-only home and closed standard output."""
    modules = sorted(
        str(path.relative_to(ROOT / "src").with_suffix("")).replace("/", ".").removesuffix(".__init__")
        for path in (ROOT / "src" / "cloche").rglob("*.py")
        if path.name != "__main__.py"
    )
    assert len(modules) > 20
    home = tmp_path / "home"
    home.mkdir(mode=0o555)
    program = "import importlib, sys\nfor name in sys.argv[1:]:\n    importlib.import_module(name)\n"
    done = subprocess.run(
        [sys.executable, "-B", "-c", program, *modules],
        cwd=home,
        env={"HOME": str(home), "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == b""
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["sandbox", "--help"], ["version"]])
def test_help_imports_nothing_slow(arguments: list[str]) -> None:
    program = (
        "import sys\nfrom cloche.cli import main\ntry:\n    main(sys.argv[1:])\nexcept SystemExit as end:\n"
        "    assert not end.code\n"
        "slow = {'aiohttp', 'pydantic', 'rich', 'dns', 'asyncio'} & set(sys.modules)\n"
        "print(sorted(slow), file=sys.stderr)\nsys.exit(len(slow))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize("document", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "BENCHMARKS.md"])
def test_documents_link_to_what_exists(document: str) -> None:
    text = (ROOT / document).read_text()
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", text)
    missing = [link for link in links if not (ROOT / link).exists()]
    assert not missing
    paths = re.findall(r"`((?:src|docs|tests|examples|scripts|benchmarks|guest)/[\w./-]+)`", text)
    assert not [path for path in paths if not (ROOT / path).exists()]
