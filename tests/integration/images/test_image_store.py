"""Names, digests, removal, and several processes in one store."""

from __future__ import annotations

import json
import multiprocessing
import stat
import tarfile
from pathlib import Path

import pytest

from cloche.core.errors import ImageError, InvalidInput, NotFound
from cloche.sandbox.images import ImageStore, ensure_image, prepare
from cloche.sandbox.spec import ImageConfig, PreparedImage


def make(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "file").write_text(text)
    return folder


def record_sandbox(store: ImageStore, name: str, digest: str) -> Path:
    folder = store.settings.sandboxes_dir / name
    folder.mkdir(parents=True)
    (folder / "record.json").write_text(json.dumps({"id": name, "image": {"digest": digest}}))
    return folder


def layers(store: ImageStore) -> int:
    return len(list(store.settings.layers_dir.iterdir()))


def test_an_image_is_found_by_every_spelling_and_by_digest(store: ImageStore, base: PreparedImage) -> None:
    for name in ("base:1", "localhost/base:1", "docker.io/library/base:1", base.digest, base.digest[7:19]):
        assert store.resolve(name) == base
    assert base.layers[0].is_relative_to(store.settings.state_dir)
    assert base.config.env["BASE"] == 'a $HOME "b" \\c'


async def test_the_runner_asks_for_images_by_name(store: ImageStore, base: PreparedImage) -> None:
    assert await ensure_image(store, "base:1") == base
    assert await prepare(store, "base:1") == base


def test_only_a_bootstrapped_debian_answers_to_its_other_names(store: ImageStore, rootfs: Path) -> None:
    image = store.import_dir(rootfs, "debian:12")
    with pytest.raises(NotFound):
        store.resolve("debian:12-slim")
    store.import_tar(_tar(rootfs), "debian:12", origin="bootstrapped")
    assert store.resolve("debian:bookworm-slim").digest == image.digest
    assert store.resolve("debian:bookworm-slim").origin == "bootstrapped"


def _tar(root: Path) -> Path:
    archive = root.parent / "root.tar"
    with tarfile.open(archive, "w") as file:
        file.add(root, ".")
    return archive


@pytest.mark.fault("image-not-here")
def test_an_image_that_is_not_here_is_said_with_what_is_near(store: ImageStore, base: PreparedImage) -> None:
    with pytest.raises(NotFound, match="there is no image bse:1") as caught:
        store.resolve("bse:1")
    assert caught.value.hint == "there is base:1"
    with pytest.raises(NotFound) as caught:
        store.resolve("debian:12")
    assert "cloche image bootstrap debian:12" in str(caught.value.hint)
    with pytest.raises(NotFound):
        store.remove("bse:1")


def test_the_list_says_what_each_image_is(store: ImageStore, base: PreparedImage, tmp_path: Path) -> None:
    store.import_dir(make(tmp_path / "other", "12345"), "another:2")
    rows = store.list()
    assert [row.name for row in rows] == ["another:2", "base:1"]
    assert rows[0].size_bytes == 5
    assert rows[0].layers == 1
    assert rows[0].origin == "imported"
    assert rows[1].digest == base.digest


def test_the_same_content_is_kept_once_and_freed_with_its_last_name(
    store: ImageStore, tmp_path: Path
) -> None:
    source = make(tmp_path / "source", "x")
    first = store.import_dir(source, "one")
    second = store.import_dir(source, "two", config=ImageConfig(user="joe"))
    assert first.layers == second.layers
    assert first.digest != second.digest
    store.remove("one")
    assert store.resolve("two").layers[0].is_dir()
    store.remove("two")
    assert layers(store) == 0
    assert store.list() == ()
    assert list((store.root / "manifests").iterdir()) == []


def test_a_name_moves_to_new_content_and_the_old_is_freed_by_the_next_removal(
    store: ImageStore, tmp_path: Path
) -> None:
    old = store.import_dir(make(tmp_path / "source", "old"), "name")
    new = store.import_dir(make(tmp_path / "source", "new"), "name")
    assert store.resolve("name").digest == new.digest != old.digest
    assert old.layers[0].is_dir()  # somebody may be about to use what they have just resolved
    store.import_dir(make(tmp_path / "source", "third"), "other")
    store.remove("other")
    assert not old.layers[0].exists()
    assert new.layers[0].is_dir()


@pytest.mark.fault("image-in-use")
def test_an_image_that_a_sandbox_uses_is_not_removed(store: ImageStore, base: PreparedImage) -> None:
    folder = record_sandbox(store, "sb-1", base.digest)
    with pytest.raises(InvalidInput, match="used by sandbox sb-1") as caught:
        store.remove("base:1")
    assert caught.value.hint == "cloche sandbox rm sb-1"
    assert store.resolve("base:1") == base
    (folder / "record.json").unlink()
    store.remove("base:1")
    assert not base.layers[0].exists()


def test_a_second_name_of_a_used_image_may_go(store: ImageStore, base: PreparedImage, rootfs: Path) -> None:
    store.import_dir(rootfs, "second", config=base.config)
    record_sandbox(store, "sb-1", base.digest)
    store.remove("second")
    assert store.resolve("base:1") == base


def test_content_that_a_sandbox_uses_outlives_its_name(store: ImageStore, tmp_path: Path) -> None:
    old = store.import_dir(make(tmp_path / "source", "old"), "name")
    record_sandbox(store, "sb-1", old.digest)
    store.import_dir(make(tmp_path / "source", "new"), "name")
    store.remove("name")
    assert old.layers[0].is_dir()


@pytest.mark.fault("sandbox-record-unreadable")
def test_a_record_that_cannot_be_read_stops_removal(store: ImageStore, base: PreparedImage) -> None:
    folder = record_sandbox(store, "sb-1", base.digest)
    (folder / "record.json").write_text("{")
    with pytest.raises(ImageError, match="sb-1"):
        store.remove("base:1")
    assert store.resolve("base:1") == base


@pytest.mark.fault("layer-gone")
def test_a_layer_that_is_gone_is_said(store: ImageStore, base: PreparedImage) -> None:
    base.layers[0].rename(base.layers[0].with_name("moved"))
    with pytest.raises(ImageError, match="a layer of image base:1 is gone") as caught:
        store.resolve("base:1")
    assert "cloche image rm base:1" in str(caught.value.hint)


def test_the_store_is_for_root_alone(store: ImageStore, base: PreparedImage) -> None:
    for path in (store.root, store.settings.layers_dir, store.settings.state_dir / "staging"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert list((store.settings.state_dir / "staging").iterdir()) == []


def _import_many(store: ImageStore, source: Path, number: int) -> None:
    for turn in range(5):
        store.import_dir(source, f"shared:{turn}")
        store.import_dir(source, f"own-{number}:{turn}")
        store.remove(f"own-{number}:{turn}")


def test_several_processes_share_a_store(store: ImageStore, rootfs: Path) -> None:
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_import_many, args=(store, rootfs, number)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert [row.name for row in store.list()] == [f"shared:{turn}" for turn in range(5)]
    assert layers(store) == 1
    assert store.resolve("shared:0").layers[0].joinpath("bin", "busybox").is_file()
