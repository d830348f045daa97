"""Real sandboxes behind a way that a test can cut."""

from cloche.testing.sandboxes import busybox_image, driver, nothing_is_left, settings

__all__ = ["busybox_image", "driver", "nothing_is_left", "settings"]
