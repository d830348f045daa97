"""An experiment as a pure state machine: events in, instructions out.

``docs/design/0002-experiment-core.md`` has the diagram. Must never read a clock, draw a random number that is
not seeded, or do any I/O: the shell in ``cloche.experiment`` does what the instructions say and reports back.
"""
