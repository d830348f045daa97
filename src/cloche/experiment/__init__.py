"""Experiments: a plan, the trials it makes, and their record.

The only part that knows tasks and agents at once. Must never decide in a coroutine what a pure function of
``cloche.core`` can decide, and never leave a sandbox behind.
"""
