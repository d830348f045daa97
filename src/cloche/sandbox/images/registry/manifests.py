"""What a registry says about an image, checked before it is believed.

Sources: OCI image specification 1.1 (manifest.md, image-index.md, config.md) and Docker's image manifest
version 2, schema 2. Must never touch the disk or the network.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cloche.core.errors import InvalidInput
from cloche.sandbox.images.buildah import config_from_oci
from cloche.sandbox.images.registry.errors import DIGEST, NOT_UNDERSTOOD, PLATFORM, RegistryError
from cloche.sandbox.spec import ImageConfig

INDEXES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
LAYERS_MAX = 500
ENTRIES_MAX = 1000

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_PLATFORM = re.compile(r"[a-z0-9]+/[a-z0-9]+(?:/[a-z0-9]+)?")
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True)
class Platform:
    """For which machines an image is: ``linux/amd64``, ``linux/arm64/v8``."""

    system: str
    architecture: str
    variant: str = ""

    @classmethod
    def parse(cls, text: str) -> Platform:
        """Read ``linux/amd64``. Raises InvalidInput."""
        if _PLATFORM.fullmatch(text) is None:
            raise InvalidInput(f"{text!r} is not a platform", hint="such as linux/amd64 or linux/arm64")
        return cls(*text.split("/"))

    @classmethod
    def here(cls) -> Platform:
        """Return this machine's."""
        machine = os.uname().machine
        return cls("linux", _MACHINES.get(machine, machine))

    def __str__(self) -> str:
        return "/".join(part for part in (self.system, self.architecture, self.variant) if part)

    def fits(self, other: Platform) -> bool:
        """Whether what is for ``other`` is what is wanted; a variant counts only if both have one."""
        same = (self.system, self.architecture) == (other.system, other.architecture)
        return same and (not self.variant or not other.variant or self.variant == other.variant)


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A thing of a registry: what it is, its digest, and its size in bytes."""

    media_type: str
    digest: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ImageManifest:
    """The parts of an image: its configuration and its layers, the lowest first."""

    config: Descriptor
    layers: tuple[Descriptor, ...]


@dataclass(frozen=True, slots=True)
class Configuration:
    """What an image's configuration says: how to run it, its layers' diff digests, its platform."""

    config: ImageConfig
    diff_ids: tuple[str, ...]
    platform: Platform | None


def sha256(data: bytes) -> str:
    """Return the digest as registries write it."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def check_digest(what: str, data: bytes, wanted: str) -> None:
    """Raise RegistryError unless ``data`` is what the digest says."""
    if sha256(data) != wanted:
        raise RegistryError(DIGEST, f"{what} is not what its digest {wanted[:19]}… says")


def _odd(what: str, why: str) -> RegistryError:
    return RegistryError(NOT_UNDERSTOOD, f"{what} is not understood: {why}")


