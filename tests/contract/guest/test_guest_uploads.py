"""Whole trees between host and sandbox."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from cloche.core.errors import InvalidInput, NotFound
from cloche.sandbox.handle import FileKind, Sandbox


@pytest.fixture
async def sandbox(lone) -> Sandbox:
    return await lone.sandbox()


def _tree(base: Path) -> Path:
    folder = base / "source"
    (folder / "sub" / "empty").mkdir(parents=True)
    (folder / "run.sh").write_bytes(b"#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "sub" / "data").write_bytes(os.urandom(2_500_000))
    (folder / "sub" / "link").symlink_to("../run.sh")
    (folder / "sub" / os.fsdecode(b"\xff")).write_bytes(b"odd name")
    (folder / "sub").chmod(0o750)
    return folder


async def test_a_folder_goes_in_and_comes_out(sandbox: Sandbox, tmp_path: Path) -> None:
    source, inside, back = _tree(tmp_path), tmp_path / "inside", tmp_path / "back"
    await sandbox.upload(source, str(inside), user="nobody")
    assert stat.S_IMODE((inside / "run.sh").stat().st_mode) == 0o755
    assert stat.S_IMODE((inside / "sub").stat().st_mode) == 0o750
    assert (inside / "sub" / "link").readlink() == Path("../run.sh")
    assert (inside / "sub" / "empty").is_dir()
    assert {path.lstat().st_uid for path in inside.rglob("*")} == {65534}
    skipped = await sandbox.download(str(inside), back)
    assert [(info.name, info.kind) for info in skipped] == [("link", FileKind.SYMLINK)]
    for path in ("run.sh", "sub/data", "sub/\udcff"):
        assert (back / path).read_bytes() == (source / path).read_bytes()
    assert stat.S_IMODE((back / "run.sh").stat().st_mode) == 0o755
    assert (back / "sub" / "empty").is_dir()


async def test_one_file(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"1")
    await sandbox.upload(tmp_path / "one", str(tmp_path / "in" / "two"))
    assert await sandbox.download(str(tmp_path / "in" / "two"), tmp_path / "three") == []
    assert (tmp_path / "three").read_bytes() == b"1"


async def test_uploading_over_what_is_there(sandbox: Sandbox, tmp_path: Path) -> None:
    source = _tree(tmp_path)
    for _ in range(2):
        await sandbox.upload(source, str(tmp_path / "inside"))
    assert (tmp_path / "inside" / "sub" / "link").is_symlink()


async def test_what_is_not_there(sandbox: Sandbox, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        await sandbox.upload(tmp_path / "no", "/tmp/x")
    with pytest.raises(NotFound):
        await sandbox.download("/no/such", tmp_path / "x")


@pytest.mark.fault("download-meets-links")
async def test_a_download_never_follows_a_link(sandbox: Sandbox, tmp_path: Path) -> None:
    """Neither one that is inside, nor one that waits on the host where a file or folder should go."""
    inside, target, outside = tmp_path / "inside", tmp_path / "target", tmp_path / "outside"
    (inside / "folder").mkdir(parents=True)
    (inside / "folder" / "file").write_bytes(b"from inside")
    (inside / "passwd").symlink_to("/etc/passwd")
    os.mkfifo(inside / "fifo")
    outside.mkdir()
    skipped = await sandbox.download(str(inside), target)
    assert sorted(info.name for info in skipped) == ["fifo", "passwd"]
    assert not (target / "passwd").exists()
    (target / "folder" / "file").unlink()
    (target / "folder").rmdir()
    (target / "folder").symlink_to(outside)
    with pytest.raises(InvalidInput, match="in the way"):
        await sandbox.download(str(inside), target)
    (target / "folder").unlink()
    (target / "folder").mkdir()
    (target / "folder" / "file").symlink_to(outside / "file")
    with pytest.raises(InvalidInput, match="cannot be written"):
        await sandbox.download(str(inside), target)
    assert list(outside.iterdir()) == []


async def test_no_set_uid_on_the_host(sandbox: Sandbox, tmp_path: Path) -> None:
    await sandbox.write_file(str(tmp_path / "suid"), b"x", mode=0o6755)
    await sandbox.download(str(tmp_path / "suid"), tmp_path / "got")
    assert stat.S_IMODE((tmp_path / "got").stat().st_mode) == 0o755
