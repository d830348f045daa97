"""A store of its own for each test, a tiny base image, and a way to look at merged layers."""

from cloche.testing.images import base, merged, rootfs, store

__all__ = ["base", "merged", "rootfs", "store"]
