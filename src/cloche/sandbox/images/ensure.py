"""What the runner calls: an image by name, or by what it is built from. Must never make a base by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cloche.sandbox.images.builds import DEFAULT_TIMEOUT_S, build
from cloche.sandbox.images.store import ImageStore
from cloche.sandbox.spec import PreparedImage


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    """A Dockerfile (default ``context/Dockerfile``) with its context and arguments."""

    context: Path
    dockerfile: Path | None = None
    name: str | None = None
    build_args: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = DEFAULT_TIMEOUT_S


async def ensure_image(store: ImageStore, name: str) -> PreparedImage:
    """Return the image of a name. Raises NotFound with a hint, as ``ImageStore.resolve`` does."""
    return await asyncio.to_thread(store.resolve, name)


async def prepare(store: ImageStore, wanted: str | BuildRequest) -> PreparedImage:
    """Return an image that is ready to make sandboxes from, built first if need be.

    Raises as ``ImageStore.resolve`` and ``builds.build`` do.
    """
    if isinstance(wanted, str):
        return await ensure_image(store, wanted)
    return await build(
        store,
        wanted.context,
        wanted.dockerfile,
        name=wanted.name,
        build_args=wanted.build_args,
        timeout_s=wanted.timeout_s,
    )
