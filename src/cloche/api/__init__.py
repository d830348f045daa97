"""The shapes on the wire between a service and its clients. Must never do I/O."""
