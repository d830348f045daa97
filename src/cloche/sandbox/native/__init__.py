"""The native runtime's Python side: it drives the spawner. Must never make a namespace or a mount itself."""
