"""``cloche doctor``: what this machine can do. Must never change anything unless asked to."""

from __future__ import annotations

import json
import sys

import click

from cloche.cli.common import run_async


@click.command()
@click.option("--fix", "fix_", is_flag=True, help="Change host settings that are too low, and say which.")
@click.option("--unfix", "unfix_", is_flag=True, help="Put back what --fix has changed.")
@click.option("--leaks", is_flag=True, help="List what is left on the host that no live sandbox owns.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def doctor(fix_: bool, unfix_: bool, leaks: bool, as_json: bool) -> None:
    """Say what this machine can do, and mend what can be mended.

    Exits with 5 when sandboxes cannot run here, and with 1 when --leaks finds something.
    """
    from cloche.sandbox.settings import Settings

    settings = Settings()
    if leaks:
        sys.exit(_show_leaks(as_json=as_json))
    from cloche.sandbox import doctor as checks

    if unfix_:
        for line in checks.unfix(settings):
            click.echo(line)
        return
    if fix_:
        for line in checks.fix(settings):
            click.echo(line)
    rows = checks.check(settings)
    for row in rows:
        if as_json:
            click.echo(
                json.dumps({"name": row.name, "status": row.status, "detail": row.detail, "fix": row.fix})
            )
        else:
            fix_text = f"  fix: {row.fix}" if row.fix else ""
            click.echo(f" {row.name:<22} {row.status:<8} {row.detail}{fix_text}")
    if any(row.blocking for row in rows):
        sys.exit(5)


def _show_leaks(*, as_json: bool) -> int:
    from cloche.sandbox.driver import Leftover
    from cloche.sandbox.drivers.local import LocalDriver
    from cloche.sandbox.settings import Settings

    async def find() -> list[Leftover]:
        driver = LocalDriver(Settings())
        try:
            return await driver.leftovers()
        finally:
            await driver.close()

    found = run_async(find())
    for item in found:
        click.echo(
            json.dumps({"kind": item.kind, "name": item.name}) if as_json else f"{item.kind:<10} {item.name}"
        )
    if not found:
        click.echo("nothing is left behind", err=True)
    return 1 if found else 0
