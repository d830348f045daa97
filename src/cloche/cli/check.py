"""``cloche task check``: the oracle and nop on every task. Must never leave a sandbox behind."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from cloche.experiment.plan import Plan
    from cloche.experiment.session import Ending


def check_tasks(paths: tuple[str, ...], *, repeats: int, concurrency: int | None, out: str | None) -> int:
    """Run it, print a line for each task and the reasons, and return the exit status."""
    from cloche.cli.common import run_async
    from cloche.experiment.check import AGENTS, checks, line
    from cloche.experiment.plan import make_plan
    from cloche.tasks import find_tasks

    plan = make_plan(
        find_tasks(paths),
        AGENTS,
        [],
        repeats=repeats,
        concurrency=concurrency or 2 * (os.cpu_count() or 1),
    )
    folder = Path(out) if out else Path(tempfile.mkdtemp(prefix="cloche-check-"))
    ending = run_async(_conduct(plan, folder))
    found = checks(ending.outcomes, repeats)
    for check in found:
        click.echo(line(check))
        for problem in check.problems:
            click.echo(f"        {problem}")
    sound = sum(check.sound for check in found)
    click.echo(f"{sound} of {len(found)} tasks are sound", err=True)
    if sound == len(found):
        if out is None:
            shutil.rmtree(folder)
        return 0
    click.echo(f"record: {folder}", err=True)
    if ending.unusable is not None:
        return 5
    return 2 if len(plan.refused) == len(plan.trials) else 1


async def _conduct(plan: Plan, folder: Path) -> Ending:
    from cloche.experiment.images import store_images
    from cloche.experiment.runner import Watch
    from cloche.experiment.session import Session
    from cloche.sandbox.drivers.local import LocalDriver
    from cloche.sandbox.images.store import ImageStore
    from cloche.sandbox.settings import Settings

    settings = Settings()
    driver = LocalDriver(settings)
    try:
        session = Session(plan, folder, driver, store_images(ImageStore(settings)))
        return await session.run(Watch(), lambda _trial: None)
    finally:
        await driver.close()
