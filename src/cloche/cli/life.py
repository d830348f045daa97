"""What ``cloche sandbox`` does with a sandbox as a whole. Must never do more than the Python API offers."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

from cloche.cli.backend import backend, held
from cloche.cli.common import Duration, parse_pairs, run_async
from cloche.cli.listing import print_rows
from cloche.core.errors import InvalidInput

if TYPE_CHECKING:
    from cloche.api.models import EventView, NetworkBody, SandboxView

NOT_YET_STATUS = 124


@click.command()
@click.argument("name")
def pause(name: str) -> None:
    """Freeze every process of sandbox NAME; its lease goes on."""

    async def act() -> None:
        async with backend() as opened:
            await opened.pause(name)

    run_async(act())


@click.command()
@click.argument("name")
def resume(name: str) -> None:
    """Let sandbox NAME go on."""

    async def act() -> None:
        async with backend() as opened:
            await opened.resume(name)

    run_async(act())


@click.command()
@click.argument("name")
@click.option("-n", "--count", type=click.IntRange(min=1, max=1000), default=1, show_default=True)
@click.option("--label", multiple=True, metavar="NAME=VALUE", help="A label of the new ones.")
@click.option("--ttl", type=Duration(), default=3600.0, show_default="1h", help="Time to live; 0 for ever.")
def fork(name: str, count: int, label: tuple[str, ...], ttl: float) -> None:
    """Make sandboxes whose files begin as those of NAME are now, and print their names."""
    labels = parse_pairs(label, "--label")

    async def act() -> list[str]:
        async with held(name) as box:
            made = await box.fork(count, labels=labels, ttl_s=ttl or None, heartbeat_s=None)
            for other in made:
                await other.close()
            return [other.id for other in made]

    for sandbox_id in run_async(act()):
        click.echo(sandbox_id)


@click.command()
@click.argument("name")
@click.argument("image", required=False)
@click.option("--json", "as_json", is_flag=True, help="Name, digest and origin as JSON.")
def snapshot(name: str, image: str | None, as_json: bool) -> None:
    """Make an image of the files of sandbox NAME, called IMAGE, and print its name."""

    async def act() -> tuple[str, str]:
        async with held(name) as box:
            made = await box.snapshot(image)
            return made.name, made.model_dump_json()

    made, text = run_async(act())
    click.echo(text if as_json else made)


@click.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def diff(name: str, as_json: bool) -> None:
    """Print what sandbox NAME changed: A added, M modified, D deleted."""

    async def act() -> list[dict[str, object]]:
        async with backend() as opened:
            return [item.model_dump() for item in (await opened.diff(name)).items]

    for row in run_async(act()):
        click.echo(json.dumps(row) if as_json else f"{str(row['kind'])[0].upper()} {row['path']}")


@click.command()
@click.argument("name")
@click.argument("mode", type=click.Choice(["none", "allowlist", "public"]), required=False)
@click.option("--allow", multiple=True, metavar="HOST[:PORT]", help="What an allowlist names; repeatable.")
@click.option("--preset", multiple=True, help="A list that the host knows, such as packages; repeatable.")
def net(name: str, mode: str | None, allow: tuple[str, ...], preset: tuple[str, ...]) -> None:
    """Print what sandbox NAME may reach, or change it: to MODE, or to an allowlist."""
    if mode in {"none", "public"} and (allow or preset):
        raise InvalidInput(f"--allow and --preset are for an allowlist, not for {mode}")

    async def act() -> NetworkBody:
        from cloche.client.request import network_body

        async with backend() as opened:
            if mode is None and not allow and not preset:
                return (await opened.get(name)).network
            chosen = "none" if mode == "none" else "public" if mode == "public" else "allowlist"
            return await opened.set_network(name, network_body(chosen, allow, preset))  # type: ignore[arg-type]

    click.echo(run_async(act()).model_dump_json())


@click.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def logs(name: str, as_json: bool) -> None:
    """Print the connections that the network policy of sandbox NAME refused."""

    async def act() -> list[dict[str, object]]:
        async with backend() as opened:
            return [item.model_dump() for item in (await opened.denials(name)).items]

    print_rows(run_async(act()), as_json=as_json, short=("at", "name", "address", "port", "protocol"))


@click.command()
@click.argument("name")
@click.argument("port", type=click.IntRange(1, 65535))
@click.option("--ttl", type=Duration(), default=3600.0, show_default="1h", help="How long it works.")
def url(name: str, port: int, ttl: float) -> None:
    """Print a URL that reaches PORT inside sandbox NAME."""

    async def act() -> str:
        async with backend() as opened:
            return (await opened.link(name, port, ttl)).url

    click.echo(run_async(act()))


@click.command()
@click.argument("name")
@click.option("--state", "states", multiple=True, help="Wait for this state instead of the end; repeatable.")
@click.option("--timeout", type=Duration(), help="Give up after this time (status 124).")
@click.option("--json", "as_json", is_flag=True, help="The whole sandbox as JSON.")
def wait(name: str, states: tuple[str, ...], timeout: float | None, as_json: bool) -> None:
    """Wait until sandbox NAME has ended, and print its state and why."""
    from cloche.api.models import State

    known = {state.value for state in State}
    if wrong := set(states) - known:
        raise InvalidInput(f"there is no state {min(wrong)}", hint=f"one of {', '.join(sorted(known))}")

    async def act() -> SandboxView:
        import asyncio

        async with backend() as opened, asyncio.timeout(timeout):
            return await opened.wait(name, {State(item) for item in states or ("ended",)})

    try:
        view = run_async(act())
    except TimeoutError:
        click.echo("its time was up, and the sandbox is not there yet", err=True)
        sys.exit(NOT_YET_STATUS)
    click.echo(view.model_dump_json() if as_json else " ".join([view.state, view.end or ""]).strip())


@click.command()
@click.argument("names", nargs=-1)
@click.option("--label", multiple=True, metavar="NAME=VALUE", help="Only of sandboxes with this label.")
@click.option("--after", type=int, help="Begin behind the event of this number.")
def events(names: tuple[str, ...], label: tuple[str, ...], after: int | None) -> None:
    """Print changes of state as they happen, one JSON object a line; needs a service."""
    labels = parse_pairs(label, "--label")

    def show(event: EventView) -> None:
        click.echo(event.model_dump_json(exclude_none=True))

    async def act() -> None:
        async with backend() as opened:
            async for event in opened.events(ids=names, labels=labels, after=after):
                show(event)

    run_async(act())


COMMANDS = (pause, resume, fork, snapshot, diff, net, logs, url, wait, events)
