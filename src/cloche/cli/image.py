"""``cloche image``: make, list and remove images. Must never do more than the Python API offers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cloche.cli.common import Duration, Size, parse_pairs, run_async

if TYPE_CHECKING:
    from cloche.sandbox.images import ImageStore
    from cloche.sandbox.spec import PreparedImage


def _store() -> ImageStore:
    from cloche.sandbox.images import ImageStore
    from cloche.sandbox.settings import Settings

    return ImageStore(Settings())


def _say(text: str) -> None:
    click.echo(text, err=True)


def _show(image: PreparedImage) -> None:
    click.echo(f"{image.name}  {image.origin}", err=True)
    click.echo(image.digest)


@click.group()
def image() -> None:
    """Make, list and remove images."""


@image.command(name="import")
@click.argument("source", type=click.Path(exists=True, allow_dash=True, path_type=Path))
@click.argument("name")
@click.option("-e", "--env", multiple=True, metavar="NAME=VALUE", help="Environment of its commands.")
@click.option("-u", "--user", default="", help="User of its commands (default: root).")
@click.option("-w", "--workdir", default="/", show_default=True, help="Folder of its commands.")
def import_(source: Path, name: str, env: tuple[str, ...], user: str, workdir: str) -> None:
    """Import a root file system from SOURCE (a tar, - for standard input, or a folder) as NAME.

    Prints the image's digest.
    """
    from cloche.sandbox.spec import ImageConfig

    config = ImageConfig(env=parse_pairs(env, "--env"), user=user, workdir=workdir)
    store = _store()
    if str(source) == "-":
        _show(store.import_tar(sys.stdin.buffer, name, config=config))
    elif source.is_dir():
        _show(store.import_dir(source, name, config=config))
    else:
        _show(store.import_tar(source, name, config=config))


@image.command()
@click.argument("release")
@click.argument("packages", nargs=-1)
@click.option("--name", help="Name of the image (default: RELEASE).")
@click.option("--timeout", type=Duration(), default=900.0, show_default="15m", help="Time at most.")
def bootstrap(release: str, packages: tuple[str, ...], name: str | None, timeout: float) -> None:
    """Make Debian's base system (RELEASE is debian:12 or debian:13) from this machine's package sources.

    PACKAGES are installed too. Prints the image's digest.
    """
    from cloche.sandbox.images.debian import bootstrap as make

    _show(run_async(make(_store(), release, packages, name=name, timeout_s=timeout, say=_say)))


@image.command()
@click.argument("name")
@click.option("--platform", metavar="OS/ARCH", help="Such as linux/arm64 (default: this machine's).")
@click.option("--timeout", type=Duration(), default=1800.0, show_default="30m", help="Time at most.")
def pull(name: str, platform: str | None, timeout: float) -> None:
    """Pull NAME (host/repository:tag or host/repository@sha256:…) from its registry.

    Asks the registry even if the image is here, since a tag may have moved. Prints the image's digest.
    """
    from cloche.sandbox.images.registry import pull as fetch

    _show(run_async(fetch(_store(), name, platform=platform, timeout_s=timeout, say=_say)))


@image.command()
@click.argument("context", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "-f", "--file", "dockerfile", type=click.Path(path_type=Path), help="CONTEXT/Dockerfile if not given."
)
@click.option("-t", "--name", help="Name of the image (default: one made from its content).")
@click.option("--build-arg", multiple=True, metavar="NAME=VALUE", help="Value of an ARG of the Dockerfile.")
@click.option("--timeout", type=Duration(), default=1800.0, show_default="30m", help="Time at most.")
def build(
    context: Path, dockerfile: Path | None, name: str | None, build_arg: tuple[str, ...], timeout: float
) -> None:
    """Build the Dockerfile of folder CONTEXT; the same content is built once. Prints the image's digest."""
    from cloche.sandbox.images.builds import build as make

    arguments = parse_pairs(build_arg, "--build-arg")
    _show(
        run_async(
            make(_store(), context, dockerfile, name=name, build_args=arguments, timeout_s=timeout, say=_say)
        )
    )


@image.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def ls(as_json: bool) -> None:
    """List the images of this machine."""
    from cloche.cli.listing import print_rows

    rows = [
        {
            "name": item.name,
            "digest": item.digest,
            "origin": item.origin,
            "size_bytes": item.size_bytes,
            "layers": item.layers,
            "created_at": item.created_at,
            "details": dict(item.details),
        }
        for item in _store().list()
    ]
    print_rows(
        rows, as_json=as_json, short=("name", "digest", "origin", "size_bytes", "layers", "created_at")
    )


@image.command()
@click.argument("names", nargs=-1, required=True)
def rm(names: tuple[str, ...]) -> None:
    """Remove images by NAME or digest, and the layers that no other image needs."""
    from cloche.sandbox.images.builds import collect

    store = _store()
    for name in names:
        click.echo(store.remove(name).name, err=True)
    run_async(collect(store))


@image.command()
@click.option(
    "--budget", type=Size(), required=True, help="What all layers together may hold, such as 20GiB."
)
def gc(budget: int) -> None:
    """Remove the least recently used images until the rest fits the budget.

    Images of live sandboxes stay. Prints the names that were removed.
    """
    from cloche.sandbox.images.builds import collect
    from cloche.sandbox.images.gc import gc as free

    store = _store()
    done = free(store, budget)
    run_async(collect(store))
    for name in done.removed:
        click.echo(name)
    over = "" if done.kept_bytes <= budget else ", which is needed"
    click.echo(f"freed {done.freed_bytes / 1e6:.1f} MB, kept {done.kept_bytes / 1e6:.1f} MB{over}", err=True)
