"""Frees images until the store fits a budget: the least recently used first, never one that is needed.

An image is needed by a live sandbox, by a create that is under way (``lease``), and by nothing else: what is
removed can be made again. Layers that several images share are counted once. Must never be the only thing
that knows what is half removed: names go first, then manifests, then layers; the next run frees what is left.
"""

from __future__ import annotations

from dataclasses import dataclass

from cloche.sandbox.images.lease import alone, manifest_path
from cloche.sandbox.images.records import Manifest, NameRecord
from cloche.sandbox.images.store import ImageStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What a run did. ``kept_bytes`` may be above the budget: the rest is needed."""

    removed: tuple[str, ...]
    freed_bytes: int
    kept_bytes: int


def total_bytes(manifests: list[Manifest]) -> int:
    """Return the bytes of all layers of these images, each layer once."""
    return sum({layer.path: layer.size_bytes for item in manifests for layer in item.layers}.values())


def gc(store: ImageStore, budget_bytes: int) -> Collected:
    """Remove the least recently used images until all layers together hold at most ``budget_bytes``.

    Blocks while another process writes to the store. Layers that buildah made are freed by
    ``builds.collect``. Raises ImageError where a sandbox's record cannot be read.
    """
    with store.writing():
        by_digest = {item.digest: item for item in store.manifests()}
        before = total_bytes(list(by_digest.values()))
        named: dict[str, list[NameRecord]] = {}
        for record in store.records():
            named.setdefault(record.digest, []).append(record)
        used = store.digests_in_use()
        removed: list[str] = []
        for digest in sorted(by_digest, key=lambda one: (_last_used(store, one), one)):
            if total_bytes(list(by_digest.values())) <= budget_bytes:
                break
            if digest in used:
                continue
            with alone(manifest_path(store.settings, digest)) as free:
                if free:
                    removed += [record.name for record in named.get(digest, [])]
                    store.drop(digest, named.get(digest, []))
                    del by_digest[digest]
        after = total_bytes(list(by_digest.values()))
        store.free_layers()
    return Collected(removed=tuple(removed), freed_bytes=before - after, kept_bytes=after)


def _last_used(store: ImageStore, digest: str) -> float:
    return manifest_path(store.settings, digest).stat().st_mtime
