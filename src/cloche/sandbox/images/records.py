"""What the index says about images, as plain data and as JSON.

A *manifest* is content: its digest is the SHA-256 of its layers' digests and its configuration. A *name*
points to a manifest and says how it came to be here. Must never touch the disk.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cloche.sandbox.spec import ImageConfig

DIGEST_PREFIX = "sha256:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer: its content digest, and its folder relative to the state directory."""

    digest: str
    path: str
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """An image's content. ``layers`` has the lowest first."""

    layers: tuple[Layer, ...]
    config: ImageConfig

    @property
    def digest(self) -> str:
        """``sha256:`` and 64 hexadecimal digits; the same content has the same digest everywhere."""
        content = {"layers": [layer.digest for layer in self.layers], "config": _config_json(self.config)}
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return DIGEST_PREFIX + hashlib.sha256(text.encode()).hexdigest()

    @property
    def size_bytes(self) -> int:
        """The bytes of all files of all layers."""
        return sum(layer.size_bytes for layer in self.layers)

    def to_json(self) -> dict[str, Any]:
        """Return what is stored."""
        layers = [
            {"digest": layer.digest, "path": layer.path, "size_bytes": layer.size_bytes}
            for layer in self.layers
        ]
        return {"digest": self.digest, "layers": layers, "config": _config_json(self.config)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Manifest:
        """Read what ``to_json`` gave."""
        config = value["config"]
        return cls(
            layers=tuple(Layer(**layer) for layer in value["layers"]),
            config=ImageConfig(
                env=dict(config["env"]),
                user=config["user"],
                workdir=config["workdir"],
                entrypoint=tuple(config["entrypoint"]),
                cmd=tuple(config["cmd"]),
            ),
        )


def _config_json(config: ImageConfig) -> dict[str, Any]:
    return {
        "env": dict(config.env),
        "user": config.user,
        "workdir": config.workdir,
        "entrypoint": list(config.entrypoint),
        "cmd": list(config.cmd),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class NameRecord:
    """A name. ``created_at`` is seconds since 1970; ``details`` say from what it was made."""

    name: str
    digest: str
    origin: str
    created_at: float
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return what is stored."""
        return {
            "name": self.name,
            "digest": self.digest,
            "origin": self.origin,
            "created_at": self.created_at,
            "details": dict(self.details),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> NameRecord:
        """Read what ``to_json`` gave."""
        return cls(**value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageInfo:
    """One row of a listing. ``size_bytes`` counts layers that are shared with other images too."""

    name: str
    digest: str
    origin: str
    created_at: float
    size_bytes: int
    layers: int
    details: Mapping[str, Any] = field(default_factory=dict)
