"""Makes an image of what a sandbox has written: its image's layers and one more.

A snapshot has a name and stays; a fork's image has a name of its own (``fork/…``) and goes with the last
sandbox that runs on it. Both are content-addressed like any image. A chain of copies of copies does not grow
without end: after ``CHAIN_MAX`` the layers that copies made are merged into one. Must never change a layer
that stands.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloche.sandbox.images.builds import layers_max
from cloche.sandbox.images.digest import tree_digest
from cloche.sandbox.images.lease import alone, lease, manifest_path
from cloche.sandbox.images.records import Layer, Manifest, NameRecord
from cloche.sandbox.images.store import ImageStore
from cloche.sandbox.native.record import Record
from cloche.sandbox.native.store_copy import Copied, copy_layers
from cloche.sandbox.native.store_diff import hidden_paths
from cloche.sandbox.spec import PreparedImage

CHAIN_MAX = 16
FORK, SNAPSHOT = "fork", "snapshot"
_NAME_DIGITS = 32


@dataclass(frozen=True, slots=True)
class Base:
    """The image that a sandbox runs on, as its layers are known. ``depth`` of them were made by copies."""

    layers: tuple[Layer, ...]
    depth: int
    root: str

    @property
    def kept(self) -> tuple[Layer, ...]:
        """Return the layers below the copy: all, or only those of the first image where too many stand."""
        most = min(layers_max(platform.release()), len(self.layers) - self.depth + CHAIN_MAX)
        return self.layers if len(self.layers) < most else self.layers[: len(self.layers) - self.depth]

    @property
    def merged(self) -> tuple[Layer, ...]:
        """Return the layers that become part of the copy."""
        return self.layers[len(self.kept) :]


def base_of(store: ImageStore, image: PreparedImage) -> Base:
    """Look an image up. The layers of one that the store does not know (made by hand) are hashed now."""
    manifest = store.manifest(image.digest)
    if manifest is None:
        layers = tuple(_layer_of(store, path) for path in image.layers)
        return Base(layers, 0, image.name)
    record = next((one for one in store.records() if one.digest == image.digest), None)
    details: dict[str, Any] = dict(record.details) if record else {}
    return Base(manifest.layers, int(details.get("depth", 0)), str(details.get("root", image.name)))


def _layer_of(store: ImageStore, path: Path) -> Layer:
    found = tree_digest(path)
    return Layer(
        digest=found.digest,
        path=str(path.relative_to(store.settings.state_dir)),
        size_bytes=found.size_bytes,
    )


def copy_upper(
    store: ImageStore, record: Record, base: Base, target: Path, check: Callable[[], None]
) -> Copied:
    """Copy a sandbox's writable layer (and the layers to be merged with it) into ``target``.

    Raises ImageError (``infra/disk_full``), InvalidInput for what is too large, FileNotFoundError when the
    sandbox is gone.
    """
    target.mkdir(mode=0o755)
    upper = store.settings.uppers_dir / record.spec.id / "upper"
    merged = [store.settings.state_dir / layer.path for layer in reversed(base.merged)]
    hidden = hidden_paths(volume.target for volume in record.spec.volumes)
    with store.full_disk_is_said():
        return copy_layers([upper, *merged], target, hidden=hidden, limits=store.limits, check=check)


def commit(
    store: ImageStore,
    record: Record,
    base: Base,
    copied: Path,
    *,
    origin: str,
    name: str = "",
    held: ExitStack,
    check: Callable[[], None] = lambda: None,
) -> PreparedImage:
    """Hash the copy, register the image and lease it in ``held``. Hold ``images/locks/builds`` (shared).

    Without a name it is called ``snapshot/…`` or ``fork/…`` and the image's digest.
    """
    found = tree_digest(copied, check=check)
    layer = store.add_layer(copied, found.digest, found.size_bytes)
    # the kernel takes no folder twice, and the upper of two does again all that the lower does
    kept = tuple(one for one in base.kept if one.path != layer.path)
    manifest = Manifest(layers=(*kept, layer), config=record.image.config)
    digits = manifest.digest.removeprefix("sha256:")
    written = NameRecord(
        name=name or f"{origin}/{digits[:_NAME_DIGITS]}:latest",
        digest=manifest.digest,
        origin=origin,
        created_at=time.time(),
        details={
            "base": record.image.digest,
            "root": base.root,
            "depth": max(base.depth - len(base.merged) + 1 - (len(base.kept) - len(kept)), 1),
            "sandbox": record.spec.id,
        },
    )
    with store.writing():
        if origin == FORK:
            forks_mark(store).touch()
        store.put(manifest, written)
        held.enter_context(lease(store.settings, manifest.digest))
    return store.resolve(written.name)


def forks_mark(store: ImageStore) -> Path:
    """Return the file that is there while an image of a fork may be."""
    return store.root / "forks"


def unused_forks(store: ImageStore) -> list[NameRecord]:
    """Return the images of forks that no sandbox's record names."""
    if not forks_mark(store).exists():
        return []
    used = store.digests_in_use()
    return [one for one in store.records() if one.origin == FORK and one.digest not in used]


def forget_forks(store: ImageStore) -> None:
    """Remove the images of forks that nobody uses or is about to use."""
    mark = forks_mark(store)
    if not mark.exists():
        return
    with store.writing():
        for record in unused_forks(store):
            with alone(manifest_path(store.settings, record.digest)) as free:
                if free:
                    store.drop_name(record)
        if store.free_layers() and not any(one.origin == FORK for one in store.records()):
            mark.unlink(missing_ok=True)


def has_forks(store: ImageStore) -> bool:
    """Whether images of forks may be there. Cheap: asked at every delete."""
    return os.path.lexists(forks_mark(store))
