"""The HTTP face of the environment service. Must hold no state of sandboxes."""
