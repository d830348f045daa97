"""Snapshots and forks: what they hold, that they are independent, and that nothing is lost or left."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from cloche.core.errors import InvalidInput, NotFound
from cloche.sandbox.driver import SandboxState
from cloche.sandbox.drivers.local import LocalDriver
from cloche.sandbox.handle import Sandbox
from cloche.sandbox.images.digest import tree_digest
from cloche.sandbox.images.disk import waiting_lock
from cloche.sandbox.images.gc import gc
from cloche.sandbox.images.store import ImageStore
from cloche.sandbox.native import store_copy, store_snapshot
from cloche.sandbox.settings import Settings
from cloche.sandbox.spec import Command, PreparedImage, SandboxSpec


@pytest.fixture
def store(settings: Settings) -> ImageStore:
    return ImageStore(settings)


@pytest_asyncio.fixture
async def sandbox(driver: LocalDriver, busybox_image: PreparedImage) -> AsyncIterator[Sandbox]:
    async with await driver.create(SandboxSpec(), busybox_image) as made:
        yield made


@pytest.fixture(autouse=True)
def only_the_first_layer_is_left(settings: Settings, busybox_image: PreparedImage) -> Iterator[None]:
    """A fork's layer goes with its last sandbox, a snapshot's with its name."""
    yield
    store = ImageStore(settings)
    assert [one.name for one in store.records() if one.origin == "fork"] == []
    for record in store.records():
        store.remove(record.name)
    left = {path.name for path in settings.layers_dir.iterdir()}
    assert left <= {path.name for path in busybox_image.layers}


async def sh(sandbox: Sandbox, line: str) -> str:
    done = await sandbox.run(Command(shell=line))
    assert done.ok, done.stderr.text
    return done.stdout.text


STATE = (
    "mkdir -p /w/d; echo one >/w/f; ln /w/f /w/hard; ln -s f /w/soft; mkfifo /w/pipe; chmod 4755 /w/f;"
    "chown 1000:1000 /w/f; dd if=/dev/zero of=/w/sparse bs=1 count=1 seek=104857600 2>/dev/null;"
    "rm -r /opt; rm -r /usr; mkdir /usr; echo x >/usr/new; echo more >>/etc/group;"
    "touch -d '2001-02-03 04:05:06' /w/d"
)
LOOK = (
    "find / -xdev ! -path '/proc*' ! -path '/sys*' ! -path '/dev*' ! -name hosts ! -name hostname"
    " ! -name resolv.conf | sort | xargs stat -c '%n %F %s %a %u:%g %h';"
    "stat -c %Y /w/d; stat -c '%b' /w/sparse; cat /w/f /etc/group /usr/new; readlink /w/soft"
)


async def test_a_snapshot_is_the_file_system_as_it_was(
    driver: LocalDriver, sandbox: Sandbox, store: ImageStore
) -> None:
    await sh(sandbox, STATE)
    os.setxattr(store.settings.uppers_dir / sandbox.id / "upper/w/f", "user.note", b"kept")
    before = await sh(sandbox, LOOK)
    image = await driver.snapshot(sandbox.id, "team/state:1")
    assert (image.name, image.origin) == ("team/state:1", "snapshot")
    assert store.resolve(image.digest) == image
    assert os.getxattr(image.layers[-1] / "w/f", "user.note") == b"kept"
    await sh(sandbox, "echo later >/w/f; echo other >/w/new")
    async with await driver.create(SandboxSpec(), image) as copy:
        assert await sh(copy, LOOK) == before
        assert [change.path for change in await driver.diff(copy.id)] == []
    assert await sh(sandbox, "cat /w/f") == "later\n"


async def test_the_digest_is_that_of_the_content(
    driver: LocalDriver, sandbox: Sandbox, store: ImageStore
) -> None:
    await sh(sandbox, "echo 1 >/w")
    first = await driver.snapshot(sandbox.id, "")
    again = await driver.snapshot(sandbox.id, "other:1")
    assert (first.digest, first.layers) == (again.digest, again.layers)
    assert first.name == f"snapshot/{first.digest[7:39]}:latest"
    manifest = store.manifest(first.digest)
    assert manifest is not None
    assert manifest.layers[-1].digest == tree_digest(first.layers[-1]).digest
    await sh(sandbox, "echo 2 >/w")
    assert (await driver.snapshot(sandbox.id, "other:2")).digest != first.digest


async def test_a_hundred_forks_are_independent(driver: LocalDriver, sandbox: Sandbox) -> None:
    await sh(sandbox, f"{STATE}; head -c 300000 /dev/urandom >/w/data")
    wanted = await sh(sandbox, "find /w /usr -type f ! -name sparse | sort | xargs sha256sum | sha256sum")
    running = await sandbox.start(Command(shell="i=0; while :; do echo $i >/w/beat; i=$((i+1)); done"))
    await sh(sandbox, "while [ ! -s /w/beat ]; do :; done")
    forks = await driver.fork(sandbox.id, [SandboxSpec() for _ in range(100)])
    try:
        assert len({fork.id for fork in forks}) == 100
        beats = set()
        for number, fork in enumerate(forks):
            beats.add(await sh(fork, "cat /w/beat; rm /w/beat"))
            seen = await sh(fork, "find /w /usr -type f ! -name sparse | sort | xargs sha256sum | sha256sum")
            assert seen == wanted
            await sh(fork, f"echo {number} >/w/f; rm /w/hard; echo {number} >/only")
        for number, fork in enumerate(forks):
            assert await sh(fork, "cat /w/f /only; ls /w/hard 2>&1 || true") == (
                f"{number}\n{number}\nls: /w/hard: No such file or directory\n"
            )
        assert len(beats) == 1  # all are the same moment
        assert (
            await sh(sandbox, "cat /w/hard; a=$(cat /w/beat); while [ $(cat /w/beat) = $a ]; do :; done")
            == "one\n"
        )
        assert not await sandbox.exists("/only")
    finally:
        await running.cancel()
        await asyncio.gather(*(fork.delete() for fork in forks))


async def test_a_paused_one_is_forked_and_stays_paused(driver: LocalDriver, sandbox: Sandbox) -> None:
    await sh(sandbox, "echo here >/w")
    await driver.pause(sandbox.id)
    (fork,) = await driver.fork(sandbox.id, [SandboxSpec()])
    async with fork:
        assert await sh(fork, "cat /w") == "here\n"
    states = {info.id: info.state for info in await driver.list()}
    assert states[sandbox.id] is SandboxState.PAUSED
    await driver.resume(sandbox.id)
    assert await sh(sandbox, "cat /w") == "here\n"


async def test_a_file_that_was_deleted_and_is_open_stays_with_the_source(
    driver: LocalDriver, sandbox: Sandbox
) -> None:
    script = (
        "exec 3<>/w; echo kept >&3; rm /w; touch /ready; while [ ! -e /go ]; do :; done; cat /proc/self/fd/3"
    )
    process = await sandbox.start(Command(shell=script))
    await sh(sandbox, "while [ ! -e /ready ]; do :; done")
    (fork,) = await driver.fork(sandbox.id, [SandboxSpec()])
    async with fork:
        assert not await fork.exists("/w")
    await sh(sandbox, "touch /go")
    assert (await process.wait()).stdout.text == "kept\n"


async def test_a_fork_of_a_fork_of_a_fork_stays_within_the_kernels_limits(
    driver: LocalDriver, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_snapshot, "CHAIN_MAX", 3)
    expected: dict[str, str] = {}
    chain = [sandbox]
    try:
        for step in range(8):
            here = chain[-1]
            await sh(
                here, f"mkdir -p /w/d{step % 2}; echo {step} >/w/d{step % 2}/f{step}; echo {step} >/w/last"
            )
            expected[f"/w/d{step % 2}/f{step}"] = f"{step}\n"
            if step == 3:
                await sh(here, "rm -r /w/d0 /opt")
                expected = {path: text for path, text in expected.items() if "/d0/" not in path}
            if step == 5:
                await sh(here, "rm /w/d1/f1; rm -r /usr; mkdir -p /usr/again")
                del expected["/w/d1/f1"]
            chain += await driver.fork(here.id, [SandboxSpec()])
        last = chain[-1]
        found = (await sh(last, "find /w -type f ! -name last")).split()
        assert {path: await sh(last, f"cat {path}") for path in found} == expected
        assert await sh(last, "cat /w/last; ls /usr; ls -d /opt 2>/dev/null || true") == "7\nagain\n"
        assert max(len(_layers(driver, one)) for one in chain) <= 1 + 3
    finally:
        for one in chain[1:]:
            await one.delete()


def _layers(driver: LocalDriver, sandbox: Sandbox) -> tuple[Path, ...]:
    record = driver._folder(sandbox.id).record
    assert record is not None
    return record.image.layers


@pytest.mark.fault("fork-fails-in-the-middle")
async def test_a_fork_that_fails_leaves_nothing_and_the_source_goes_on(
    driver: LocalDriver, sandbox: Sandbox, store: ImageStore
) -> None:
    await sh(sandbox, "echo x >/w")
    specs = [SandboxSpec() for _ in range(5)]
    with pytest.raises(InvalidInput):
        await driver.fork(sandbox.id, [*specs, SandboxSpec(id=specs[0].id)])
    assert [info.id for info in await driver.list()] == [sandbox.id]
    assert await driver.leftovers() == []
    assert not list(store.settings.layers_dir.glob("[0-9a-f]" * 32))
    assert await sh(sandbox, "cat /w") == "x\n"


@pytest.mark.fault("snapshot-on-a-full-disk")
async def test_a_copy_that_fails_lets_the_source_go_and_leaves_nothing(
    driver: LocalDriver, sandbox: Sandbox, store: ImageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    await sh(sandbox, "echo x >/w")
    monkeypatch.setattr(store_copy, "_copy_extents", full)
    with pytest.raises(Exception, match="no space left"):
        await driver.snapshot(sandbox.id, "never:1")
    with pytest.raises(NotFound):
        store.resolve("never:1")
    assert not list((store.settings.state_dir / "staging").iterdir())
    assert await sh(sandbox, "cat /w") == "x\n"


@pytest.mark.fault("copier-dies")
async def test_a_copier_that_dies_does_not_leave_its_sandbox_frozen(
    driver: LocalDriver, sandbox: Sandbox, settings: Settings
) -> None:
    mark = settings.sandboxes_dir / sandbox.id / "copying"
    await driver.pause(sandbox.id)
    mark.write_bytes(b"f")  # what one leaves that was killed while it copied
    again = await driver.attach(sandbox.id)
    assert await sh(again, "echo goes on") == "goes on\n"
    await again.close()
    await driver.pause(sandbox.id)
    mark.write_bytes(b"f")
    await driver.reap()
    assert await sh(sandbox, "echo goes on") == "goes on\n"


async def test_nobody_comes_between_a_copy_and_its_pause(
    driver: LocalDriver, sandbox: Sandbox, settings: Settings
) -> None:
    mark = settings.sandboxes_dir / sandbox.id / "copying"
    with mark.open("wb", buffering=0) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        held.write(b"p")
        waiting = [
            asyncio.ensure_future(driver.pause(sandbox.id)),
            asyncio.ensure_future(driver.attach(sandbox.id)),
        ]
        done, _ = await asyncio.wait(waiting, timeout=0.1)
        assert not done
    await waiting[0]
    results = await asyncio.gather(waiting[1], return_exceptions=True)
    if isinstance(results[0], Sandbox):
        await results[0].close()
    await driver.resume(sandbox.id)


async def test_two_copies_at_once_and_a_deleted_source(
    driver: LocalDriver, sandbox: Sandbox, busybox_image: PreparedImage
) -> None:
    await sh(sandbox, "echo x >/w")
    images = await asyncio.gather(*(driver.snapshot(sandbox.id, f"both:{at}") for at in range(4)))
    assert len({image.digest for image in images}) == 1
    assert await sh(sandbox, "cat /w") == "x\n"
    with pytest.raises(NotFound):
        await driver.snapshot("nothing", "x:1")
    with pytest.raises(InvalidInput):
        await driver.snapshot(sandbox.id, "No Name")


async def test_gc_keeps_what_forks_and_live_snapshots_need(
    driver: LocalDriver, sandbox: Sandbox, store: ImageStore
) -> None:
    await sh(sandbox, "echo x >/w")
    image = await driver.snapshot(sandbox.id, "held:1")
    async with await driver.create(SandboxSpec(), image) as copy:
        (fork,) = await driver.fork(copy.id, [SandboxSpec()])
        async with fork:
            assert gc(store, 0).removed == ()
            assert await sh(fork, "cat /w") == "x\n"
    assert gc(store, 0).removed == ("held:1",)


async def test_a_forks_layer_that_could_not_go_goes_with_the_next_delete(
    driver: LocalDriver, sandbox: Sandbox, store: ImageStore, busybox_image: PreparedImage
) -> None:
    (fork,) = await driver.fork(sandbox.id, [SandboxSpec()])
    async with waiting_lock(store.root / "locks" / "builds", shared=True):  # a build stands on layers
        await fork.delete()
        assert len(list(store.settings.layers_dir.iterdir())) == 2
    async with await driver.create(SandboxSpec(), busybox_image):
        pass
    assert len(list(store.settings.layers_dir.iterdir())) == 1


@pytest.mark.fault("snapshot-of-a-hostile-tree")
async def test_links_and_names_of_a_workload_lead_nowhere(
    driver: LocalDriver, sandbox: Sandbox, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("secret")
    await sh(
        sandbox, f"rm -r /opt; ln -s {tmp_path} /opt; ln -s {tmp_path}/secret /home/s; echo .. >/home/..."
    )
    before = hashlib.sha256((tmp_path / "secret").read_bytes()).hexdigest()
    image = await driver.snapshot(sandbox.id, "hostile:1")
    assert (image.layers[-1] / "home/s").is_symlink()
    assert not any(path.name == "secret" for path in image.layers[-1].rglob("*"))
    assert hashlib.sha256((tmp_path / "secret").read_bytes()).hexdigest() == before
