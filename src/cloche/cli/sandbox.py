"""``cloche sandbox``: sandboxes by hand. Must never do more than the Python API offers."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cloche.cli.backend import attached, backend
from cloche.cli.common import Duration, Size, parse_pairs, run_async
from cloche.cli.life import COMMANDS
from cloche.core.errors import InvalidInput

if TYPE_CHECKING:
    from cloche.api.models import CreateBody, SandboxView
    from cloche.sandbox.driver import Driver, Leftover
    from cloche.sandbox.handle import Chunk, Sandbox
    from cloche.sandbox.spec import Command, Completed

TIMED_OUT_STATUS = 124
CANCELLED_STATUS = 125
LOST_STATUS = 125
NOT_STARTED_STATUS = 127


@asynccontextmanager
async def _driver() -> AsyncIterator[Driver]:
    """Open this machine's own driver: for what only the host itself can be asked."""
    from cloche.sandbox.drivers.local import LocalDriver
    from cloche.sandbox.settings import Settings

    driver = LocalDriver(Settings())
    try:
        yield driver
    finally:
        await driver.close()


@click.group()
def sandbox() -> None:
    """Make and use sandboxes by hand."""


@sandbox.command()
@click.argument("image")
@click.option("--name", help="Name of the sandbox (default: a new one).")
@click.option("--cpus", type=click.FloatRange(min=0.01), help="CPUs at most.")
@click.option("--memory", type=Size(), help="Memory at most, such as 512m.")
@click.option("--disk", type=Size(), help="Bytes on disk at most, such as 2g.")
@click.option("--pids", type=click.IntRange(min=1), show_default="4096", help="Processes at most.")
@click.option("--network", type=click.Choice(["none", "allowlist", "public"]), show_default="none")
@click.option("--allow", multiple=True, metavar="HOST[:PORT]", help="What an allowlist names; repeatable.")
@click.option("-e", "--env", multiple=True, metavar="NAME=VALUE", help="Environment of its commands.")
@click.option("-u", "--user", help="User of its commands (default: the image's).")
@click.option("-w", "--workdir", help="Folder of its commands (default: the image's).")
@click.option("--label", multiple=True, metavar="NAME=VALUE", help="A label to find it by.")
@click.option("--isolation", help="How it is kept apart (default: the driver's own).")
@click.option("--ttl", type=Duration(), show_default="1h", help="Time to live; 0 for ever.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole sandbox as JSON.")
def create(image: str, as_json: bool, **given: Any) -> None:
    """Make a sandbox from IMAGE, wait until it is ready, and print its name."""
    from cloche.client.config import load
    from cloche.client.request import request

    flags = ("cpus", "memory", "pids", "network", "isolation")
    part = load({f"sandbox.{name}": given[name] for name in flags} | {"sandbox.ttl_s": given["ttl"]}).config
    wanted = {
        **part.sandbox.model_dump(),
        "ttl_s": part.sandbox.ttl_s or None,
        "heartbeat_s": None,  # nobody stays who would send one
        "env": parse_pairs(given["env"], "--env"),
        "labels": parse_pairs(given["label"], "--label"),
        "id": given["name"],
        **{name: given[name] for name in ("disk", "user", "workdir", "allow")},
    }
    if given["allow"] and given["network"] is None:
        wanted["network"] = "allowlist"
    kept = {name: value for name, value in wanted.items() if value is not None or name in _MAY_BE_NONE}
    if not kept["allow"]:
        del kept["allow"]
    view = run_async(_make(request(image, **kept)))
    click.echo(view.model_dump_json() if as_json else view.id)


_MAY_BE_NONE = {"ttl_s", "heartbeat_s"}


async def _make(body: CreateBody) -> SandboxView:
    from cloche.client.aio import ready

    async with backend() as opened:
        made = await ready(opened, await opened.create(body))
        await made.close()
        return made.view


