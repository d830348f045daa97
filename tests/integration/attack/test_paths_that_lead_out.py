"""A path inside a sandbox that points out of it never reaches the host, by whichever file operation."""

# ruff: noqa: ASYNC240  # a test may block its own loop

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

import pytest

from cloche.core.errors import ClocheError
from cloche.sandbox.handle import Sandbox
from cloche.sandbox.spec import Command

MAGIC = ("/proc/1/root", "/proc/self/root", "/proc/1/cwd", "/proc/self/cwd", "/proc/1/fd/3", "/proc/self/exe")
ENDLESS = ("/dev/zero", "/dev/urandom", "/dev/ptmx", "/proc/kmsg", "/d/fifo")


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file of the host."""
    path = tmp_path / "secret"
    path.write_text("of the host")
    return path


@pytest.mark.parametrize("link", MAGIC)
@pytest.mark.fault("magic-links")
async def test_magic_links_are_not_followed(hostile: Sandbox, link: str) -> None:
    await hostile.run(Command(shell=f"mkdir /d; ln -s {link} /d/link"))
    for path in (f"{link}/etc/passwd", "/d/link/etc/passwd", "/d/link"):
        with pytest.raises(ClocheError):
            await hostile.read_file(path)
        with pytest.raises(ClocheError):
            await hostile.list_dir(path)
    with pytest.raises(ClocheError):
        await hostile.write_file("/d/link/tmp/written", b"x")


@pytest.mark.fault("paths-that-lead-out")
async def test_links_and_dots_end_at_the_root_of_the_sandbox(hostile: Sandbox, secret: Path) -> None:
    await hostile.run(Command(shell=f"ln -s {'../' * 20}{secret} /link; ln -s {secret.parent} /folder"))
    for path in ("/link", f"/{'../' * 20}{secret}", f"/folder/{secret.name}"):
        with pytest.raises(ClocheError):
            await hostile.read_file(path)
    await hostile.write_file("/link", b"x")  # the link itself is replaced
    with pytest.raises(ClocheError):
        await hostile.write_file(f"/folder/{secret.name}", b"x")
    assert secret.read_text() == "of the host"
    assert list(secret.parent.iterdir()) == [secret]


@pytest.mark.fault("endless-files")
async def test_what_blocks_or_never_ends_is_no_file(hostile: Sandbox) -> None:
    await hostile.run(Command(shell="mkdir /d; mkfifo /d/fifo"))
    for path in ENDLESS:
        with pytest.raises(ClocheError):
            await hostile.read_file(path)


async def test_a_download_brings_no_links_and_any_name(hostile: Sandbox, tmp_path: Path) -> None:
    await hostile.run(
        Command(
            shell="mkdir /d; cd /d; ln -s / out; ln -s /proc/self/environ env; mkfifo pipe;"
            " ln /etc/passwd hard; printf x > 'new\nline'; printf y > $(printf '\\377\\376'); chmod 4755 hard"
        )
    )
    skipped = await hostile.download("/d", tmp_path / "got")
    assert sorted(info.name for info in skipped) == ["env", "out", "pipe"]
    assert sorted(os.fsencode(path.name) for path in (tmp_path / "got").iterdir()) == [
        b"hard",
        b"new\nline",
        b"\xff\xfe",
    ]
    assert (tmp_path / "got" / "hard").stat().st_mode & 0o7000 == 0


@pytest.mark.fault("folder-swapped-for-a-link")
async def test_a_folder_that_turns_into_a_link_during_a_download(hostile: Sandbox, tmp_path: Path) -> None:
    swapping = await hostile.start(
        Command(
            shell="mkdir -p /R/x; ln -s /etc /R/y; echo q > /R/x/f; echo on; cd /R;"
            " while :; do mv x z; mv y x; mv x y; mv z x; done"
        )
    )
    await anext(swapping.output())
    for _ in range(40):
        target = tmp_path / "got"
        with contextlib.suppress(ClocheError):  # something went while it was fetched
            await hostile.download("/R", target)
        links = [path for path in target.rglob("*") if path.is_symlink()]
        assert links == []
        shutil.rmtree(target, ignore_errors=True)
    await swapping.cancel()
