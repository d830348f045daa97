"""What processes share on disk: atomic files, locks, and folders for unfinished work."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import stat
import tarfile
from pathlib import Path

import pytest

from cloche.sandbox.images import ImageStore
from cloche.sandbox.images.disk import (
    Staging,
    locked,
    private_folder,
    read_json,
    try_locked,
    waiting_lock,
    write_json,
)

FORK = multiprocessing.get_context("fork")


def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    assert read_json(path) is None
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"a": [1] * 100_000, "b": object()})
    assert read_json(path) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_is_made_private_again(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    private_folder(folder)
    folder.chmod(0o755)
    private_folder(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_lock_is_held_by_one_or_shared_by_many(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locked(path):
        with try_locked(path) as had:
            assert not had
        with try_locked(path, shared=True) as had:
            assert not had
    with locked(path, shared=True):
        with try_locked(path, shared=True) as had:
            assert had
        with try_locked(path) as had:
            assert not had
    with try_locked(path) as had:
        assert had


async def test_waiting_for_a_lock_can_be_cancelled_and_leaves_it_free(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    order: list[str] = []

    async def take(name: str) -> None:
        async with waiting_lock(path):
            order.append(name)

    with locked(path):
        first = asyncio.ensure_future(take("first"))
        second = asyncio.ensure_future(take("second"))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert order == []
    await second
    assert order == ["second"]
    with try_locked(path) as had:
        assert had


def _die_with_a_folder(parent: Path) -> None:
    with Staging(parent, "mine-").folder("work") as place:
        (place / "file").write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)


def test_only_what_dead_processes_left_is_swept(tmp_path: Path) -> None:
    parent = tmp_path / "staging"
    staging = Staging(parent, "mine-")
    assert staging.sweep() == []
    with staging.folder("work") as alive:
        worker = FORK.Process(target=_die_with_a_folder, args=(parent,))
        worker.start()
        worker.join()
        (parent / "of-somebody-else").mkdir()
        dead = {path for path in parent.iterdir() if path.name.startswith("mine-")} - {alive}
        assert len(dead) == 1
        assert set(staging.sweep()) == dead
        assert alive.is_dir()
    assert [path.name for path in parent.iterdir()] == ["of-somebody-else"]


def test_a_shared_parent_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    with Staging(tmp_path, "mine-", shared=True).folder("work") as place:
        assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o1777


def _die_while_importing(store: ImageStore, source: Path) -> None:
    seen = iter(range(5))

    def check() -> None:
        if next(seen, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    store.import_tar(source, "half", check=check)


@pytest.mark.fault("importer-killed")
def test_a_killed_import_leaves_nothing_that_the_next_does_not_remove(
    store: ImageStore, rootfs: Path, tmp_path: Path
) -> None:
    archive = tmp_path / "root.tar"
    with tarfile.open(archive, "w") as file:
        file.add(rootfs, ".")
    worker = FORK.Process(target=_die_while_importing, args=(store, archive))
    worker.start()
    worker.join()
    assert worker.exitcode == -signal.SIGKILL
    assert store.list() == ()
    assert len(list((store.settings.state_dir / "staging").iterdir())) == 1
    image = store.import_tar(archive, "whole")
    assert list((store.settings.state_dir / "staging").iterdir()) == []
    assert list(store.settings.layers_dir.iterdir()) == [image.layers[0]]


async def test_a_folder_aside_is_gone_also_when_its_user_is_cancelled_at_any_point(tmp_path: Path) -> None:
    staging = Staging(tmp_path / "staging")

    async def use() -> None:
        async with staging.folder_aside("work") as place:
            (place / "file").touch()
            await asyncio.Event().wait()

    for turns in range(12):
        task = asyncio.ensure_future(use())
        for _ in range(turns):
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert list((tmp_path / "staging").glob("*")) == []
