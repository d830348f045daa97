"""Starts the spawner of an installation. Must never start a second one: the program itself holds a lock.

What is needed of the machine is checked here, once per start, so that the error says what to do.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import platform
import sys
from pathlib import Path

import cloche
from cloche.core.errors import EnvironmentUnusable, InfraError
from cloche.sandbox import binaries
from cloche.sandbox.native import host, network, seccomp
from cloche.sandbox.settings import Settings

_ALREADY_RUNS = 75
_IDLE_MS = "10000"


def prepare_folders(settings: Settings) -> None:
    """Make the installation's folders. Raises EnvironmentUnusable without the right to."""
    try:
        for folder in (settings.state_dir, settings.run_dir):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            folder.chmod(0o700)
        for folder in (settings.sandboxes_dir, settings.uppers_dir, settings.layers_dir):
            folder.mkdir(exist_ok=True, mode=0o700)
    except PermissionError as error:
        raise EnvironmentUnusable(
            f"no right to use {error.filename}", hint="run the command as root"
        ) from error


def _arguments(settings: Settings) -> list[str]:
    workers = min(16, max(8, 4 * (os.cpu_count() or 1)))  # some wait for the disk
    return [
        str(binaries.spawner_path()),
        f"--instance={settings.instance}",
        f"--state-dir={settings.state_dir}",
        f"--run-dir={settings.run_dir}",
        f"--guest={binaries.guest_path()}",
        f"--idle-ms={os.environ.get('CLOCHE_SPAWNER_IDLE_MS', _IDLE_MS)}",
        f"--workers={workers}",
        *network.spawner_arguments(settings),
        "--",
        sys.executable,
        "-m",
        "cloche.sandbox.native.resolver",
        *network.resolver_arguments(settings),
    ]


def _environment() -> dict[str, str]:
    """Return the environment of the spawner, which its name server inherits."""
    return {
        "PATH": os.environ.get("PATH") or "/usr/sbin:/usr/bin:/sbin:/bin",
        "PYTHONPATH": str(Path(cloche.__file__).parent.parent),
        "LANG": "C.UTF-8",
    }


async def start(settings: Settings) -> bool:
    """Start the spawner and return True once it listens; False when one runs or is ending already.

    Raises EnvironmentUnusable when this machine lacks what it needs, and says what.
    """
    await asyncio.to_thread(_prepare, settings)
    process = await asyncio.create_subprocess_exec(
        *_arguments(settings),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env=_environment(),
        cwd="/",
    )
    _, said = await process.communicate(seccomp.program(platform.machine()))
    if process.returncode == _ALREADY_RUNS:
        return False
    if process.returncode != 0:
        text = said.decode("utf-8", "replace").strip() or f"it ended with status {process.returncode}"
        if "No space left" in text:
            raise InfraError(f"the spawner cannot start: {text}", code="infra/disk_full")
        raise EnvironmentUnusable(
            f"the spawner cannot work on this machine: {text}", hint="cloche doctor shows what is missing"
        )
    return True


def _prepare(settings: Settings) -> None:
    host.check()
    try:
        prepare_folders(settings)
        network.write_rules(settings)
    except OSError as error:
        raise InfraError(
            f"cannot prepare {error.filename}: {error.strerror}", code="infra/disk_full"
        ) from error


async def wait_gone(settings: Settings) -> None:
    """Wait until no spawner of this installation runs (its lock is free); bounded by 20 s."""
    async with asyncio.timeout(20):
        while lock_is_held(settings):  # noqa: ASYNC110  # a lock of another process: there is no event
            await asyncio.sleep(0.005)


def lock_is_held(settings: Settings) -> bool:
    """Whether a spawner of this installation runs."""
    try:
        descriptor = os.open(settings.run_dir / "spawner.lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
