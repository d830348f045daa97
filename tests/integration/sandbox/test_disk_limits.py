"""Disk limits hold where they are offered, and are refused by name where they are not."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from cloche.core.errors import InfraError, InvalidInput, PlanRefused
from cloche.sandbox.driver import Capability
from cloche.sandbox.drivers.local import LocalDriver
from cloche.sandbox.handle import Sandbox
from cloche.sandbox.native import store, store_copy
from cloche.sandbox.settings import Settings
from cloche.sandbox.spec import Command, PreparedImage, Resources, SandboxSpec
from cloche.testing.sandboxes import is_clean, make_busybox_image, stop_spawner

MIB = 1 << 20
LIMITED = SandboxSpec(resources=Resources(disk_bytes=24 * MIB))


@pytest.fixture(scope="module")
def made_store() -> Iterator[Settings]:
    """An installation whose state folder is a btrfs of our own making."""
    base = Path(tempfile.mkdtemp(prefix="clt-", dir="/var/tmp"))
    own = Settings(state_dir=base / "s", run_dir=base / "r")
    try:
        store.make_store(own, 1 << 30)
        yield own
    finally:
        if store.backing_file(own).exists():
            store.remove_store(own)
        shutil.rmtree(base)


@pytest_asyncio.fixture
async def btrfs(made_store: Settings) -> AsyncIterator[LocalDriver]:
    local = LocalDriver(made_store)
    yield local
    await local.close()
    await stop_spawner(made_store)
    assert is_clean(made_store) == []
    assert list(made_store.uppers_dir.iterdir()) == []


@pytest.fixture
def image(made_store: Settings) -> PreparedImage:
    return make_busybox_image(made_store)


@pytest_asyncio.fixture
async def memory(
    driver: LocalDriver, busybox_image: PreparedImage, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Sandbox]:
    monkeypatch.setenv("CLOCHE_DISK_LIMIT", "tmpfs")
    async with await driver.create(LIMITED, busybox_image) as sandbox:
        yield sandbox


async def _sh(sandbox: Sandbox, line: str) -> str:
    done = await sandbox.run(Command(shell=line))
    return done.stdout.text + done.stderr.text


async def _is_held(sandbox: Sandbox, says: str) -> None:
    """Fill it, see that it is full, and that it works again once there is room."""
    assert says in await _sh(sandbox, "dd if=/dev/zero of=/big bs=1M count=100")
    written = int(await _sh(sandbox, "stat -c %s /big"))
    assert 16 * MIB < written <= 24 * MIB
    with pytest.raises(InfraError) as caught:
        await sandbox.write_file("/more", bytes(2 * MIB))
    assert caught.value.code == "infra/disk_full"
    assert await _sh(sandbox, "rm /big; sync; echo fine >/again; cat /again") == "fine\n"


@pytest.mark.fault("disk-limit-reached")
async def test_a_limit_on_btrfs_holds(btrfs: LocalDriver, image: PreparedImage) -> None:
    assert Capability.DISK_LIMIT in btrfs.capabilities()
    async with (
        await btrfs.create(LIMITED, image) as sandbox,
        await btrfs.create(SandboxSpec(), image) as free,
    ):
        await _is_held(sandbox, "Disk quota exceeded")
        assert "100+0 records out" in await _sh(free, "dd if=/dev/zero of=/w bs=1M count=100")


async def test_holes_do_not_count_and_their_filling_does(btrfs: LocalDriver, image: PreparedImage) -> None:
    async with await btrfs.create(LIMITED, image) as sandbox:
        assert await _sh(sandbox, "truncate -s 10G /w && stat -c %s /w") == "10737418240\n"
        found = await _sh(sandbox, "dd if=/dev/zero of=/w bs=1M count=100 conv=notrunc")
        assert "Disk quota exceeded" in found


BOMB = "mkdir /d; cd /d; i=0; while touch $i-{} 2>/dev/null; do i=$((i+1)); done; echo $i"


@pytest.mark.fault("inode-bomb")
async def test_an_inode_bomb_is_held_on_btrfs(btrfs: LocalDriver, image: PreparedImage) -> None:
    spec = SandboxSpec(resources=Resources(disk_bytes=2 * MIB))
    async with await btrfs.create(spec, image) as sandbox:
        made = int(await _sh(sandbox, BOMB.format("x" * 200)))
        assert 100 < made < 10_000


async def test_forks_on_btrfs_share_blocks_and_keep_their_limit(
    btrfs: LocalDriver, image: PreparedImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("copied, not cloned")

    monkeypatch.setattr(store_copy, "_copy_extents", never)
    async with await btrfs.create(LIMITED, image) as sandbox:
        await _sh(sandbox, "head -c 3000000 /dev/urandom >/w; : >/empty")
        monkeypatch.setattr(
            store_copy, "_copy_extents", lambda *_: None
        )  # what is empty has nothing to clone
        (fork,) = await btrfs.fork(sandbox.id, [SandboxSpec(resources=LIMITED.resources)])
        async with fork:
            assert await _sh(fork, "sha256sum /w") == await _sh(sandbox, "sha256sum /w")
            await _is_held(fork, "Disk quota exceeded")


@pytest.mark.fault("disk-limit-in-memory")
async def test_a_limit_in_memory_holds_where_it_was_asked_for(driver: LocalDriver, memory: Sandbox) -> None:
    assert Capability.DISK_LIMIT in driver.capabilities()
    await _is_held(memory, "No space left on device")
    assert "24.0M" in await _sh(memory, "df -h /")
    made = int(await _sh(memory, BOMB.format("")))
    assert made <= 24 * MIB // 4096
    for act in (driver.diff(memory.id), driver.snapshot(memory.id, "x:1"), driver.fork(memory.id, [])):
        with pytest.raises(PlanRefused):
            await act


async def test_a_layer_in_memory_looks_like_the_image(driver: LocalDriver, memory: Sandbox) -> None:
    assert await _sh(
        memory, "stat -c '%u:%g %a' / /etc; id -u; echo x >/etc/new; chown 1000 /etc/new; cat /etc/new"
    ) == ("0:0 755\n0:0 755\n0\nx\n")


@pytest.mark.fault("disk-limit-not-enforceable")
async def test_a_limit_that_nothing_enforces_is_refused(
    driver: LocalDriver, busybox_image: PreparedImage
) -> None:
    assert Capability.DISK_LIMIT not in driver.capabilities()
    with pytest.raises(PlanRefused, match="disk_limit"):
        await driver.create(LIMITED, busybox_image)


@pytest.mark.fault("store-in-the-way")
async def test_a_store_is_made_over_nothing_that_is_there(
    settings: Settings, btrfs: LocalDriver, made_store: Settings, busybox_image: PreparedImage
) -> None:
    with pytest.raises(InvalidInput, match="not empty"):
        store.make_store(settings, 1 << 30)
    with pytest.raises(InvalidInput, match="there already"):
        store.make_store(made_store, 1 << 30)
    with pytest.raises(InvalidInput, match="at least"):
        store.make_store(made_store, 1)
    with pytest.raises(InvalidInput, match="mount already"):
        store.mount_store(made_store)
