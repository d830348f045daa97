"""Images by name for a service: what may be used, each name resolved once at a time. Must never run one."""

from __future__ import annotations

import asyncio
from fnmatch import fnmatchcase
from typing import Protocol

from cloche.core.errors import PlanRefused
from cloche.sandbox.images.ensure import ensure_image
from cloche.sandbox.images.store import ImageStore
from cloche.sandbox.spec import PreparedImage
from cloche.service.settings import ServiceSettings


class ImageResolver(Protocol):
    """Finds or makes images."""

    async def resolve(self, name: str) -> PreparedImage:
        """Return the image, pulled if need be. Raises NotFound or ImageError."""


class StoreImages:
    """Images of an installation's store, pulled where their name says from where."""

    def __init__(self, store: ImageStore) -> None:
        self._store = store

    async def resolve(self, name: str) -> PreparedImage:
        """See :class:`ImageResolver`."""
        return await ensure_image(self._store, name)


def check_name(name: str, settings: ServiceSettings) -> None:
    """Raise PlanRefused for an image that this service does not run."""
    if not any(fnmatchcase(name, pattern) for pattern in settings.allow_images):
        allowed = ", ".join(settings.allow_images)
        raise PlanRefused(f"image {name} is not allowed here", hint=f"allowed are: {allowed}", where="image")
    if settings.locked and "@sha256:" not in name and not name.startswith(("sha256:", "snapshot/")):
        raise PlanRefused(
            f"image {name} may change: this service takes images by digest only",
            hint="write NAME@sha256:…; cloche image ls shows digests",
            where="image",
        )


class OnceAtATime:
    """Resolves each name once, however many ask for it meanwhile."""

    def __init__(self, resolver: ImageResolver, settings: ServiceSettings) -> None:
        self._resolver = resolver
        self._settings = settings
        self._on: dict[str, asyncio.Task[PreparedImage]] = {}

    async def resolve(self, name: str) -> PreparedImage:
        """Return the image; a caller that goes away does not stop it for the others."""
        check_name(name, self._settings)
        task = self._on.get(name)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._resolver.resolve(name))
            self._on[name] = task
            task.add_done_callback(lambda done: self._done(name, done))
        return await asyncio.shield(task)

    def _done(self, name: str, task: asyncio.Task[PreparedImage]) -> None:
        self._on.pop(name, None)
        if not task.cancelled():
            task.exception()  # whoever still waits gets it

    async def close(self) -> None:
        """Stop what is on."""
        tasks = list(self._on.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
