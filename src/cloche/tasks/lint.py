"""All that is wrong, refused or doubtful about a task, with what only an author needs to hear.

Must never execute anything, and never call a task broken that the runner would run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from cloche.tasks.folder import TEXT_BYTES_MAX, printable
from cloche.tasks.model import BrokenTask, Doubt, Finding, Step, Task
from cloche.tasks.refuse import refusals

_GIVES_AWAY = ("/tests", "/solution", "/logs/verifier")


class Level(StrEnum):
    """How bad a finding is: the task cannot be understood, cannot be run, or may not be what was meant."""

    ERROR = "error"
    REFUSED = "refused"
    DOUBT = "doubt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A finding about one task and how bad it is."""

    task: str
    level: Level
    finding: Finding

    @property
    def runs(self) -> bool:
        """Whether the task runs all the same."""
        return self.level is Level.DOUBT


def lint(task: Task | BrokenTask, environ: Mapping[str, str] | None = None) -> list[Note]:
    """Return every finding about a task, the worst first. ``environ`` is the host's environment."""
    if isinstance(task, BrokenTask):
        return [Note(task=task.name, level=Level.ERROR, finding=finding) for finding in task.findings]
    refused = [Note(task=task.name, level=Level.REFUSED, finding=item) for item in refusals(task, environ)]
    doubts = [*task.doubts, *_advice(task)]
    return refused + [Note(task=task.name, level=Level.DOUBT, finding=item) for item in doubts]


def _advice(task: Task) -> Iterator[Doubt]:
    for stage in task.stages:
        yield from _about_stage(task, stage)


def _about_stage(task: Task, stage: Step) -> Iterator[Doubt]:
    whose = f"of the step `{stage.name}` " if stage.name else ""
    config = _shown(task, "task.toml")
    if stage.agent.timeout_s is None:
        message = f"the agent {whose}has no time limit, and may run for ever"
        yield Doubt(code="lint/no_timeout", message=message, where=config, hint="set agent.timeout_sec")
    if stage.solution.script is None:
        message = f"there is no solution {whose}".rstrip() + ", so nothing shows that it can be solved"
        where = _shown(task, f"steps/{stage.name}/solution" if stage.name else "solution")
        yield Doubt(code="lint/no_solution", message=message, where=where, hint="write solve.sh there")
    name = f"steps/{stage.name}/instruction.md" if stage.name else "instruction.md"
    for number, line in enumerate(stage.instruction.split("\n"), 1):
        for word in _GIVES_AWAY:
            if word in line:
                message = (
                    f"the instruction speaks of `{word}`, which the agent cannot see (line {number} of it)"
                )
                yield Doubt(code="lint/gives_away", message=message, where=_shown(task, name))
                break
    for script in (stage.verifier.script, stage.solution.script, stage.setup):
        if script is not None:
            yield from _about_script(task, script)


def _about_script(task: Task, script: Path) -> Iterator[Doubt]:
    if not script.is_file() or script.stat().st_size > TEXT_BYTES_MAX:
        return
    where = _shown(task, os.path.relpath(script, task.path))
    content = script.read_bytes()
    if b"\r\n" in content:
        line = content.split(b"\r\n", 1)[0].count(b"\n") + 1
        message = "the script has lines that end with CR LF, which shells do not take"
        yield Doubt(code="lint/line_ends", message=message, where=f"{where}:{line}", hint="save it with LF")
    if not content.startswith(b"#!"):
        message = "the script does not begin with `#!`, so it depends on the shell that is there"
        yield Doubt(
            code="lint/no_interpreter", message=message, where=f"{where}:1", hint="begin with #!/bin/sh"
        )


def _shown(task: Task, name: str) -> str:
    return printable(str(task.path / name))
