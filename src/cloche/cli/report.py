"""``cloche report``: the result table of a record. Must never change a record, nor need its tasks."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
def report(folder: Path) -> None:
    """Show the result table of a finished run."""
    from rich.console import Console

    from cloche.core.verdict import MISSING
    from cloche.experiment.record.folder import JobFolder
    from cloche.report.closing import print_report
    from cloche.report.summary import summarise

    job = JobFolder(folder)
    outcomes = job.outcomes()
    last = job.last_run()
    if last is None:
        click.echo("note: no run on this record has come to its end", err=True)
    print_report(
        Console(),
        summarise(outcomes),
        folder=str(folder),
        status=last.status if last else MISSING,
        sandboxes_left=last.sandboxes_left if last else None,
        seconds=last.seconds if last else None,
    )
