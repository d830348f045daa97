"""``image gc``: what goes, what stays, and that nobody loses an image that is in use or about to be."""

from __future__ import annotations

import json
import multiprocessing
import os
from dataclasses import replace
from pathlib import Path

import pytest

from cloche.core.errors import ImageError, NotFound, UsageError
from cloche.sandbox.images import ImagePolicy, ImageStore, ensure_image, gc
from cloche.sandbox.images.lease import alone, lease, manifest_path
from cloche.sandbox.images.resolve import StoreResolver
from cloche.sandbox.spec import PreparedImage

KIB = 1024


def _make(store: ImageStore, folder: Path, name: str, size: int, used_at: int) -> PreparedImage:
    place = folder / name
    place.mkdir(parents=True)
    (place / "file").write_bytes(name[:1].encode() * size)
    image = store.import_dir(place, f"{name}:1")
    _used(store, image, used_at)
    return image


def _used(store: ImageStore, image: PreparedImage, at: int) -> None:
    os.utime(manifest_path(store.settings, image.digest), (at, at))


@pytest.fixture
def three(store: ImageStore, tmp_path: Path) -> list[PreparedImage]:
    """Three images of 100 KiB, the first the least recently used."""
    return [_make(store, tmp_path, name, 100 * KIB, at) for at, name in enumerate(("a", "b", "c"), 1)]


def _names(store: ImageStore) -> list[str]:
    return [item.name for item in store.list()]


def test_the_least_recently_used_go_first(store: ImageStore, three: list[PreparedImage]) -> None:
    with lease(store.settings, three[0].digest):
        pass  # a create: now it is the last used
    done = gc(store, 250 * KIB)
    assert done.removed == ("b:1",)
    assert (done.freed_bytes, done.kept_bytes) == (100 * KIB, 200 * KIB)
    assert _names(store) == ["a:1", "c:1"]
    assert not three[1].layers[0].exists()
    assert gc(store, 250 * KIB).removed == ()


def test_layers_that_are_shared_count_once(store: ImageStore, three: list[PreparedImage]) -> None:
    with store.writing():
        record = store.find("a:1")
        assert record is not None
        manifest = store.manifest_of(record)
        other = replace(manifest, config=replace(manifest.config, user="somebody"))
        store.put(other, replace(record, name="a2:1", digest=other.digest))
    os.utime(manifest_path(store.settings, other.digest), (1, 1))
    assert gc(store, 300 * KIB).removed == ()
    assert set(gc(store, 200 * KIB).removed) == {"a:1", "a2:1"}


@pytest.mark.fault("gc-of-an-image-in-use")
def test_what_a_sandbox_runs_on_stays(store: ImageStore, three: list[PreparedImage]) -> None:
    folder = store.settings.sandboxes_dir / "sb"
    folder.mkdir(parents=True)
    (folder / "record.json").write_text(json.dumps({"image": {"digest": three[0].digest}}))
    done = gc(store, 0)
    assert set(done.removed) == {"b:1", "c:1"}
    assert done.kept_bytes == 100 * KIB
    assert store.resolve("a:1") == three[0]


def _hold(store: ImageStore, digest: str, held: object, let_go: object) -> None:
    with lease(store.settings, digest):
        held.set()  # type: ignore[attr-defined]
        let_go.wait()  # type: ignore[attr-defined]


@pytest.mark.fault("gc-races-a-create")
def test_what_a_create_of_another_process_is_about_to_use_stays(
    store: ImageStore, three: list[PreparedImage]
) -> None:
    context = multiprocessing.get_context("fork")
    held, let_go = context.Event(), context.Event()
    process = context.Process(target=_hold, args=(store, three[0].digest, held, let_go))
    process.start()
    assert held.wait(20)
    assert "a:1" not in gc(store, 0).removed
    assert three[0].layers[0].is_dir()
    process.kill()  # the lease goes with its holder
    process.join()
    assert gc(store, 0).removed == ("a:1",)
    with pytest.raises(NotFound):
        store.resolve("a:1")


@pytest.mark.fault("create-races-a-gc")
def test_a_create_of_an_image_that_is_being_removed_says_so(
    store: ImageStore, three: list[PreparedImage]
) -> None:
    with (
        alone(manifest_path(store.settings, three[0].digest)) as free,
        pytest.raises(ImageError, match="just being removed"),
        lease(store.settings, three[0].digest),
    ):
        assert free


@pytest.mark.fault("gc-killed-in-the-middle")
def test_a_gc_that_was_killed_leaves_no_half_layer_and_the_next_one_goes_on(
    store: ImageStore, three: list[PreparedImage], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def die(path: Path) -> None:
        raise Killed

    monkeypatch.setattr("shutil.rmtree", die)
    with pytest.raises(Killed):
        gc(store, 250 * KIB)
    monkeypatch.undo()
    assert not three[0].layers[0].exists()  # taken away whole
    assert _names(store) == ["b:1", "c:1"]
    store.staging.sweep()
    assert gc(store, 250 * KIB).removed == ()
    again = store.import_dir(three[1].layers[0], "again:1")
    assert again.layers == three[1].layers


@pytest.mark.fault("image-not-allowed")
async def test_only_images_that_the_operator_allows(store: ImageStore, three: list[PreparedImage]) -> None:
    resolver = StoreResolver(store, ImagePolicy(allow=("a:*", "host.example/team/*")))
    assert await resolver.resolve("a:1") == three[0]
    assert await resolver.resolve(three[0].digest) == three[0]
    for name in ("b:1", three[1].digest, "host.example/other/x:1", "evil.example/host.example/team/x"):
        with pytest.raises(UsageError) as caught:
            await resolver.resolve(name)
        assert caught.value.code == "images/not_allowed"


@pytest.mark.fault("image-tag-while-locked")
async def test_locked_means_digests(store: ImageStore, three: list[PreparedImage]) -> None:
    policy = ImagePolicy(locked=True)
    assert await ensure_image(store, three[0].digest, policy=policy) == three[0]
    with pytest.raises(UsageError) as caught:
        await ensure_image(store, "a:1", policy=policy)
    assert caught.value.code == "images/mutable_tag"
    assert three[0].digest in (caught.value.hint or "")


@pytest.mark.fault("build-outside-of-the-allowed-folders")
async def test_only_allowed_folders_are_built(store: ImageStore, tmp_path: Path) -> None:
    (tmp_path / "ok").mkdir()
    (tmp_path / "out").symlink_to("/etc")
    resolver = StoreResolver(store, build_roots=[tmp_path / "ok"])
    for name in (f"build:{tmp_path}/ok/../out", "build:/etc", f"build:{tmp_path}"):
        with pytest.raises(UsageError) as caught:
            await resolver.resolve(name)
        assert caught.value.code == "images/not_allowed"


def test_the_policy_of_the_environment() -> None:
    found = ImagePolicy.from_environment({"CLOCHE_IMAGES_ALLOW": "a:*, b", "CLOCHE_IMAGES_LOCKED": "1"})
    assert found == ImagePolicy(allow=("a:*", "b"), locked=True)
    assert ImagePolicy.from_environment({"CLOCHE_IMAGES_LOCKED": "0"}) == ImagePolicy()
