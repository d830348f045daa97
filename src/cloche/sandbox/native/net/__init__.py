"""What a sandbox may reach: the sets of the kernel, who is in them, and what was refused.

Runs in the gateway's process (``native/resolver.py``), one per installation; ``client`` is the way in from
all others. Must never open anything that could not be read back from the kernel.
"""
