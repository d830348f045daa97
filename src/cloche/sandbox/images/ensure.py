"""What the runner calls: an image by name, or by what it is built from.

What is here is taken; what is not and names a registry is pulled. Must never bootstrap a base by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cloche.core.errors import NotFound
from cloche.sandbox.images.builds import DEFAULT_TIMEOUT_S, build
from cloche.sandbox.images.policy import ImagePolicy
from cloche.sandbox.images.records import NameRecord
from cloche.sandbox.images.registry import RegistrySettings, pull
from cloche.sandbox.images.registry.pull import DEFAULT_TIMEOUT_S as PULL_TIMEOUT_S
from cloche.sandbox.images.registry.reference import find_registry
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


async def ensure_image(
    store: ImageStore, name: str, *, timeout_s: float = PULL_TIMEOUT_S, policy: ImagePolicy | None = None
) -> PreparedImage:
    """Return the image of a name, pulled if it is not here and names a registry.

    ``policy`` (default: the environment's) says which images may be used. Raises UsageError for one that may
    not be, NotFound with a hint for one that names no registry and is not here, else as
    ``ImageStore.resolve`` and ``registry.pull`` do.
    """
    policy = policy or ImagePolicy.from_environment()
    record = await asyncio.to_thread(store.find, name)
    policy.check_pinned(name, record.digest if record else None)
    policy.check_allowed(_known_as(record) if record else name)
    try:
        return await asyncio.to_thread(store.resolve, name)
    except NotFound:
        settings = RegistrySettings.from_environment()
        if find_registry(name, settings) is None:
            raise
    return await pull(store, name, if_missing=True, timeout_s=timeout_s, settings=settings)


def _known_as(record: NameRecord) -> str:
    """Return the name that says where an image came from: of a snapshot, the image it began from."""
    return str(record.details.get("root", record.name))


async def prepare(
    store: ImageStore,
    wanted: str | BuildRequest,
    *,
    timeout_s: float = PULL_TIMEOUT_S,
    policy: ImagePolicy | None = None,
) -> PreparedImage:
    """Return an image that is ready to make sandboxes from, pulled or built first if need be.

    The bases of a build are pulled too. ``timeout_s`` is for a name; a request has its own.
    Raises as ``ensure_image`` and ``builds.build`` do.
    """
    if isinstance(wanted, str):
        return await ensure_image(store, wanted, timeout_s=timeout_s, policy=policy)
    return await build(
        store,
        wanted.context,
        wanted.dockerfile,
        name=wanted.name,
        build_args=wanted.build_args,
        timeout_s=wanted.timeout_s,
        policy=policy,
    )
