"""A hostile program, and a sandbox with it inside."""

from __future__ import annotations

import importlib.util
import platform
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from cloche.sandbox.drivers.local import LocalDriver
from cloche.sandbox.handle import Sandbox
from cloche.sandbox.spec import PreparedImage, SandboxSpec

HERE = Path(__file__).resolve().parent
BUILD = HERE.parents[2] / "guest" / "build_hook.py"


def _build(name: str, folder: Path) -> Path:
    """Compile a program of this folder as the guest is compiled."""
    spec = importlib.util.spec_from_file_location("guest_build", BUILD)
    assert spec is not None
    assert spec.loader is not None
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    target = folder / name
    command = [*build.compiler(platform.machine()), "-std=c11", "-O1", "-static"]
    subprocess.run([*command, "-o", str(target), str(HERE / f"{name}.c")], check=True)
    return target


@pytest.fixture(scope="session")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of ``probe.c``."""
    return _build("probe", tmp_path_factory.mktemp("probe"))


@pytest.fixture(scope="session")
def reach(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of ``reach.c``."""
    return _build("reach", tmp_path_factory.mktemp("reach"))


@pytest_asyncio.fixture
async def hostile(
    driver: LocalDriver, busybox_image: PreparedImage, probe: Path, reach: Path
) -> AsyncIterator[Sandbox]:
    """A sandbox without special limits that has ``/bin/probe`` and ``/bin/reach``."""
    async with await driver.create(SandboxSpec(), busybox_image) as sandbox:
        await sandbox.upload(probe, "/bin/probe")
        await sandbox.upload(reach, "/bin/reach")
        yield sandbox


@pytest_asyncio.fixture
async def neighbour(driver: LocalDriver, busybox_image: PreparedImage, reach: Path) -> AsyncIterator[Sandbox]:
    """Another sandbox beside it, with ``/bin/reach``."""
    async with await driver.create(SandboxSpec(), busybox_image) as sandbox:
        await sandbox.upload(reach, "/bin/reach")
        yield sandbox
