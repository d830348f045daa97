"""A client of OCI registries: images are pulled from where their name says, and nowhere else.

    reference    which registry a name means, and whether it may be spoken to without TLS
    credentials  user and password of a registry, from a file that the user named
    challenge    what a registry wants to see before it answers
    client       requests: authentication, redirects, retries, streams to the disk
    manifests    what a registry says about an image, checked
    layers       a layer's blob to an unpacked folder, with overlayfs' marks for what is deleted
    complete     what the layers of an image lack to be merged as one that is unpacked in order
    pull         all of it: one image from a registry to the store

Must never send a name without a registry's host anywhere (unless a default registry is set), nor a
credential to another host than the one that it is for, nor log or store one.
Sources: the OCI distribution and image specifications, 1.1.
"""

from __future__ import annotations

from cloche.sandbox.images.registry.errors import RegistryError
from cloche.sandbox.images.registry.pull import pull
from cloche.sandbox.images.registry.reference import RegistrySettings

__all__ = ["RegistryError", "RegistrySettings", "pull"]
