"""``cloche version``. Must never need the network or root."""

from __future__ import annotations

import platform

import click

from cloche import __version__


@click.command()
def version() -> None:
    """Print the versions that a report of a fault needs."""
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    click.echo(f"cloche {__version__}  python {platform.python_version()}  {system}")