@sandbox.command(
    name="exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
@click.argument("name")
@click.argument("argv", nargs=-1, required=True)
@click.option("-e", "--env", multiple=True, metavar="NAME=VALUE")
@click.option("-u", "--user", help="User to run as.")
@click.option("-w", "--workdir", help="Folder to run in.")
@click.option("-i", "--interactive", is_flag=True, help="Pass standard input on.")
@click.option("-t", "--tty", is_flag=True, help="Give the command a terminal.")
@click.option("--timeout", type=Duration(), help="End the command's whole tree after this time (status 124).")
def exec_(
    name: str,
    argv: tuple[str, ...],
    env: tuple[str, ...],
    user: str | None,
    workdir: str | None,
    interactive: bool,
    tty: bool,
    timeout: float | None,
) -> None:
    """Run a command in sandbox NAME; exits with the command's status.

    Else with 128 + the signal that ended it, 124 when its time was up, 125 when it or the sandbox was ended
    from outside, 127 when it could not be started, and 2 when there is no such sandbox.
    """
    from cloche.cli.terminal import size
    from cloche.sandbox.spec import Command

    command = Command(
        argv=argv[1:] if argv[0] == "--" else argv,
        env=parse_pairs(env, "--env"),
        user=user,
        cwd=workdir,
        interactive=interactive or tty,
        terminal=size() if tty else None,
        timeout_s=timeout,
    )
    sys.exit(run_async(_execute(name, command)))


@sandbox.command()
@click.argument("name")
@click.option("-u", "--user", help="User to be.")
def shell(name: str, user: str | None) -> None:
    """Open a shell in sandbox NAME, on a terminal of its own."""
    if not sys.stdin.isatty():
        raise InvalidInput(
            "a shell needs a terminal, and standard input is none", hint=f"cloche sandbox exec -i {name} sh"
        )
    from cloche.cli.terminal import size
    from cloche.sandbox.spec import Command

    line = "if [ -x /bin/bash ]; then exec /bin/bash -l; else exec /bin/sh -l; fi"
    command = Command(
        shell=line, user=user, interactive=True, terminal=size(), env={"TERM": "xterm-256color"}
    )
    sys.exit(run_async(_execute(name, command)))


async def _execute(name: str, command: Command) -> int:
    from cloche.cli.terminal import converse

    async with attached(name) as box:
        if command.interactive:
            return exit_status(await converse(box, command))
        return exit_status(await box.run(command, on_output=_print_chunk))


def _print_chunk(chunk: Chunk) -> None:
    stream = sys.stdout if chunk.stream == "stdout" else sys.stderr
    stream.buffer.write(chunk.data)
    stream.flush()


def exit_status(completed: Completed) -> int:
    """Return the shell's convention: the status itself, 128 + signal, 124 after a time-out, 127 not found."""
    from cloche.sandbox.spec import EndReason

    if completed.reason is EndReason.TIMEOUT:
        click.echo("ended: its time was up", err=True)
        return TIMED_OUT_STATUS
    if completed.reason in {EndReason.CANCELLED, EndReason.SANDBOX_LOST}:
        click.echo(f"{completed.reason.value}: {completed.message}", err=True)
        return LOST_STATUS
    if completed.reason is EndReason.START_FAILED:
        click.echo(completed.message, err=True)
        return NOT_STARTED_STATUS
    if completed.reason is EndReason.OUT_OF_MEMORY:
        click.echo("ended: out of memory", err=True)
    if completed.exit_code is not None:
        return completed.exit_code
    return 128 + (completed.signal or 9)


@sandbox.command()
@click.option("--orphans", is_flag=True, help="Show what is left on the host that no live sandbox owns.")
@click.option("--label", multiple=True, metavar="NAME=VALUE", help="Only those with this label.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def ls(orphans: bool, label: tuple[str, ...], as_json: bool) -> None:
    """List your sandboxes: of the service, or of this machine."""
    labels = parse_pairs(label, "--label")

    async def rows() -> list[dict[str, object]]:
        if orphans:
            async with _driver() as driver:
                return [{"kind": item.kind, "name": item.name} for item in await driver.leftovers()]
        async with backend() as opened:
            found = []
            after = None
            while True:
                page = await opened.list(labels=labels, after=after)
                found += [_row(view) for view in page.items]
                after = page.next
                if after is None:
                    return found

    from cloche.cli.listing import print_rows

    short = ("kind", "name") if orphans else ("id", "state", "image", "created_at", "for", "reason")
    found = run_async(rows())
    print_rows(found if as_json else [_with_purpose(row) for row in found], as_json=as_json, short=short)


def _row(view: SandboxView) -> dict[str, object]:
    return {
        "id": view.id,
        "state": view.state.value,
        "image": view.image,
        "created_at": min(view.times.values(), default=None),
        "labels": view.labels,
        "reason": view.error.message if view.error else view.end or "",
    }


def _with_purpose(row: dict[str, object]) -> dict[str, object]:
    """Say in one word what a sandbox is for: its task and agent where a run made it, else its labels."""
    labels = row.get("labels")
    if not isinstance(labels, dict):
        return row
    run = [labels[key] for key in ("task", "agent") if key in labels]
    return {**row, "for": "/".join(run) if run else labels}


@sandbox.command()
@click.argument("source")
@click.argument("target")
@click.option("-u", "--user", help="Owner of what is copied in.")
def cp(source: str, target: str, user: str | None) -> None:
    """Copy a file or folder into (PATH NAME:/PATH) or out of (NAME:/PATH PATH) a sandbox.

    A target that is a folder, or ends with a slash, gets the source inside it, as with cp -r.
    """
    inside_source, inside_target = _inside(source), _inside(target)
    destination = Path(target)
    if (inside_source is None) == (inside_target is None):
        raise InvalidInput(
            "one side must be NAME:/PATH and the other a path here",
            hint="cloche sandbox cp file.txt NAME:/tmp/",
        )
    if inside_source is not None and (target.endswith("/") or destination.is_dir()):
        destination /= Path(inside_source[1]).name

    async def copy() -> list[str]:
        if inside_target is not None:
            name, path = inside_target
            async with attached(name) as box:
                if path.endswith("/") or await _is_folder(box, path):
                    path = f"{path.rstrip('/')}/{Path(source).name}"
                await box.upload(Path(source), path, user=user)
            return []
        assert inside_source is not None  # noqa: S101  # one of both is inside
        name, path = inside_source
        async with attached(name) as box:
            return [item.path for item in await box.download(path, destination)]

    for skipped in run_async(copy()):
        click.echo(f"not copied (neither a file nor a folder): {skipped}", err=True)


async def _is_folder(box: Sandbox, path: str) -> bool:
    from cloche.core.errors import NotFound

    try:
        return (await box.stat(path)).is_folder
    except NotFound:
        return False


def _inside(text: str) -> tuple[str, str] | None:
    name, colon, path = text.partition(":")
    return (name, path) if colon and path.startswith("/") and "/" not in name else None


@sandbox.command()
@click.argument("names", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All that are yours.")
def rm(names: tuple[str, ...], everything: bool) -> None:
    """End sandboxes and remove all that belongs to them.

    Exits with 1 when one of them was not there.
    """
    if bool(names) == everything:
        raise InvalidInput("name the sandboxes to remove or use --all, one of the two")

    async def remove() -> list[tuple[str, bool]]:
        from cloche.core.errors import ClocheError, NotFound

        async with backend() as opened:
            chosen = list(names)
            if everything:
                chosen = [view.id for view in (await opened.list(limit=50_000)).items]
            found = list(zip(chosen, await opened.delete_many(chosen), strict=True))
        for _, result in found:
            if isinstance(result, ClocheError) and not isinstance(result, NotFound):
                raise result
        return [(name, not isinstance(result, NotFound)) for name, result in found]

    results = run_async(remove())
    for name, was_there in results:
        click.echo(name if was_there else f"not found: {name}", err=not was_there)
    if not all(was_there for _, was_there in results):
        sys.exit(1)


@sandbox.command()
def reap() -> None:
    """Remove what ended or orphaned sandboxes have left on this machine."""

    async def sweep() -> list[Leftover]:
        async with _driver() as driver:
            return await driver.reap()

    for item in run_async(sweep()):
        click.echo(f"removed {item.kind}: {item.name}")


for _command in COMMANDS:
    sandbox.add_command(_command)
