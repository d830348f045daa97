"""Compiles the guest and the spawner when the package is built, and puts them into the wheel.

Needs a C compiler that links statically: ``CLOCHE_CC`` if set, else ``musl-gcc``, else the ``ziglang``
package, which the build then asks for. ``CLOCHE_GUEST_ARCHES`` names the architectures, separated by
spaces (default: this machine's); any but this machine's needs ziglang. Must never download anything
itself, nor touch a file outside ``src/cloche/_guest``.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ModuleNotFoundError:  # run as a program by scripts/build-guest, without the build back end
    BuildHookInterface = object  # type: ignore[assignment,misc]

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "src" / "cloche" / "_guest"
FLAGS = [
    *("-std=c11", "-D_GNU_SOURCE", "-Os", "-g0", "-static", "-ffunction-sections", "-fdata-sections"),
    *("-Wall", "-Wextra", "-Werror"),
]
LINK = ["-Wl,--gc-sections", "-Wl,-s"]
PROGRAMS = {"cloche-guest": ("guest",), "cloche-spawner": ("guest/spawner",)}


def host_arch() -> str:
    """Return ``x86_64`` or ``aarch64``."""
    machine = platform.machine()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)


def arches() -> list[str]:
    """Return the architectures to build for."""
    return os.environ.get("CLOCHE_GUEST_ARCHES", host_arch()).split()


def _own_compiler(arch: str) -> list[str] | None:
    """Return the command of a compiler on this machine that can make a static program, or None."""
    if arch != host_arch():
        return None
    named = os.environ.get("CLOCHE_CC")
    if named:
        return None if named == "zig" else named.split()
    if shutil.which("musl-gcc"):
        # musl's wrapper knows no kernel headers: take the system's, behind musl's own
        return ["musl-gcc", "-idirafter", "/usr/include", "-idirafter", f"/usr/include/{arch}-linux-gnu"]
    return None


def compiler(arch: str) -> list[str]:
    """Return the compiler command for ``arch``; raises RuntimeError if there is none."""
    own = _own_compiler(arch)
    if own is not None:
        return own
    if importlib.util.find_spec("ziglang") is None:
        message = f"no static C compiler for {arch}: install musl-tools or ziglang, or set CLOCHE_CC"
        raise RuntimeError(message)
    return [sys.executable, "-m", "ziglang", "cc", "-target", f"{arch}-linux-musl"]


def sources(folders: tuple[str, ...]) -> Iterator[Path]:
    """Yield the C files of one program."""
    for folder in (*folders, "guest/common"):
        yield from sorted((ROOT / folder).glob("*.c"))


def newest_input() -> float:
    """Return the latest time of change of anything that goes into the programs."""
    files = [path for path in (ROOT / "guest").rglob("*") if path.suffix in {".c", ".h", ".py", ".json"}]
    return max(path.stat().st_mtime for path in files)


def build(*, force: bool = True) -> list[Path]:
    """Compile all programs for all architectures and return their paths."""
    made = []
    for arch in arches():
        for name, folders in PROGRAMS.items():
            target = OUTPUT / arch / name
            made.append(target)
            if not force and target.exists() and target.stat().st_mtime >= newest_input():
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            files = [str(path) for path in sources(folders)]
            includes = [f"-I{ROOT / 'guest' / 'common'}"]
            partial = target.with_suffix(".part")
            subprocess.run(
                [*compiler(arch), *FLAGS, *includes, "-o", str(partial), *files, *LINK], check=True
            )
            partial.rename(target)
    return made


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Hatchling's way in."""

    def dependencies(self) -> list[str]:
        """Ask for ziglang only where no compiler of the machine's own will do."""
        return ["ziglang>=0.13"] if any(_own_compiler(arch) is None for arch in arches()) else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and mark the wheel as one for this platform."""
        if self.target_name != "wheel":
            return
        for path in build(force=version != "editable"):
            build_data["artifacts"].append(f"/{path.relative_to(ROOT)}")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{_platform_tag()}"


def _platform_tag() -> str:
    """Return the wheel's platform: static programs run on any Linux of their architecture."""
    only = arches()
    return f"manylinux_2_17_{only[0]}" if len(only) == 1 else f"manylinux_2_17_{host_arch()}"


if __name__ == "__main__":
    for made_path in build(force="--force" in sys.argv):
        sys.stdout.write(f"{made_path}\n")
