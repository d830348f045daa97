"""Images of an experiment: each prepared once, however many trials wait for it, few builds at a time.

Must never start a build for a trial that is not going to run, nor build one content twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from cloche.core.errors import ImageError, NotFound
from cloche.sandbox.images.ensure import BuildRequest, prepare
from cloche.sandbox.images.store import ImageStore
from cloche.sandbox.spec import PreparedImage
from cloche.tasks.model import Task

BUILDS_AT_ONCE = 2

Prepare = Callable[[Task, float], Awaitable[PreparedImage]]


def store_images(store: ImageStore) -> Prepare:
    """Return what prepares a task's image in a store; its second argument is the limit in seconds."""
    places = asyncio.Semaphore(BUILDS_AT_ONCE)

    async def prepared(task: Task, timeout_s: float) -> PreparedImage:
        environment = task.environment
        async with places:
            try:
                if environment.docker_image is not None:
                    return await prepare(store, environment.docker_image, timeout_s=timeout_s)
                if environment.context is None:
                    raise ImageError(f"task `{task.name}` names no image")
                return await prepare(
                    store,
                    BuildRequest(
                        context=environment.context,
                        dockerfile=environment.dockerfile,
                        build_args=environment.build_args,
                        timeout_s=timeout_s,
                    ),
                )
            except NotFound as error:
                raise ImageError(error.message, hint=error.hint, where=str(task.path)) from error

    return prepared
