"""The pure core: decisions and names, with no clock, no disk, no socket and no event loop."""
