"""Images: imported, bootstrapped, built or pulled; unpacked once, shared by all sandboxes.

    ImageStore(settings).resolve("debian:12")      the image of a name, ready for a driver
    await bootstrap(store, "debian:12")            make Debian's base system from this machine's own sources
    await build(store, folder)                     build a Dockerfile, once per content
    await pull(store, "host.example/tool:1")       pull an image from a registry
    await prepare(store, name_or_build_request)    what is here, pulled or built, as the runner needs it

Must never know of a task or an agent. What is kept where: docs/images.md.
"""

from __future__ import annotations

from cloche.sandbox.images.builds import build, collect
from cloche.sandbox.images.debian import bootstrap
from cloche.sandbox.images.ensure import BuildRequest, ensure_image, prepare
from cloche.sandbox.images.gc import gc
from cloche.sandbox.images.policy import ImagePolicy
from cloche.sandbox.images.records import ImageInfo
from cloche.sandbox.images.registry import RegistryError, RegistrySettings, pull
from cloche.sandbox.images.store import ImageStore
from cloche.sandbox.images.tools import tool_status

__all__ = [
    "BuildRequest",
    "ImageInfo",
    "ImagePolicy",
    "ImageStore",
    "RegistryError",
    "RegistrySettings",
    "bootstrap",
    "build",
    "collect",
    "ensure_image",
    "gc",
    "prepare",
    "pull",
    "tool_status",
]
