"""Faults of whole experiments, shown in real sandboxes; nothing may be left after any of them."""

from cloche.testing.experiments import installation, lab, make_task
from cloche.testing.sandboxes import busybox_image, driver, nothing_is_left, settings

__all__ = ["busybox_image", "driver", "installation", "lab", "make_task", "nothing_is_left", "settings"]
