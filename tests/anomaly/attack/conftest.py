"""Faults are shown with real sandboxes: as root, on this machine, leaving nothing."""

from cloche.testing.sandboxes import busybox_image, driver, nothing_is_left, settings

__all__ = ["busybox_image", "driver", "nothing_is_left", "settings"]
