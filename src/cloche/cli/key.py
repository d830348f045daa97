"""``cloche key``: the keys of a service. Must never show a key but once, when it is made."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cloche.cli.common import Duration, Size

if TYPE_CHECKING:
    from cloche.server.keys import Keyring


def _keyring(path: Path | None) -> Keyring:
    from cloche.sandbox.settings import Settings
    from cloche.server.keys import Keyring
    from cloche.server.settings import ServerSettings

    return Keyring(ServerSettings(state_dir=Settings().state_dir / "server", keys=path).keys_file)


_keys_option = click.option(
    "--keys", type=click.Path(path_type=Path), help="The file of keys (default: the state folder's)."
)


@click.group()
def key() -> None:
    """Make, list and revoke the keys of a service. A service that runs notices at once."""


@key.command()
@click.argument("owner")
@click.option(
    "--scope", multiple=True, type=click.Choice(["read", "write", "admin"]), help="Default: read, write."
)
@click.option("--expires", type=Duration(), help="How long it works, such as 30d (default: for ever).")
@click.option("--note", default="", help="What it is for.")
@click.option("--sandboxes", type=click.IntRange(min=1), help="Sandboxes at once.")
@click.option("--cpus", type=click.FloatRange(min=0.01), help="CPUs at once.")
@click.option("--memory", type=Size(), help="Memory at once, such as 64g.")
@click.option("--creates-per-s", type=click.FloatRange(min=0.001), help="Starts a second; more wait.")
@click.option(
    "--requests-per-s", type=click.FloatRange(min=0.001), help="Requests a second; more are refused."
)
@click.option("--ttl", type=Duration(), help="The longest lease.")
@click.option("--floor", type=click.IntRange(min=0), default=0, help="Sandboxes that are always its own.")
@click.option("--weight", type=click.FloatRange(min=0.01), default=1.0, help="Its share when many want more.")
@_keys_option
def create(
    owner: str,
    scope: tuple[str, ...],
    expires: float | None,
    note: str,
    sandboxes: int | None,
    cpus: float | None,
    memory: int | None,
    creates_per_s: float | None,
    requests_per_s: float | None,
    ttl: float | None,
    floor: int,
    weight: float,
    keys: Path | None,
) -> None:
    """Make a key for OWNER and print it: it cannot be shown again."""
    from cloche.service.caller import Quota, Scope

    token, made = _keyring(keys).create(
        owner,
        scopes=frozenset(map(Scope, scope or ("read", "write"))),
        quota=Quota(
            sandboxes=sandboxes,
            cpus=cpus,
            memory_bytes=memory,
            creates_per_s=creates_per_s,
            requests_per_s=requests_per_s,
            ttl_s=ttl,
            floor=floor,
            weight=weight,
        ),
        expires_at=None if expires is None else time.time() + expires,
        note=note,
    )
    click.echo(token)
    click.echo(f"key {made.id} of {owner}; it is shown this once", err=True)


@key.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@_keys_option
def ls(as_json: bool, keys: Path | None) -> None:
    """List the keys, without what is secret."""
    from cloche.cli.listing import print_rows

    now = time.time()
    rows = [
        {
            "id": one.id,
            "owner": one.owner,
            "scopes": ",".join(sorted(scope.value for scope in one.scopes)),
            "created_at": one.created_at,
            "state": "ended" if one.is_over(now) else "good",
            "expires_at": one.expires_at,
            "note": one.note,
        }
        for one in _keyring(keys).all()
    ]
    print_rows(rows, as_json=as_json, short=("id", "owner", "scopes", "created_at", "state", "note"))


@key.command()
@click.argument("key_id")
@_keys_option
def revoke(key_id: str, keys: Path | None) -> None:
    """End the key KEY_ID, and every token and link made with it."""
    revoked = _keyring(keys).revoke(key_id)
    click.echo(f"key {revoked.id} of {revoked.owner} is revoked", err=True)
