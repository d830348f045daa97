"""pytest fixtures for tests with real sandboxes: folders, an image, a driver, and a look for leftovers.

Import them in a ``conftest.py``. They need root and a static busybox. Must never touch another
installation's sandboxes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from cloche.sandbox.driver import Leftover
from cloche.sandbox.drivers.local import LocalDriver
from cloche.sandbox.leaks import find_leftovers
from cloche.sandbox.native.record import read_folders
from cloche.sandbox.native.runtime import NativeRuntime
from cloche.sandbox.settings import Settings
from cloche.sandbox.spec import ImageConfig, PreparedImage

BUSYBOX = Path("/bin/busybox")
_FOLDERS = ("bin", "etc", "home", "opt", "proc", "root", "sys", "tmp", "usr/bin", "usr/local/bin", "var/tmp")
_USERS = (
    "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\nuser:x:1000:1000::/home:/bin/sh\n"
)
_GROUPS = "root:x:0:\ntty:x:5:\nusers:x:1000:\nnogroup:x:65534:\n"


def make_busybox_root(folder: Path) -> None:
    """Fill a folder with a root file system of one static program and links to it."""
    for name in _FOLDERS:
        (folder / name).mkdir(parents=True)
    for name in ("tmp", "var/tmp"):
        (folder / name).chmod(0o1777)
    shutil.copy(BUSYBOX, folder / "bin" / "busybox")
    listed = subprocess.run([BUSYBOX, "--list"], capture_output=True, text=True, check=True)
    for name in listed.stdout.split():
        if name != "busybox":  # it lists itself: a link over the program would replace it
            (folder / "bin" / name).symlink_to("busybox")
    (folder / "etc" / "passwd").write_text(_USERS)
    (folder / "etc" / "group").write_text(_GROUPS)


def make_busybox_image(settings: Settings, name: str = "busybox") -> PreparedImage:
    """Return an image with a shell and little else, made in this installation's store if it is not there."""
    layer = settings.layers_dir / name
    if not layer.exists():
        layer.parent.mkdir(parents=True, exist_ok=True)
        make_busybox_root(layer)
    return PreparedImage(
        name=f"localhost/{name}:1", digest=f"sha256:{name:0>64}", layers=(layer,), config=ImageConfig()
    )


def is_clean(settings: Settings) -> list[Leftover]:
    """Return what a test must not leave: leftovers, and sandboxes that live."""
    alive = [Leftover(kind="process", name=folder.id) for folder in read_folders(settings.sandboxes_dir)]
    return [*alive, *find_leftovers(settings)][:12]


def processes_of(settings: Settings) -> list[str]:
    """Return the command lines of all processes that name this installation's run folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue  # it ended while we looked
        if f"run-dir={settings.run_dir}" in line or f"{settings.run_dir}/" in line:
            found.append(f"{entry.name} {line}")
    return found


async def stop_spawner(settings: Settings) -> None:
    """Let the spawner of an installation go, and wait for its end."""
    runtime = NativeRuntime(settings)
    try:
        await runtime.stop()
    finally:
        await runtime.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def settings() -> AsyncIterator[Settings]:
    """An installation of its own for the session, on a real disk; nothing of it may be left at the end."""
    base = Path(tempfile.mkdtemp(prefix="clt-", dir="/var/tmp"))
    own = Settings(state_dir=base / "s", run_dir=base / "r")
    try:
        yield own
        await stop_spawner(own)
        left = [*is_clean(own), *processes_of(own)]
        if left:
            pytest.fail(f"left behind by the session: {left}")
    finally:
        shutil.rmtree(base)


@pytest.fixture
def busybox_image(settings: Settings) -> PreparedImage:
    """An image with a shell and little else; made again where a test has cleaned the store."""
    return make_busybox_image(settings)


@pytest_asyncio.fixture
async def driver(settings: Settings) -> AsyncIterator[LocalDriver]:
    """A driver of the session's installation."""
    local = LocalDriver(settings)
    yield local
    await local.close()


@pytest.fixture(autouse=True)
def nothing_is_left(settings: Settings) -> Iterator[None]:
    """Fail a test that leaves anything behind on the host."""
    yield
    left = is_clean(settings)
    if left:  # do not let it fail the next test too
        reap_all(settings)
        pytest.fail(f"left behind: {left}")


def reap_all(settings: Settings) -> None:
    """Delete every sandbox and every leftover of an installation, from outside any event loop."""
    code = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from cloche.sandbox.drivers.local import LocalDriver\n"
        "from cloche.sandbox.settings import Settings\n"
        "async def main():\n"
        "    driver = LocalDriver(Settings(state_dir=Path(sys.argv[1]), run_dir=Path(sys.argv[2])))\n"
        "    for info in await driver.list():\n"
        "        await driver.delete(info.id)\n"
        "    await driver.reap()\n"
        "    await driver.close()\n"
        "asyncio.run(main())\n"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(settings.state_dir), str(settings.run_dir)],
        check=True,
        timeout=60,
    )
