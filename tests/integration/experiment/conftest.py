"""Whole experiments in real sandboxes."""

from cloche.testing.experiments import installation, lab, make_task

__all__ = ["installation", "lab", "make_task"]
