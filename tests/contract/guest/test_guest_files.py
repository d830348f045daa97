"""Files inside: contents both ways, atomically; folders; and paths that cannot lead out."""

# ruff: noqa: ASYNC240  # a test may block its own loop

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cloche.core.errors import InfraError, InvalidInput, NotFound
from cloche.sandbox.guest.files import READ_BYTES_MAX
from cloche.sandbox.handle import FileKind, Sandbox
from cloche.sandbox.spec import Command


@pytest.fixture
async def sandbox(lone) -> Sandbox:
    return await lone.sandbox()


@pytest.mark.parametrize("size", [0, 1, 32767, 32768, 32769, 262144, 262145, 3_000_001])
async def test_what_is_written_is_read(sandbox: Sandbox, tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    path = str(tmp_path / "new" / "folders" / "file")
    await sandbox.write_file(path, data)
    assert Path(path).read_bytes() == data
    assert await sandbox.read_file(path) == data


async def test_ranges(sandbox: Sandbox, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    assert await sandbox.read_file(str(path), offset=3) == b"3456789"
    assert await sandbox.read_file(str(path), offset=3, length=4) == b"3456"
    assert await sandbox.read_file(str(path), length=0) == b""
    assert await sandbox.read_file(str(path), offset=100) == b""


async def test_mode_and_owner(sandbox: Sandbox, tmp_path: Path) -> None:
    await sandbox.write_file(str(tmp_path / "a" / "b"), b"x", mode=0o4751, user="nobody:daemon")
    info = await sandbox.stat(str(tmp_path / "a" / "b"))
    assert (info.kind, info.mode, info.uid, info.gid, info.size_bytes) == (FileKind.FILE, 0o4751, 65534, 1, 1)
    assert (await sandbox.stat(str(tmp_path / "a"))).uid == 65534
    await sandbox.write_file(str(tmp_path / "a" / "b"), b"y")
    assert (await sandbox.stat(str(tmp_path / "a" / "b"))).uid == os.getuid()


async def test_a_write_replaces_at_once(sandbox: Sandbox, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    held = path.open("rb")

    async def pieces() -> AsyncIterator[bytes]:
        yield b"new " * 1000
        await sandbox.ping()
        assert path.read_bytes() == b"old"
        assert len(list(tmp_path.iterdir())) == 2
        yield b"end"

    await sandbox.write_stream(str(path), pieces())
    assert path.read_bytes() == b"new " * 1000 + b"end"
    assert held.read() == b"old"
    held.close()
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


@pytest.mark.fault("upload-breaks-off")
async def test_a_write_that_fails_changes_nothing(sandbox: Sandbox, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    async def pieces() -> AsyncIterator[bytes]:
        yield b"new"
        await sandbox.ping()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await sandbox.write_stream(str(path), pieces())
    await sandbox.ping()
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


async def test_a_client_that_leaves_in_mid_write_changes_nothing(lone, tmp_path: Path) -> None:
    sandbox, other = await lone.sandbox(), await lone.sandbox()
    started = asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        yield b"half"
        await sandbox.ping()
        started.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(sandbox.write_stream(str(tmp_path / "file"), pieces()))
    await started.wait()
    await sandbox.close()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await other.ping()
    assert list(tmp_path.iterdir()) == []


async def test_a_link_is_replaced_not_followed(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"kept")
    (tmp_path / "link").symlink_to("target")
    await sandbox.write_file(str(tmp_path / "link"), b"new")
    assert (tmp_path / "target").read_bytes() == b"kept"
    assert (tmp_path / "link").read_bytes() == b"new"
    assert not (tmp_path / "link").is_symlink()


async def test_stat_tells_links_and_kinds(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("folder")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    link = await sandbox.stat(str(tmp_path / "link"), follow=False)
    assert (link.kind, link.target) == (FileKind.SYMLINK, "folder")
    assert (await sandbox.stat(str(tmp_path / "link"))).is_folder
    assert (await sandbox.stat(str(tmp_path / "fifo"))).kind is FileKind.OTHER
    assert abs((await sandbox.stat(str(tmp_path / "folder"))).modified_at - tmp_path.stat().st_mtime) < 60
    assert (await sandbox.stat("/")).is_folder


async def test_a_fifo_is_not_read(sandbox: Sandbox, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(InvalidInput):
        await sandbox.read_file(str(tmp_path / "fifo"))


async def test_a_listing_of_many(sandbox: Sandbox, tmp_path: Path) -> None:
    names = {f"{n:04d}-\u00e9" for n in range(2000)} | {os.fsdecode(b"\xff\xfe")}
    for name in names:
        (tmp_path / name).touch()
    found = await sandbox.list_dir(str(tmp_path))
    assert {info.name for info in found} == names
    assert all(info.kind is FileKind.FILE for info in found)


async def test_make_move_remove(sandbox: Sandbox, tmp_path: Path) -> None:
    base = str(tmp_path)
    await sandbox.make_dir(f"{base}/a/b/c", mode=0o700, user="nobody")
    await sandbox.make_dir(f"{base}/a/b/c")
    with pytest.raises(InvalidInput):
        await sandbox.make_dir(f"{base}/a", parents=False)
    assert stat.S_IMODE((tmp_path / "a" / "b" / "c").stat().st_mode) == 0o700
    assert (tmp_path / "a").stat().st_uid == 65534
    await sandbox.move(f"{base}/a/b", f"{base}/moved")
    assert (tmp_path / "moved" / "c").is_dir()
    with pytest.raises(InvalidInput):
        await sandbox.remove(f"{base}/moved")
    await sandbox.remove(f"{base}/moved", recursive=True)
    await sandbox.remove(f"{base}/a")
    assert list(tmp_path.iterdir()) == []
    assert not await sandbox.exists(f"{base}/a")
    assert not await sandbox.exists("/etc/passwd/x")


async def test_removing_does_not_follow_links(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "link").symlink_to("../kept")
    await sandbox.remove(str(tmp_path / "tree"), recursive=True)
    assert (tmp_path / "kept" / "file").exists()
    assert not (tmp_path / "tree").exists()


async def test_removing_a_very_deep_tree(sandbox: Sandbox, tmp_path: Path) -> None:
    script = "mkdir deep; cd deep; i=0; while [ $i -lt 1000 ]; do mkdir d; cd d; touch f; i=$((i+1)); done"
    assert (await sandbox.run(Command(shell=script, cwd=str(tmp_path)))).ok
    await sandbox.remove(str(tmp_path / "deep"), recursive=True)
    assert list(tmp_path.iterdir()) == []


async def test_removing_much_holds_up_nobody(lone, tmp_path: Path) -> None:
    sandbox, other = await lone.sandbox(), await lone.sandbox()
    script = "for d in $(seq 40); do mkdir $d; (cd $d; touch $(seq 500)); done"
    await sandbox.run(Command(shell=f"mkdir tree; cd tree; {script}", cwd=str(tmp_path)))
    removal = asyncio.create_task(sandbox.remove(str(tmp_path / "tree"), recursive=True))
    await asyncio.sleep(0)
    await other.ping()
    await removal
    assert list(tmp_path.iterdir()) == []


async def test_the_root_is_not_removed(sandbox: Sandbox) -> None:
    for path in ("/", "/..", "//", "/usr/.."):
        with pytest.raises(InvalidInput):
            await sandbox.remove(path, recursive=True)


@pytest.mark.fault("path-that-leads-out")
@pytest.mark.parametrize("path", ["/proc/1/root/etc/passwd", "/proc/self/cwd/etc/passwd", "/proc/self/exe"])
async def test_magic_links_are_not_followed(sandbox: Sandbox, path: str) -> None:
    for call in (sandbox.read_file(path), sandbox.write_file(path, b""), sandbox.stat(path)):
        with pytest.raises((InvalidInput, NotFound)):
            await call


async def test_what_is_not_there(sandbox: Sandbox) -> None:
    for call in (
        sandbox.read_file("/no/such"),
        sandbox.stat("/no/such"),
        sandbox.list_dir("/no/such"),
        sandbox.remove("/no/such"),
        sandbox.move("/no/such", "/tmp/x"),
    ):
        with pytest.raises(NotFound, match="/no/such: No such file"):
            await call


async def test_what_is_no_path(sandbox: Sandbox) -> None:
    for path in ("", "a\0b"):
        with pytest.raises(InvalidInput):
            await sandbox.read_file(path)
    with pytest.raises(InvalidInput):
        await sandbox.read_file("/" + "x" * 300)
    with pytest.raises(InvalidInput):
        await sandbox.read_file("/usr")


@pytest.mark.fault("disk-full-inside")
async def test_a_full_disk_is_told_as_such(make_guest, tmp_path: Path) -> None:
    """A file system of one megabyte, mounted in a mount namespace that only the guest has."""
    mount = f'mount -t tmpfs -o size=1m full "{tmp_path}" && exec "$@"'
    guest = make_guest(wrapper=["unshare", "--mount", "sh", "-c", mount, "sh"])
    sandbox = await guest.sandbox()
    with pytest.raises(InfraError, match="No space left") as caught:
        await sandbox.write_file(f"{tmp_path}/file", bytes(3 << 20))
    assert caught.value.code == "infra/disk_full"
    assert await sandbox.list_dir(str(tmp_path)) == []
    done = await sandbox.run(Command(argv=("true",)))
    assert done.ok


@pytest.mark.fault("file-too-large-for-memory")
async def test_a_file_too_large_for_memory_is_refused(sandbox: Sandbox, tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(READ_BYTES_MAX + 1)
    with pytest.raises(InvalidInput, match="larger than 64 MiB"):
        await sandbox.read_file(str(path))
    assert len(await sandbox.read_file(str(path), length=10)) == 10


async def test_files_of_proc_are_read_whole(sandbox: Sandbox) -> None:
    assert b"Name:" in await sandbox.read_file("/proc/self/status")


async def test_a_stream_that_is_left_early(sandbox: Sandbox, tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(bytes(20_000_000))
    stream = sandbox.read_stream(str(path), offset=5)
    assert len(await anext(stream)) > 0
    await stream.aclose()  # type: ignore[attr-defined]
    await sandbox.ping()
