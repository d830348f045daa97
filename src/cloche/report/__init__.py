"""Figures, intervals, tables and the live view. Must never decide anything: it shows what is given to it."""