def _object(value: Any, what: str, name: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _odd(what, f"{name} is not an object")
    return value


def _list(value: Any, what: str, name: str, most: int) -> Sequence[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise _odd(what, f"{name} is not a list of at most {most}")
    return value


def _read(data: bytes, what: str) -> Mapping[str, Any]:
    try:
        return _object(json.loads(data), what, "it")
    except (ValueError, RecursionError):
        raise _odd(what, "it is not JSON") from None


def descriptor(value: Any, what: str) -> Descriptor:
    """Read a descriptor. Raises RegistryError."""
    row = _object(value, what, "a descriptor")
    media_type, digest, size = row.get("mediaType", ""), row.get("digest"), row.get("size")
    if not isinstance(digest, str) or _DIGEST.fullmatch(digest) is None:
        raise _odd(what, "a digest is not sha256:… with 64 digits")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0 or not isinstance(media_type, str):
        raise _odd(what, "a descriptor has no size or no type")
    return Descriptor(media_type, digest, size)


def is_index(data: bytes, media_type: str, what: str) -> bool:
    """Tell an index from a manifest; what could be read as both is refused (CVE-2021-41190)."""
    value = _read(data, what)
    said = value.get("mediaType", media_type)
    if value.get("schemaVersion") != 2:
        raise _odd(what, "it is not of schema version 2")
    if "manifests" in value and ("layers" in value or "config" in value):
        raise _odd(what, "it is a manifest and an index at once")
    if said in INDEXES and "manifests" in value:
        return True
    if said in MANIFESTS and "layers" in value:
        return False
    raise _odd(what, f"it is of type {str(said)[:100]!r}")


def choose(data: bytes, wanted: Platform, what: str) -> Descriptor:
    """Return the entry of an index for a platform; one of the very variant goes first."""
    rows = _list(_read(data, what).get("manifests"), what, "manifests", ENTRIES_MAX)
    offered: list[tuple[Platform, Any]] = []
    for row in rows:
        platform = _object(_object(row, what, "an entry").get("platform") or {}, what, "a platform")
        found = _platform(platform, what)
        if found is not None:
            offered.append((found, row))
    fitting = [item for item in offered if wanted.fits(item[0])]
    if not fitting:
        shown = ", ".join(sorted({str(item[0]) for item in offered if item[0].system != "unknown"}))
        raise RegistryError(
            PLATFORM, f"{what} is not there for {wanted}", hint=f"it is for {shown}" if shown else None
        )
    fitting.sort(key=lambda item: item[0].variant != wanted.variant)
    return descriptor(fitting[0][1], what)


def _platform(value: Mapping[str, Any], what: str) -> Platform | None:
    parts = [value.get(name, "") for name in ("os", "architecture", "variant")]
    if not all(isinstance(part, str) for part in parts):
        raise _odd(what, "a platform is not text")
    return Platform(*(part[:40] for part in parts)) if parts[0] and parts[1] else None


def read_manifest(data: bytes, what: str) -> ImageManifest:
    """Read a manifest whose layers are all archives that the registry itself has."""
    value = _read(data, what)
    layers = tuple(descriptor(row, what) for row in _list(value.get("layers"), what, "layers", LAYERS_MAX))
    for layer in layers:
        if "tar" not in layer.media_type or "encrypted" in layer.media_type:
            raise _odd(what, f"a layer is of type {layer.media_type[:100]!r}")
        if "foreign" in layer.media_type:
            raise _odd(what, "a layer is kept elsewhere than in the registry")
    if not layers:
        raise _odd(what, "it has no layers")
    return ImageManifest(descriptor(value.get("config"), what), layers)


def read_configuration(data: bytes, layers: int, what: str) -> Configuration:
    """Read an image's configuration; it must tell a diff digest for each of ``layers`` layers."""
    value = _read(data, what)
    rootfs = _object(value.get("rootfs"), what, "rootfs")
    diff_ids = _list(rootfs.get("diff_ids"), what, "diff_ids", LAYERS_MAX)
    if not all(isinstance(item, str) and _DIGEST.fullmatch(item) for item in diff_ids):
        raise _odd(what, "a diff digest is not sha256:… with 64 digits")
    if len(diff_ids) != layers:
        raise _odd(what, f"it has {len(diff_ids)} diff digests for {layers} layers")
    config = _object(value.get("config") or {}, what, "config")
    for name in ("Env", "Entrypoint", "Cmd"):
        if not all(
            isinstance(item, str) and "\0" not in item for item in _texts(config.get(name), what, name)
        ):
            raise _odd(what, f"{name} is not a list of texts")
    for name in ("User", "WorkingDir"):
        if not isinstance(config.get(name) or "", str) or "\0" in (config.get(name) or ""):
            raise _odd(what, f"{name} is not a text")
    read = config_from_oci(dict(config))
    if not read.workdir.startswith("/"):
        raise _odd(what, "WorkingDir is not an absolute path")
    return Configuration(read, tuple(diff_ids), _platform(value, what))


def _texts(value: Any, what: str, name: str) -> Sequence[Any]:
    return _list([] if value is None else value, what, name, 10_000)
