"""scripts/setup-peers: environments are made once, made again when broken, and missed with a reason."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "setup-peers"
TOOLS = ("bash", "cat", "cut", "dirname", "flock", "mkdir", "rm", "sha256sum", "tail", "touch", "uname")


@dataclass(frozen=True, slots=True)
class Checkout:
    """A checkout with the script and locks that ask for nothing, so that nothing is fetched."""

    folder: Path

    def run(self, name: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run the script with this environment and no other."""
        return subprocess.run(
            [self.folder / "scripts" / "setup-peers", name],
            env={"HOME": str(self.folder / "home"), "PATH": str(self.folder / "bin"), **environ},
            capture_output=True,
            text=True,
            check=False,
        )

    def made(self, name: str = "real-model", **environ: str) -> tuple[Path, bool]:
        """Return the environment's folder and whether it was made just now."""
        done = self.run(name, **environ)
        assert done.returncode == 0, done.stderr
        return Path(done.stdout.strip()), "making" in done.stderr


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    for name in ("scripts", "requirements", "home", "bin", ".venv/bin"):
        (tmp_path / name).mkdir(parents=True)
    shutil.copy(SCRIPT, tmp_path / "scripts")
    for name in ("harbor", "real-model"):
        (tmp_path / "requirements" / f"{name}.lock").write_text("# nothing\n")
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found, tool
        (tmp_path / "bin" / tool).symlink_to(found)
    return Checkout(tmp_path)


def put_python(checkout: Checkout) -> None:
    """Give it this Python, by a program, since a link into a virtual environment leads out of it."""
    python = checkout.folder / ".venv" / "bin" / "python"
    python.write_text(f'#!/bin/bash\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)


def test_without_a_python_that_is_new_enough_it_says_so(checkout: Checkout) -> None:
    old = checkout.folder / "bin" / "python3.11"
    old.write_text("#!/bin/bash\nexit 1\n")
    old.chmod(0o755)
    done = checkout.run("harbor")
    assert done.returncode == 5
    assert done.stdout == ""
    error, hint = done.stderr.splitlines()
    assert error.startswith(
        "error: no Python 3.12 or newer with venv was found, and the harbor package needs"
    )
    assert hint == "hint: put one on PATH, or run: pyenv install 3.12"


def test_it_is_made_once_by_what_it_is_made_from(checkout: Checkout) -> None:
    put_python(checkout)
    cache = checkout.folder / "cache"
    place, made = checkout.made(CLOCHE_CACHE_DIR=str(cache))
    assert made
    assert place.parent == cache / "peers"
    assert (place / "bin" / "python").exists()
    assert checkout.made(CLOCHE_CACHE_DIR=str(cache)) == (place, False)
    for broken in ("complete", "bin/python"):  # interrupted; left by the Python that it was made with
        (place / broken).unlink()
        assert checkout.made(CLOCHE_CACHE_DIR=str(cache)) == (place, True)
    (checkout.folder / "requirements" / "real-model.lock").write_text("# something else\n")
    other, made = checkout.made(CLOCHE_CACHE_DIR=str(cache))
    assert made
    assert other != place


def test_without_a_cache_it_lies_in_the_checkout(checkout: Checkout) -> None:
    put_python(checkout)
    blocked = checkout.folder / "blocked"
    blocked.write_text("a file where the cache's folder would be")
    place, made = checkout.made(CLOCHE_CACHE_DIR=str(blocked))
    assert made
    assert place.parent == checkout.folder / ".venv" / "peers"


def test_a_pip_that_fails_is_said_with_its_log(checkout: Checkout) -> None:
    put_python(checkout)
    (checkout.folder / "requirements" / "real-model.lock").write_text("./absent-folder\n")
    done = checkout.run("real-model", CLOCHE_CACHE_DIR=str(checkout.folder / "cache"))
    assert done.returncode == 5
    assert "error: pip could not install requirements/real-model.lock" in done.stderr
    log = Path(done.stderr.rpartition("the whole log: ")[2].strip())
    assert log.read_text()
    assert not (log.parent / "complete").exists()
