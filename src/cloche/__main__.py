"""``python -m cloche``: the command line. Must hold nothing else."""

from cloche.cli import main

main()
