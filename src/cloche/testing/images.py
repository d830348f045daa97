"""pytest fixtures for images: a store of its own for each test, a tiny base image, merged layers to look at.

Must never touch the machine's own store.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from cloche.core.errors import EnvironmentUnusable
from cloche.sandbox.images import ImageStore
from cloche.sandbox.settings import Settings
from cloche.sandbox.spec import ImageConfig, PreparedImage

BUSYBOX = shutil.which("busybox")
APPLETS = (
    "sh",
    "ls",
    "cat",
    "echo",
    "mkdir",
    "rm",
    "touch",
    "chmod",
    "chown",
    "mv",
    "cp",
    "sleep",
    "env",
    "mknod",
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ImageStore]:
    """A store that is gone after the test, and with it everything unpacked and built."""
    root = tmp_path / "store"
    yield ImageStore(Settings(state_dir=root / "state", run_dir=root / "run"))
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    """A root file system of one static program, 2 MB."""
    if BUSYBOX is None:
        raise EnvironmentUnusable("busybox-static is not installed", hint="apt-get install busybox-static")
    root = tmp_path / "rootfs"
    for folder in ("bin", "etc", "tmp", "root", "usr/share/doc", "home"):
        (root / folder).mkdir(parents=True)
    (root / "tmp").chmod(0o1777)
    shutil.copy(BUSYBOX, root / "bin" / "busybox")
    for applet in APPLETS:
        (root / "bin" / applet).symlink_to("busybox")
    (root / "etc" / "passwd").write_text("root:x:0:0::/root:/bin/sh\njoe:x:1000:1000::/home:/bin/sh\n")
    (root / "etc" / "group").write_text("root:x:0:\njoe:x:1000:\n")
    (root / "etc" / "motd").write_text("welcome\n")
    (root / "usr" / "share" / "doc" / "old").write_text("old\n")
    return root


@pytest.fixture
def base(store: ImageStore, rootfs: Path) -> PreparedImage:
    """The tiny root file system as image ``base:1``, with a configuration that is awkward to quote."""
    config = ImageConfig(env={"PATH": "/bin", "BASE": 'a $HOME "b" \\c'}, cmd=("sh",))
    return store.import_dir(rootfs, "base:1", config=config)


@pytest.fixture
def merged(tmp_path: Path) -> Callable[[PreparedImage], AbstractContextManager[Path]]:
    """Show an image's layers as a sandbox will see them: merged by the kernel's overlay."""

    @contextmanager
    def show(image: PreparedImage) -> Iterator[Path]:
        place = tmp_path / "merged"
        empty = tmp_path / "empty"
        place.mkdir(exist_ok=True)
        empty.mkdir(exist_ok=True)
        lower = ":".join([str(empty), *(str(layer) for layer in reversed(image.layers))])
        subprocess.run(["mount", "-t", "overlay", "-o", f"ro,lowerdir={lower}", "x", place], check=True)
        try:
            yield place
        finally:
            subprocess.run(["umount", place], check=True)

    return show
