"""Tasks in Harbor's format: read, checked, refused where they cannot be executed, and graded.

It knows sandboxes but no agent, no model and no experiment. Reading a task must never execute
anything of it, follow a path out of its folder, or pass over a setting without a word.
"""

from __future__ import annotations

from cloche.tasks.load import find_tasks, load_task
from cloche.tasks.model import BrokenTask, Doubt, Finding, Refusal, Task, TaskInvalid
from cloche.tasks.refuse import refusals

__all__ = [
    "BrokenTask",
    "Doubt",
    "Finding",
    "Refusal",
    "Task",
    "TaskInvalid",
    "find_tasks",
    "load_task",
    "refusals",
]
