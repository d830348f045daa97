"""``cloche dataset``: look at sets of tasks. Must never execute anything of a task."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from cloche.tasks import BrokenTask, Task


@click.group()
def dataset() -> None:
    """Look at sets of tasks."""


@dataset.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def ls(paths: tuple[str, ...], as_json: bool) -> None:
    """List the tasks in PATH: what each asks for, and whether it runs here."""
    from cloche.cli.listing import table
    from cloche.tasks import find_tasks

    rows = [_row(item) for item in find_tasks(paths)]
    if as_json:
        for row in rows:
            click.echo(json.dumps(row))
        return
    click.echo(table(rows))
    runs = sum(row["runs"] == "yes" for row in rows)
    click.echo(f"{len(rows)} tasks · {runs} run here", err=True)


def _row(item: Task | BrokenTask) -> dict[str, object]:
    from cloche.tasks import BrokenTask, refusals

    if isinstance(item, BrokenTask):
        blank = dict.fromkeys(("steps", "image", "network", "agent_s", "digest"))
        return {"task": item.name, **blank, "runs": f"no: {item.findings[0].code}"}
    environment = item.environment
    refused = refusals(item)
    limits = [stage.agent.timeout_s for stage in item.stages]
    known = [limit for limit in limits if limit is not None]
    return {
        "task": item.full_name,
        "steps": len(item.steps) or None,
        "image": environment.docker_image or "Dockerfile",
        "network": str(environment.network),
        "agent_s": f"{sum(known):g}" if len(known) == len(limits) else "no limit",
        "digest": item.digest[:19],
        "runs": f"no: {refused[0].code}" if refused else "yes",
    }
