"""``cloche config``: what is configured, and by whom. Must never print a key."""

from __future__ import annotations

import click

from cloche.cli.listing import print_rows


@click.group()
def config() -> None:
    """Look at the configuration."""


@config.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def show(as_json: bool) -> None:
    """Print every setting, its value, and where that was said.

    cloche.toml (here or in a folder above) is weaker than the user's file, that than CLOCHE_* variables, and
    those than flags.
    """
    from cloche.client.config import SECRETS, keys, load

    loaded = load()
    rows = []
    for key in keys():
        value: object = loaded.config
        for part in key.split("."):
            value = getattr(value, part)
        setting = loaded.said.get(key)
        if key in SECRETS and value is not None:
            value = "***"
        rows.append({"setting": key, "value": value, "source": setting.source if setting else "default"})
    current = loaded.contexts.current_name()
    rows.append({"setting": "context in use", "value": current, "source": str(loaded.contexts.path)})
    rows.append({"setting": "service", "value": loaded.service().url or "this machine", "source": "all that"})
    print_rows(rows, as_json=as_json, short=("setting", "value", "source"))
