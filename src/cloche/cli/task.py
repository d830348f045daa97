"""``cloche task``: look at tasks before anything runs. Must never execute anything of a task."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from cloche.tasks import BrokenTask, Finding, Refusal, Task
    from cloche.tasks.model import Env, Step


@click.group()
def task() -> None:
    """Look at tasks, check them, begin new ones."""


@task.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def show(paths: tuple[str, ...], as_json: bool) -> None:
    """Show what cloche understands of the tasks in PATH, what it refuses and what it doubts.

    PATH is a task's folder or a folder of such folders. Exits with 2 when a task cannot be understood.
    """
    from cloche.tasks import BrokenTask, find_tasks, refusals

    found = find_tasks(paths)
    for index, item in enumerate(found):
        if isinstance(item, BrokenTask):
            lines = [json.dumps(_broken_record(item))] if as_json else list(_broken_lines(item))
        else:
            refused = refusals(item)
            lines = [json.dumps(_record(item, refused))] if as_json else list(_lines(item, refused))
        if index and not as_json:
            click.echo()
        click.echo("\n".join(lines))
    if any(isinstance(item, BrokenTask) for item in found):
        sys.exit(2)


@task.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option("--strict", is_flag=True, help="Exit with 1 when anything is doubted.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each finding, one a line.")
def lint(paths: tuple[str, ...], strict: bool, as_json: bool) -> None:
    """Say all that is wrong, refused or doubtful about the tasks in PATH, each with its place and a fix.

    Executes nothing. Exits with 2 when a task cannot be understood or is refused here, else with 0, or with
    1 when something is doubted and --strict is given.
    """
    from cloche.tasks import find_tasks
    from cloche.tasks.lint import lint as findings

    found = find_tasks(paths)
    notes = [note for item in found for note in findings(item)]
    for note in notes:
        if as_json:
            record = {"task": note.task, "level": str(note.level), **_finding(note.finding)}
            click.echo(json.dumps(record))
        else:
            click.echo(f"{note.finding.where}: {note.level}: {note.finding.message}  [{note.finding.code}]")
            if note.finding.hint:
                click.echo(f"    hint: {note.finding.hint}")
    stopped = len({note.task for note in notes if not note.runs})
    doubted = sum(note.runs for note in notes)
    click.echo(f"{len(found)} tasks · {stopped} that do not run · {doubted} doubts", err=True)
    if stopped:
        sys.exit(2)
    if strict and doubted:
        sys.exit(1)


@task.command()
@click.argument("folder", metavar="FOLDER", type=click.Path(path_type=Path))
@click.option("--organisation", default="local", show_default=True, help="First part of the task's name.")
@click.option("--image", default="debian:12", show_default=True, help="What its Dockerfile begins with.")
def new(folder: Path, organisation: str, image: str) -> None:
    """Begin a task in FOLDER: a small one that passes `cloche task check`, to be changed from there."""
    from cloche.tasks.skeleton import new_task

    for path in new_task(folder, organisation=organisation, image=image):
        click.echo(str(path))
    click.echo(f"next: cloche task check {folder}", err=True)


@task.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option("-k", "--repeats", type=click.IntRange(min=1), default=1, show_default=True, help="How often.")
@click.option(
    "-n", "--concurrency", type=click.IntRange(min=1), help="Trials at once (default: two per CPU)."
)
@click.option("-o", "--out", metavar="DIR", help="Folder of the record (default: kept only on failure).")
def check(paths: tuple[str, ...], repeats: int, concurrency: int | None, out: str | None) -> None:
    """Run the tasks in PATH: the reference solution must score 1 and doing nothing 0, every time.

    Exits with 0 when all tasks are sound, with 1 when one is not, with 2 when all are refused.
    """
    from cloche.cli.check import check_tasks

    sys.exit(check_tasks(paths, repeats=repeats, concurrency=concurrency, out=out))


def _finding(finding: Finding) -> dict[str, str]:
    return {
        "code": finding.code,
        "message": finding.message,
        "where": finding.where,
        "hint": finding.hint,
    }


def _env(env: Env) -> dict[str, str]:
    return {name: value.text for name, value in env.items()}


def _broken_record(broken: BrokenTask) -> dict[str, Any]:
    return {
        "name": broken.name,
        "path": str(broken.path),
        "broken": [_finding(finding) for finding in broken.findings],
    }


def _record(task: Task, refused: list[Refusal]) -> dict[str, Any]:
    environment = task.environment
    return {
        "name": task.name,
        "full_name": task.full_name,
        "path": str(task.path),
        "digest": task.digest,
        "schema_version": task.schema_version,
        "description": task.description,
        "keywords": list(task.keywords),
        "metadata": json.loads(json.dumps(task.metadata, default=str)),
        "instruction": task.instruction,
        "environment": {
            "docker_image": environment.docker_image,
            "dockerfile": _relative(task, environment.dockerfile),
            "build_timeout_s": environment.build_timeout_s,
            "cpus": environment.cpus,
            "memory_bytes": environment.memory_bytes,
            "storage_bytes": environment.storage_bytes,
            "network": str(environment.network),
            "network_stated": environment.network_stated,
            "workdir": environment.workdir,
            "env": _env(environment.env),
        },
        "agent": {"timeout_s": task.agent.timeout_s, "user": task.agent.user},
        "verifier": {
            "separate": task.verifier.separate,
            "timeout_s": task.verifier.timeout_s,
            "user": task.verifier.user,
            "env": _env(task.verifier.env),
        },
        "solution": _relative(task, task.solution.script),
        "strategy": str(task.strategy) if task.steps else None,
        "steps": [_stage_record(task, step) for step in task.steps],
        "artifacts": [artifact.source for artifact in task.artifacts],
        "healthcheck": environment.healthcheck.command if environment.healthcheck else None,
        "skills_dir": environment.skills_dir,
        "not_enforced": list(task.not_enforced),
        "refusals": [_finding(finding) for finding in refused],
        "doubts": [_finding(finding) for finding in task.doubts],
    }


def _stage_record(task: Task, step: Step) -> dict[str, Any]:
    return {
        "name": step.name,
        "instruction": step.instruction,
        "agent": {"timeout_s": step.agent.timeout_s, "user": step.agent.user},
        "verifier": {
            "separate": step.verifier.separate,
            "timeout_s": step.verifier.timeout_s,
            "user": step.verifier.user,
            "env": _env(step.verifier.env),
        },
        "min_reward": dict(step.min_reward),
        "healthcheck": step.healthcheck.command if step.healthcheck else None,
        "artifacts": [artifact.source for artifact in step.artifacts],
        "solution": _relative(task, step.solution.script),
    }


def _relative(task: Task, path: Path | None) -> str | None:
    return None if path is None else str(path.relative_to(task.path))


def _broken_lines(broken: BrokenTask) -> Iterator[str]:
    yield f"{broken.name}  cannot be understood"
    for finding in broken.findings:
        yield from _finding_lines("broken", finding)


def _finding_lines(word: str, finding: Finding) -> Iterator[str]:
    yield f"  {word:<9} {finding.message}  [{finding.code}]"
    yield f"            {finding.where}"
    if finding.hint:
        yield f"            hint: {finding.hint}"


def _lines(task: Task, refused: list[Refusal]) -> Iterator[str]:
    yield task.full_name + (f"  {task.description}" if task.description else "")
    for name, text in _facts(task):
        yield f"  {name:<9} {text}"
    for refusal in refused:
        yield from _finding_lines("refused", refusal)
    for doubt in task.doubts:
        yield from _finding_lines("doubt", doubt)
    if not refused:
        yield "  runs      yes: nothing in it is refused"


def _facts(task: Task) -> Iterator[tuple[str, str]]:
    environment = task.environment
    yield "path", str(task.path)
    yield "digest", task.digest
    image = environment.docker_image or _relative(task, environment.dockerfile) or "none"
    yield "image", f"{image} (ready within {environment.build_timeout_s:g} s)"
    yield "limits", " · ".join(_limits(task))
    default = "" if environment.network_stated else " (the format's default)"
    yield "network", f"{environment.network}{default}"
    users = {"agent": task.agent.user, "verifier": task.verifier.user}
    yield "users", " · ".join(f"{phase} {user or 'as the image says'}" for phase, user in users.items())
    yield "workdir", environment.workdir or "as the image says"
    for title, env in (("env", environment.env), ("test env", task.verifier.env)):
        if env:
            yield title, " ".join(f"{name}={value.text}" for name, value in env.items())
    if environment.healthcheck is not None:
        yield "health", environment.healthcheck.command
    if task.verifier.separate:
        yield "grading", "in an environment of the verifier's own"
    for artifact in task.artifacts:
        yield "artifact", f"{artifact.source} → artifacts/{artifact.target}"
    for step in task.steps:
        yield "step", _step_line(step)
    if any(stage.solution.script is None for stage in task.stages):
        yield "solution", "none: the oracle cannot do it"
    else:
        yield "solution", ", ".join(str(_relative(task, stage.solution.script)) for stage in task.stages)


def _step_line(step: Step) -> str:
    agent = step.agent.timeout_s
    limit = "agent without time limit" if agent is None else f"agent {agent:g} s"
    parts = [step.name, limit, f"verifier {step.verifier.timeout_s:g} s"]
    if step.verifier.separate:
        parts.append("graded apart")
    parts += [f"goes on from {key} {least:g}" for key, least in step.min_reward.items()]
    return " · ".join(parts)


def _limits(task: Task) -> Iterator[str]:
    environment = task.environment
    if environment.cpus is not None:
        yield f"{environment.cpus:g} CPU"
    for what, size in (("memory", environment.memory_bytes), ("storage", environment.storage_bytes)):
        if size is not None:
            yield f"{what} {size >> 20} MiB" + (" (where the store has limits)" if what == "storage" else "")
    agent = task.agent.timeout_s
    yield "agent without time limit" if agent is None else f"agent {agent:g} s"
    yield f"verifier {task.verifier.timeout_s:g} s"
