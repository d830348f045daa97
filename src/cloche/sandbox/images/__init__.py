"""Images: imported, bootstrapped or built; unpacked once, addressed by content, shared by all sandboxes.

    ImageStore(settings).resolve("debian:12")      the image of a name, ready for a driver
    await bootstrap(store, "debian:12")            make Debian's base system from this machine's own sources
    await build(store, folder)                     build a Dockerfile, once per content

Must never know of a task or an agent. What is kept where: docs/images.md.
"""

from __future__ import annotations

from cloche.sandbox.images.records import ImageInfo
from cloche.sandbox.images.store import ImageStore

__all__ = ["ImageInfo", "ImageStore"]
