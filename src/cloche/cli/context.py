"""``cloche context``: services by name, with keys. Must never take a key as an argument, nor print one."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from cloche.cli.listing import print_rows

if TYPE_CHECKING:
    from cloche.client.contexts import Contexts


def _contexts() -> Contexts:
    from cloche.client.contexts import Contexts, config_dir

    return Contexts(config_dir(os.environ))


@click.group()
def context() -> None:
    """Keep services by name, and say which one is used."""


@context.command()
@click.argument("name")
@click.argument("url")
@click.option("--key-stdin", is_flag=True, help="Read the key from standard input.")
@click.option("--use", "in_use", is_flag=True, help="Use it from now on.")
def add(name: str, url: str, key_stdin: bool, in_use: bool) -> None:
    """Keep the service at URL as NAME.

    Its key is asked for on a terminal, or read from standard input; it is kept in a file that only you can
    read.
    """
    from cloche.client.contexts import Context

    key = ""
    if key_stdin:
        key = sys.stdin.readline().strip()
    elif sys.stdin.isatty():
        key = click.prompt("key (empty for none)", hide_input=True, default="", show_default=False, err=True)
    contexts = _contexts()
    contexts.add(name, Context(url=url, key=key or None))
    if in_use:
        contexts.use(name)
    click.echo(name)


@context.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def ls(as_json: bool) -> None:
    """List the services that are kept."""
    contexts = _contexts()
    current = contexts.current_name()
    rows = [
        {"name": name, "url": item.url, "key": "set" if item.key else None, "in_use": name == current}
        for name, item in sorted(contexts.all().items())
    ]
    shown = rows if as_json else [{**row, "in_use": "*" if row["in_use"] else ""} for row in rows]
    print_rows(shown, as_json=as_json, short=("name", "url", "key", "in_use"))


@context.command()
@click.argument("name", required=False)
@click.option("--none", "nothing", is_flag=True, help="Use none: sandboxes are made by this machine.")
def use(name: str | None, nothing: bool) -> None:
    """Use the service NAME from now on."""
    from cloche.core.errors import InvalidInput

    if (name is None) != nothing:
        raise InvalidInput("name a context or use --none, one of the two")
    _contexts().use(name)


@context.command()
@click.argument("name")
def rm(name: str) -> None:
    """Forget the service NAME and its key."""
    _contexts().remove(name)
    click.echo(name)
