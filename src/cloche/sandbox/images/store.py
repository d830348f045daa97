"""The store of images on this machine: layers by content, manifests by digest, names on top.

Layers are unpacked once and shared by all sandboxes. Must never change a layer once it stands, and never
remove one that an image or a live sandbox needs. Safe for any number of processes at once: readers need
no lock since files change atomically, writers hold ``images/locks/index``. The layout is in docs/images.md.
"""

from __future__ import annotations

import hashlib
import os
import time
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from cloche.core.errors import ImageError, InvalidInput, NotFound
from cloche.sandbox.images import archive, folder, lease, names
from cloche.sandbox.images.digest import tree_digest
from cloche.sandbox.images.disk import Staging, locked, private_folder, read_json, try_locked, write_json
from cloche.sandbox.images.lease import manifest_path
from cloche.sandbox.images.records import ImageInfo, Layer, Manifest, NameRecord
from cloche.sandbox.images.tree import Limits, TreeWriter, full_disk
from cloche.sandbox.settings import Settings
from cloche.sandbox.spec import ImageConfig, PreparedImage

LAYER_NAME_DIGITS = 32
FILE_NAME_BYTES_MAX = 180  # leaves room for what an atomic write adds


class ImageStore:
    """The images of one installation. All methods block; none starts a process."""

    def __init__(self, settings: Settings, *, limits: Limits | None = None) -> None:
        """Touch nothing yet: the folders are made by what first writes."""
        self.settings = settings
        self.root = settings.state_dir / "images"
        self.staging = Staging(settings.state_dir / "staging")
        self.limits = limits or Limits()
        self._names = self.root / "names"
        self._manifests = self.root / "manifests"

    # --- reading ---

    def resolve(self, name: str) -> PreparedImage:
        """Return the image of a name, or of a digest or its first 12 digits.

        A Debian base that was bootstrapped answers to all of its names (``debian:12-slim``,
        ``debian:bookworm``). Raises NotFound with a hint, InvalidInput for what is no name, and ImageError
        if a layer is gone from the disk.
        """
        record = self.find(name)
        if record is None:
            known = [item.name for item in self._name_records()]
            raise NotFound(f"there is no image {name}", hint=names.hint_for(name, known))
        return self._prepare(record)

    def find(self, name: str) -> NameRecord | None:
        """Return the record of a name or digest, or None; raises InvalidInput for what is no name."""
        digits = names.as_digest(name)
        if digits is not None:
            prefix = "sha256:" + digits
            found = [item for item in self._name_records() if item.digest.startswith(prefix)]
            if found or name.startswith("sha256:"):
                return found[0] if found else None
        wanted = names.normalise(name)
        record = self._name_record(wanted)
        if record is not None:
            return record
        pinned = names.pinned_digest(wanted)
        if pinned is not None:
            return self.pulled(pinned)
        for alias in names.aliases(wanted):
            record = self._name_record(alias)
            if record is not None and record.origin == "bootstrapped":
                return record
        return None

    def pulled(self, digest: str) -> NameRecord | None:
        """Return a record of what was pulled by the registry's digest of its manifest, or None."""
        for record in self._name_records():
            if record.origin == "pulled" and record.details["digest"] == digest:
                return record
        return None

    def list(self) -> tuple[ImageInfo, ...]:
        """Return all names, in order."""
        rows = []
        for record in self._name_records():
            manifest = self.manifest(record.digest)
            if manifest is not None:
                rows.append(
                    ImageInfo(
                        name=record.name,
                        digest=record.digest,
                        origin=record.origin,
                        created_at=record.created_at,
                        size_bytes=manifest.size_bytes,
                        layers=len(manifest.layers),
                        details=record.details,
                    )
                )
        return tuple(rows)

    def records(self) -> tuple[NameRecord, ...]:
        """Return every name's record, in order."""
        return self._name_records()

    def manifest(self, digest: str) -> Manifest | None:
        """Return a manifest by its whole digest, or None."""
        value = read_json(manifest_path(self.settings, digest))
        return None if value is None else Manifest.from_json(value)

    def manifest_of(self, record: NameRecord) -> Manifest:
        """Return the manifest of a name. Raises ImageError if it was removed meanwhile."""
        manifest = self.manifest(record.digest)
        if manifest is None:
            raise ImageError(f"image {record.name} was just removed")
        return manifest

    def manifests(self) -> Iterator[Manifest]:
        """Yield every manifest, named or not."""
        for path in sorted(self._manifests.glob("*.json")):
            value = read_json(path)
            if value is not None:
                yield Manifest.from_json(value)

    def digests_in_use(self) -> dict[str, str]:
        """Return image digest → id of a sandbox that runs on it, from the run directory's records."""
        used = {}
        for sandbox_id, image in self._images_of_records():
            digest = image.get("digest") if isinstance(image, dict) else image
            if isinstance(digest, str):
                used[digest] = sandbox_id
        return used

    def layers_in_use(self) -> set[str]:
        """Return the layers' folders that sandboxes run on, from the run directory's records.

        The images of nearly all are in the store; of one that was made by hand only the record tells.
        """
        images = (image for _, image in self._images_of_records() if isinstance(image, dict))
        return {str(path) for image in images for path in image.get("layers", ())}

    def _images_of_records(self) -> Iterator[tuple[str, Any]]:
        for path in self.settings.sandboxes_dir.glob("*/record.json"):
            try:
                record = read_json(path)
            except ValueError as error:
                raise ImageError(
                    f"the record of sandbox {path.parent.name} cannot be read, so its image is unknown",
                    hint="cloche sandbox reap",
                    where=str(path),
                ) from error
            yield path.parent.name, record.get("image") if isinstance(record, dict) else None

    # --- writing ---

    def import_tar(
        self,
        source: Path | BinaryIO,
        name: str,
        *,
        config: ImageConfig | None = None,
        origin: str = "imported",
        details: Mapping[str, Any] | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> PreparedImage:
        """Unpack a root file system's tar as an image of one layer.

        ``check`` is called now and then and may raise to stop; then, as after any error, nothing is left.
        Raises InvalidInput naming the member that is not acceptable, and ImageError when the disk is full.
        """
        return self._import(
            name,
            lambda writer: archive.extract(source, writer, check=check),
            config=config,
            origin=origin,
            details=details,
            check=check,
        )

    def import_dir(self, source: Path, name: str, *, config: ImageConfig | None = None) -> PreparedImage:
        """Copy a folder as an image of one layer. Raises as ``import_tar`` does."""
        inside = source.resolve()
        if self.settings.state_dir.resolve().is_relative_to(inside):
            raise InvalidInput(f"{source} holds the image store itself", hint="import a folder beside it")
        return self._import(name, lambda writer: folder.copy(source, writer), config=config)

    def _import(
        self,
        name: str,
        fill: Callable[[TreeWriter], None],
        *,
        config: ImageConfig | None,
        origin: str = "imported",
        details: Mapping[str, Any] | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> PreparedImage:
        wanted = names.normalise(name)
        with self.full_disk_is_said():
            self.staging.sweep()
            with self.staging.folder("import") as place:
                root = place / "root"
                root.mkdir(mode=0o755)
                with TreeWriter(root, self.limits) as writer:
                    fill(writer)
                    writer.finish()
                found = tree_digest(root, check=check)
                layer = Layer(
                    digest=found.digest, path=_layer_path(found.digest), size_bytes=found.size_bytes
                )
                manifest = Manifest(layers=(layer,), config=config or ImageConfig())
                record = NameRecord(
                    name=wanted,
                    digest=manifest.digest,
                    origin=origin,
                    created_at=time.time(),
                    details=details or {},
                )
                with self.writing():
                    self._place(root, self.settings.state_dir / layer.path)
                    self.put(manifest, record)
        return self._prepare(record)

    def layer_dir(self, digest: str) -> Path:
        """Return the folder of a layer of ours, whether it is there or not."""
        return self.settings.state_dir / _layer_path(digest)

    def add_layer(self, staged: Path, digest: str, size_bytes: int) -> Layer:
        """Move an unpacked layer to its place, if none is there.

        Hold ``images/locks/builds`` (shared) until a manifest needs it: before, ``remove`` would free it.
        """
        with self.writing():
            self._place(staged, self.layer_dir(digest))
        return Layer(digest=digest, path=_layer_path(digest), size_bytes=size_bytes)

    def _place(self, staged: Path, final: Path) -> None:
        if final.exists():
            return
        private_folder(final.parent)
        staged.rename(final)

    def put(self, manifest: Manifest, record: NameRecord) -> None:
        """Store a manifest and the name that leads to it. Call it with the lock held (``writing``)."""
        path = manifest_path(self.settings, manifest.digest)
        if path.exists():  # content does not change, and leases are locks on this very file
            os.utime(path)
        else:
            write_json(path, manifest.to_json())
        write_json(self._name_path(record.name), record.to_json())

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the store's lock; makes the folders."""
        self.make_folders()
        with locked(self.root / "locks" / "index"):
            yield

    def make_folders(self) -> None:
        """Make the index's folders if they are not there."""
        for path in (self.root, self._names, self._manifests, self.root / "locks"):
            private_folder(path)

    def remove(self, name: str) -> NameRecord:
        """Remove a name, and what only it needed. Raises NotFound, or InvalidInput while it is in use.

        Layers that buildah made are freed by ``builds.collect``, which can start programs.
        """
        with self.writing():
            record = self.find(name)
            if record is None:
                known = [item.name for item in self._name_records()]
                raise NotFound(f"there is no image {name}", hint=names.hint_for(name, known))
            others = [item for item in self._name_records() if item.digest == record.digest]
            user = self.digests_in_use().get(record.digest)
            if user is not None and len(others) == 1:
                raise InvalidInput(
                    f"image {record.name} is used by sandbox {user}", hint=f"cloche sandbox rm {user}"
                )
            self._name_path(record.name).unlink()
            self.forget_unnamed()
        return record

    def forget_unnamed(self) -> None:
        """Remove manifests without a name, a sandbox and a lease, and layers of ours that none needs.

        Call it with the lock held (``writing``).
        """
        kept = {item.digest for item in self._name_records()} | set(self.digests_in_use())
        for manifest in tuple(self.manifests()):
            if manifest.digest not in kept:
                with lease.alone(manifest_path(self.settings, manifest.digest)) as free:
                    if free:
                        self.drop(manifest.digest)
        self.free_layers()

    def drop(self, digest: str, records: Iterable[NameRecord] = ()) -> None:
        """Remove a manifest and these names of it; its layers stay until ``free_layers``."""
        for record in records:
            self._name_path(record.name).unlink(missing_ok=True)
        manifest_path(self.settings, digest).unlink(missing_ok=True)

    def drop_name(self, record: NameRecord) -> None:
        """Remove a name, and its manifest where no other name leads to it. Hold the lock and its lease."""
        if any(one.digest == record.digest and one.name != record.name for one in self._name_records()):
            self._name_path(record.name).unlink(missing_ok=True)
        else:
            self.drop(record.digest, [record])

    def free_layers(self) -> bool:
        """Remove our layers that no manifest and no sandbox needs. Call it with the lock held (``writing``).

        While a build runs they stay (False), since it may stand on them; the next removal frees them. A
        layer is taken from its place before it is emptied, so that there is never a half one under its name.
        """
        needed = {layer.path for manifest in self.manifests() for layer in manifest.layers}
        with try_locked(self.root / "locks" / "builds") as alone:
            folder = self.settings.layers_dir
            spare = {path for path in folder.glob("*") if f"{folder.name}/{path.name}" not in needed}
            used = self.layers_in_use() if alone and spare else set()
            for path in spare if alone else ():
                if str(path) not in used:
                    with self.staging.folder("gone") as place:
                        path.rename(place / "layer")
            return alone

    # --- inside ---

    def _prepare(self, record: NameRecord) -> PreparedImage:
        manifest = self.manifest(record.digest)
        again = f"remove it and make it again: cloche image rm {record.name}"
        if manifest is None:
            raise ImageError(f"the store has lost the content of image {record.name}", hint=again)
        layers = tuple(self.settings.state_dir / layer.path for layer in manifest.layers)
        missing = [path for path in layers if not path.is_dir()]
        if missing:
            raise ImageError(f"a layer of image {record.name} is gone: {missing[0]}", hint=again)
        return PreparedImage(
            name=record.name,
            digest=record.digest,
            layers=layers,
            config=manifest.config,
            origin=record.origin,
        )

    def _name_path(self, name: str) -> Path:
        quoted = urllib.parse.quote(name, safe="")
        if len(quoted) > FILE_NAME_BYTES_MAX:
            quoted = f"{quoted[:100]}~{hashlib.sha256(name.encode()).hexdigest()[:32]}"
        return self._names / f"{quoted}.json"

    def _name_record(self, name: str) -> NameRecord | None:
        value = read_json(self._name_path(name))
        return None if value is None else NameRecord.from_json(value)

    def _name_records(self) -> tuple[NameRecord, ...]:
        values = [read_json(path) for path in sorted(self._names.glob("[!.]*.json"))]
        return tuple(NameRecord.from_json(value) for value in values if value is not None)

    @contextmanager
    def full_disk_is_said(self) -> Iterator[None]:
        """Turn a full disk into the ImageError that says so."""
        try:
            yield
        except OSError as error:
            full = full_disk(error, self.settings.state_dir)
            if full is None:
                raise
            raise full from error


def _layer_path(digest: str) -> str:
    return f"layers/{digest.rpartition(':')[2][:LAYER_NAME_DIGITS]}"
