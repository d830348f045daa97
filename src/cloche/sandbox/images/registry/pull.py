"""One image from a registry to the store.

A tag is resolved to a digest first, and everything else is asked for by digest. However many callers want the
same image at once, in however many processes, one pulls and the others wait; they share its failure. Layers
are fetched a few at a time, unpacked one at a time, and shared by all images that have them. Must never
leave anything of a pull that failed but layers that are complete and checked.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cloche.core.errors import EnvironmentUnusable, ImageError, InvalidInput
from cloche.core.failures import first_cause
from cloche.sandbox.images import names
from cloche.sandbox.images.digest import tree_digest, walk
from cloche.sandbox.images.disk import private_folder, read_json, waiting_lock, write_json
from cloche.sandbox.images.records import Layer, Manifest, NameRecord
from cloche.sandbox.images.registry import errors, manifests
from cloche.sandbox.images.registry.client import Answer, RegistryClient
from cloche.sandbox.images.registry.complete import lowest_that_counts, missing_folders
from cloche.sandbox.images.registry.credentials import credentials_for
from cloche.sandbox.images.registry.errors import RegistryError
from cloche.sandbox.images.registry.layers import WrongDiffDigest, unpack
from cloche.sandbox.images.registry.manifests import Configuration, Descriptor, ImageManifest, Platform
from cloche.sandbox.images.registry.reference import (
    Reference,
    RegistrySettings,
    find_registry,
    mirrors_of,
)
from cloche.sandbox.images.store import ImageStore
from cloche.sandbox.images.tools import in_thread
from cloche.sandbox.images.tree import Entry, Limits, TreeWriter
from cloche.sandbox.spec import PreparedImage

DEFAULT_TIMEOUT_S = 1800.0
DOWNLOADS_AT_ONCE = 3


async def pull(
    store: ImageStore,
    name: str,
    *,
    platform: str | None = None,
    if_missing: bool = False,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    settings: RegistrySettings | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> PreparedImage:
    """Pull an image (``host/repository:tag`` or ``…@sha256:…``), or what of it is not here yet.

    ``platform`` is like ``linux/arm64`` (default: this machine's); with ``if_missing`` what the name means
    here is taken if there is anything. Raises InvalidInput for a name that no registry belongs to,
    RegistryError with one of the codes of ``registry.errors``, ImageError for a layer that is damaged or
    hostile and for a full disk, EnvironmentUnusable without root.
    """
    asked_at = time.time_ns()
    settings = settings or RegistrySettings.from_environment()
    reference = find_registry(name, settings)
    if reference is None:
        raise InvalidInput(
            f"image name {name!r} has no registry",
            hint="write the registry's host before it, or set CLOCHE_REGISTRY to a default one",
        )
    wanted = Platform.parse(platform) if platform else Platform.here()
    if os.geteuid() != 0:
        raise EnvironmentUnusable("pulling an image needs root", hint="run the command with sudo")
    job = _Pull(store, names.normalise(name), reference, platform=wanted, settings=settings, say=say)
    store.make_folders()
    failed = private_folder(store.root / "pulls") / f"{job.key}.failed"
    try:
        async with asyncio.timeout(timeout_s), waiting_lock(store.root / "locks" / f"pull-{job.key}"):
            if if_missing and await asyncio.to_thread(store.find, name) is not None:
                return await asyncio.to_thread(store.resolve, name)
            _raise_shared_failure(failed, asked_at)
            await _pull_or_note(job, failed)
    except TimeoutError:
        raise RegistryError(
            errors.TIMEOUT, f"pulling {reference} took longer than {timeout_s:g} s and was ended"
        ) from None
    return await asyncio.to_thread(store.resolve, job.name)


async def _pull_or_note(job: _Pull, failed: Path) -> None:
    try:
        with job.store.full_disk_is_said():
            await job.run()
    except ImageError as error:
        said = error.to_json() if isinstance(error, RegistryError) else {}
        report = {"code": error.code, "message": error.message, "hint": error.hint, "retry_after_s": None}
        write_json(failed, {"at": time.time_ns(), **report, **said})
        raise
    await asyncio.to_thread(failed.unlink, missing_ok=True)


def _raise_shared_failure(failed: Path, asked_at: int) -> None:
    """Fail as the pull did that ran while this caller waited for it: many trials are one request."""
    report = read_json(failed)
    if report is not None and report["at"] > asked_at:
        raise RegistryError(
            report["code"], report["message"], hint=report["hint"], retry_after_s=report["retry_after_s"]
        )


@dataclass(frozen=True, slots=True)
class _Resolved:
    """What a name means now: an index if there is one, the manifest, and the configuration."""

    index_digest: str
    answer: Answer
    manifest: ImageManifest
    configuration: Configuration
    platform: Platform

    @property
    def layers(self) -> tuple[tuple[Descriptor, str], ...]:
        """Return (descriptor, diff digest) of each layer, the lowest first.

        Of one that comes twice only the upper counts: it does again all that the lower does, and overlayfs
        takes no folder twice.
        """
        rows = list(zip(self.manifest.layers, self.configuration.diff_ids, strict=True))
        last = {diff_id: place for place, (_, diff_id) in enumerate(rows)}
        return tuple(row for place, row in enumerate(rows) if last[row[1]] == place)


class _Pull:
    """One pull by one caller."""

    def __init__(
        self,
        store: ImageStore,
        name: str,
        reference: Reference,
        *,
        platform: Platform,
        settings: RegistrySettings,
        say: Callable[[str], None],
    ) -> None:
        self.store = store
        self.name = name
        self._reference = reference
        self._platform = platform
        self._settings = settings
        self._say = say
        self._locks = store.root / "locks"
        self._downloads = asyncio.Semaphore(DOWNLOADS_AT_ONCE)
        self._unpacking = asyncio.Semaphore(1)  # one budget for all layers
        self._left_bytes = store.limits.total_bytes

    @property
    def key(self) -> str:
        """Return 32 hexadecimal digits that stand for what is pulled."""
        text = f"{self.name}\0{self._reference}\0{self._platform}"
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    async def run(self) -> None:
        """Have the name in the store, with what the registry (or a mirror of it) says now."""
        for mirror in mirrors_of(self._reference, self._settings):
            try:
                await self._run_from(mirror)
            except RegistryError as error:
                self._say(f"the mirror does not give it: {error}")
            else:
                return
        await self._run_from(self._reference)

    async def _run_from(self, reference: Reference) -> None:
        known = credentials_for(self._settings.auth_file, reference.credentials_host, reference.repository)
        async with RegistryClient(reference, self._settings, known) as client:
            found = await self._resolve(client, reference)
            async with (
                waiting_lock(self._locks / f"pull-{found.answer.digest.removeprefix('sha256:')[:32]}"),
                waiting_lock(self._locks / "builds", shared=True),  # what lies there unneeded stays
            ):
                manifest = await asyncio.to_thread(self._here, found)
                if manifest is None:
                    manifest = await self._fetch(client, found)
                await asyncio.to_thread(self._record, manifest, found, reference)

    async def _resolve(self, client: RegistryClient, reference: Reference) -> _Resolved:
        what = str(reference)
        answer = await client.manifest(reference.version)
        index_digest = ""
        if manifests.is_index(answer.data, answer.media_type, what):
            index_digest = answer.digest
            entry = manifests.choose(answer.data, self._platform, what)
            answer = await client.manifest(entry.digest)
            if manifests.is_index(answer.data, answer.media_type, what):
                raise RegistryError(errors.NOT_UNDERSTOOD, f"{what} is an index of indexes")
        manifest = manifests.read_manifest(answer.data, what)
        configuration = manifests.read_configuration(
            await client.config(manifest.config), len(manifest.layers), what
        )
        platform = configuration.platform or self._platform
        if not self._platform.fits(platform):
            raise RegistryError(
                errors.PLATFORM, f"{what} is not there for {self._platform}", hint=f"it is for {platform}"
            )
        return _Resolved(index_digest, answer, manifest, configuration, platform)

    def _here(self, found: _Resolved) -> Manifest | None:
        """Return what an earlier pull made of the same manifest, if all of it is still there."""
        record = self.store.pulled(found.answer.digest)
        manifest = None if record is None else self.store.manifest(record.digest)
        if manifest is None:
            return None
        state_dir = self.store.settings.state_dir
        return manifest if all((state_dir / layer.path).is_dir() for layer in manifest.layers) else None

    async def _fetch(self, client: RegistryClient, found: _Resolved) -> Manifest:
        size = sum(layer.size_bytes for layer, _ in found.layers)
        self._say(f"pulling {self._reference}: {len(found.layers)} layers, {size / 1e6:.1f} MB")
        async with self.store.staging.folder_aside("pull") as work:
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [
                        group.create_task(self._layer(client, work, place, *row))
                        for place, row in enumerate(found.layers)
                    ]
            except BaseExceptionGroup as group_error:
                raise first_cause(group_error) from None
            layers = [task.result() for task in tasks]
            config = found.configuration.config
            paths = [self.store.settings.state_dir / layer.path for layer in layers]
            lowest = await asyncio.to_thread(lowest_that_counts, paths)
            layers, paths = layers[lowest:], paths[lowest:]
            extra = await asyncio.to_thread(missing_folders, paths, config.workdir)
            if extra:
                layers.append(await in_thread(partial(self._add_folders, work, extra)))
        return Manifest(layers=tuple(layers), config=config)

    async def _layer(
        self, client: RegistryClient, work: Path, place: int, wanted: Descriptor, diff_id: str
    ) -> Layer:
        """Have one layer in the store. Of images that are pulled at once, one fetches it."""
        async with (
            self._downloads,
            waiting_lock(self._locks / f"layer-{diff_id.removeprefix('sha256:')[:32]}"),
        ):
            final = self.store.layer_dir(diff_id)
            if await asyncio.to_thread(final.is_dir):
                size_bytes = await asyncio.to_thread(_size_bytes, final)
                return await asyncio.to_thread(self.store.add_layer, final, diff_id, size_bytes)
            blob, root = work / f"blob-{place}", work / f"layer-{place}"
            await client.blob(wanted, blob)
            async with self._unpacking:
                size_bytes = await in_thread(partial(self._unpack, blob, root, place, diff_id))
            return await asyncio.to_thread(self.store.add_layer, root, diff_id, size_bytes)

    def _unpack(self, blob: Path, root: Path, place: int, diff_id: str, check: Callable[[], None]) -> int:
        root.mkdir(mode=0o755)
        limits = Limits(entries=self.store.limits.entries, total_bytes=self._left_bytes)
        with _named(f"layer {place + 1} of {self._reference}"):
            claimed_bytes = unpack(blob, root, diff_id, limits, check)
        self._left_bytes -= claimed_bytes
        blob.unlink()
        return _size_bytes(root)

    def _add_folders(self, work: Path, entries: Sequence[Entry], check: Callable[[], None]) -> Layer:
        root = work / "folders"
        root.mkdir(mode=0o755)
        with TreeWriter(root, self.store.limits) as writer:
            for entry in entries:
                writer.add(entry)
            writer.finish()
        made = tree_digest(root, check=check)
        return self.store.add_layer(root, made.digest, made.size_bytes)

    def _record(self, manifest: Manifest, found: _Resolved, source: Reference) -> None:
        details: dict[str, Any] = {
            "registry": self._reference.registry,
            "repository": self._reference.repository,
            "version": self._reference.version,
            "digest": found.answer.digest,
            "index_digest": found.index_digest,
            "platform": str(found.platform),
        }
        if source != self._reference:
            details["mirror"] = f"{source.registry}/{source.repository}"
        with self.store.writing():
            self.store.put(
                manifest,
                NameRecord(
                    name=self.name,
                    digest=manifest.digest,
                    origin="pulled",
                    created_at=time.time(),
                    details=details,
                ),
            )


@contextmanager
def _named(layer: str) -> Iterator[None]:
    """Say which layer is not acceptable: it is the image that is wrong, not what the caller gave."""
    try:
        yield
    except WrongDiffDigest as error:
        raise RegistryError(errors.DIGEST, f"{layer} is not what the image says: {error.message}") from error
    except InvalidInput as error:
        raise ImageError(f"{layer}: {error.message}", hint=error.hint) from error


def _size_bytes(layer: Path) -> int:
    """Return the bytes of all files of a layer, each counted once."""
    found = (entry.stat(follow_symlinks=False) for _, entry in walk(os.fsencode(layer)))
    return sum({row.st_ino: row.st_size for row in found if stat.S_ISREG(row.st_mode)}.values())
