"""The sandboxes of the tests that run inside the virtual machine."""

from cloche.testing.sandboxes import busybox_image, driver, nothing_is_left, settings

__all__ = ["busybox_image", "driver", "nothing_is_left", "settings"]
