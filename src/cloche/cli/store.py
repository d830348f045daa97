"""``cloche store``: where images and sandboxes' files are kept, and what can be enforced there."""

from __future__ import annotations

import click

from cloche.cli.common import Size


@click.group()
def store() -> None:
    """Show, make and mount the store of images and writable layers."""


@store.command()
def show() -> None:
    """Say where the store is, how full it is, and how disk limits are enforced there."""
    from cloche.sandbox.native.store import disk_limits
    from cloche.sandbox.native.store_usage import store_usage
    from cloche.sandbox.settings import Settings

    settings = Settings()
    usage = store_usage(settings)
    click.echo(f"folder       {settings.state_dir}")
    click.echo(f"used         {usage.used:.0%} of {usage.total_bytes / 1e9:.1f} GB")
    click.echo(f"disk limits  {disk_limits(settings) or 'not enforced (docs/storage.md)'}")


@store.command()
@click.option("--size", type=Size(), required=True, help="Its size, such as 50GiB; the file is sparse.")
def make(size: int) -> None:
    """Make a btrfs in a file and mount it as the (empty) state folder, so that disk limits hold."""
    from cloche.sandbox.native.store import make_store
    from cloche.sandbox.settings import Settings

    settings = Settings()
    file = make_store(settings, size)
    click.echo(file)
    click.echo("it is mounted until the machine restarts; for longer, a line of /etc/fstab:", err=True)
    click.echo(f"  {file} {settings.state_dir} btrfs loop,nosuid,nodev,noatime 0 0", err=True)


@store.command()
def mount() -> None:
    """Mount the store that `cloche store make` made."""
    from cloche.sandbox.native.store import mount_store
    from cloche.sandbox.settings import Settings

    mount_store(Settings())


@store.command()
@click.confirmation_option("--yes", prompt="Remove the store and every image in it?")
def remove() -> None:
    """Unmount the store that `cloche store make` made, and remove it with all its images."""
    from cloche.sandbox.native.store import remove_store
    from cloche.sandbox.settings import Settings

    remove_store(Settings())
