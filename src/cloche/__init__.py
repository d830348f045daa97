"""cloche runs agents, models and tasks in clean, isolated sandboxes and reports what worked.

This package root holds the version only; import from the sub-packages. It must never import any of
them, so that ``cloche --help`` stays fast.
"""

__version__ = "0.1.0"
