"""The Python SDK: the same sandboxes from a service or embedded. Must never clean up in ``__del__``."""
