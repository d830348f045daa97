"""Keeps an image in the store from when it is chosen until a sandbox's record says that it is used.

The lease is a shared lock on the image's manifest: it ends with its holder, whatever happens to it. Who
removes images takes the lock alone, and leaves an image that is leased. Taking it also notes when the image
was last used, as the manifest's time of change. Must never create anything.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cloche.core.errors import ImageError
from cloche.sandbox.settings import Settings


def manifest_path(settings: Settings, digest: str) -> Path:
    """Return where an image's manifest is, by its whole digest."""
    return settings.state_dir / "images" / "manifests" / f"{digest.removeprefix('sha256:')}.json"


@contextmanager
def lease(settings: Settings, digest: str) -> Iterator[None]:
    """Hold an image. One that the store does not know (made by hand) cannot be removed and needs no lease.

    Raises ImageError when it is being removed at this moment.
    """
    held = _open(manifest_path(settings, digest))
    try:
        yield
    finally:
        if held is not None:
            os.close(held)


def _open(path: Path) -> int | None:
    try:
        held = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if os.fstat(held).st_nlink == 0:
            raise BlockingIOError
        os.utime(held)
    except BaseException as error:
        os.close(held)
        if isinstance(error, BlockingIOError):
            raise ImageError(
                f"image {path.stem[:12]} is just being removed", hint="make it again, or ask once more"
            ) from None
        raise
    return held


@contextmanager
def alone(path: Path) -> Iterator[bool]:
    """Yield whether nobody leases the image of this manifest, and keep it so."""
    try:
        held = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield True
        return
    try:
        yield _try(held)
    finally:
        os.close(held)


def _try(held: int) -> bool:
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
