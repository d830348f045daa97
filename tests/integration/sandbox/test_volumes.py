"""Folders of the host inside a sandbox: read-only, nothing else of the host in reach."""

# ruff: noqa: ASYNC221  # a test may block its own loop

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloche.core.errors import InvalidInput
from cloche.sandbox.driver import Capability
from cloche.sandbox.drivers.local import LocalDriver
from cloche.sandbox.native import volumes as volumes_module
from cloche.sandbox.native.wire import Tag
from cloche.sandbox.settings import Settings
from cloche.sandbox.spec import Command, PreparedImage, SandboxSpec, Volume


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of the host with files of several owners."""
    path = Path(tempfile.mkdtemp(prefix="clv-", dir="/var/tmp"))
    path.chmod(0o755)
    (path / "data").write_text("from the host\n")
    (path / "users").write_text("of user 1000\n")
    os.chown(path / "users", 1000, 1000)
    (path / "private").write_text("for root alone\n")
    (path / "private").chmod(0o600)
    os.mknod(path / "null", 0o020666, os.makedev(1, 3))
    yield path
    shutil.rmtree(path)


async def run(sandbox, line: str, user: str | None = None):
    return await sandbox.run(Command(shell=line, user=user))


async def test_a_volume_is_read_only(driver: LocalDriver, busybox_image: PreparedImage, folder: Path) -> None:
    assert Capability.VOLUMES in driver.capabilities()
    spec = SandboxSpec(volumes=(Volume(source=folder, target="/mnt/deep/data"),))
    async with await driver.create(spec, busybox_image) as sandbox:
        said = await run(sandbox, "cat /mnt/deep/data/data; stat -c '%u:%g %n' /mnt/deep/data/*")
        assert said.stdout.text.splitlines() == [
            "from the host",
            "0:0 /mnt/deep/data/data",
            "0:0 /mnt/deep/data/null",
            "0:0 /mnt/deep/data/private",
            "1000:1000 /mnt/deep/data/users",
        ]
        for line in (
            "echo x > data",
            "rm data",
            "touch new",
            "chmod 777 data",
            "echo x > users",
            "ln data more",
        ):
            failed = await run(sandbox, f"cd /mnt/deep/data && {line}")
            assert failed.exit_code != 0, line
            assert "Read-only" in failed.stderr.text, failed
        assert (await run(sandbox, "cat /mnt/deep/data/null")).exit_code != 0  # nodev
        mounts = await run(sandbox, "grep ' /mnt/deep/data ' /proc/self/mountinfo")
        assert {"ro", "nosuid", "nodev"} <= set(mounts.stdout.text.split()[5].split(","))
        assert (await run(sandbox, "cat /mnt/deep/data/private", user="1000")).exit_code != 0
        assert (await run(sandbox, "mount -o remount,rw,bind /mnt/deep/data")).exit_code != 0
    assert (folder / "data").read_text() == "from the host\n"


async def test_what_is_mounted_below_is_not_shown(
    driver: LocalDriver, busybox_image: PreparedImage, folder: Path
) -> None:
    below = folder / "below"
    below.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", below], check=True)
    try:
        (below / "secret").write_text("of another file system")
        spec = SandboxSpec(volumes=(Volume(source=folder, target="/v"),))
        async with await driver.create(spec, busybox_image) as sandbox:
            assert (await run(sandbox, "ls -A /v/below")).stdout.text == ""
    finally:
        subprocess.run(["umount", below], check=True)


@pytest.mark.fault("volume-of-our-own-folders")
@pytest.mark.parametrize("place", ["state_dir", "run_dir", "uppers_dir"])
async def test_the_store_stays_out_of_reach(
    driver: LocalDriver,
    busybox_image: PreparedImage,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
) -> None:
    own = getattr(settings, place)
    own.mkdir(parents=True, exist_ok=True)
    link = settings.state_dir.parent / "link"
    link.symlink_to(own)
    try:
        for source in (own, own.parent, Path("/"), link):
            spec = SandboxSpec(volumes=(Volume(source=source, target="/v"),))
            with pytest.raises(InvalidInput, match="would show"):
                await driver.create(spec, busybox_image)
    finally:
        link.unlink()
    # the spawner looks for itself
    fields = [(Tag.VOLUME_SOURCE, str(own)), (Tag.VOLUME_TARGET, "/v")]
    monkeypatch.setattr("cloche.sandbox.native.request.volume_fields", lambda *_: fields)
    with pytest.raises(InvalidInput, match="out of reach"):
        await driver.create(SandboxSpec(), busybox_image)


@pytest.mark.fault("volume-through-a-link")
async def test_a_link_that_is_made_too_late_is_not_followed(
    driver: LocalDriver, busybox_image: PreparedImage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "link").symlink_to("/etc")
    fields = [(Tag.VOLUME_SOURCE, f"{folder}/link/apt"), (Tag.VOLUME_TARGET, "/v")]
    monkeypatch.setattr("cloche.sandbox.native.request.volume_fields", lambda *_: fields)
    with pytest.raises(InvalidInput, match="symbolic link"):
        await driver.create(SandboxSpec(), busybox_image)
    assert await driver.list() == []


@pytest.mark.parametrize(
    "target", ["/", "relative", "/proc", "/sys/x", "/dev/shm", "/a/../b", "/etc", "/x\0y", "/" + "x" * 2000]
)
async def test_places_that_cannot_be(
    driver: LocalDriver, busybox_image: PreparedImage, folder: Path, target: str
) -> None:
    with pytest.raises(InvalidInput):
        await driver.create(SandboxSpec(volumes=(Volume(source=folder, target=target),)), busybox_image)


async def test_two_volumes_must_be_apart(
    driver: LocalDriver, busybox_image: PreparedImage, folder: Path
) -> None:
    for targets in (("/v", "/v"), ("/v", "/v/below")):
        volumes = tuple(Volume(source=folder, target=target) for target in targets)
        with pytest.raises(InvalidInput, match="two volumes"):
            await driver.create(SandboxSpec(volumes=volumes), busybox_image)
    many = tuple(Volume(source=folder, target=f"/v{i}") for i in range(volumes_module.VOLUMES_MAX))
    async with await driver.create(SandboxSpec(volumes=many), busybox_image) as sandbox:
        assert (await run(sandbox, "cat /v*/data | wc -l")).stdout.text.strip() == str(len(many))
    more = (*many, Volume(source=folder, target="/more"))
    with pytest.raises(InvalidInput, match="the most"):
        await driver.create(SandboxSpec(volumes=more), busybox_image)


@pytest.mark.fault("volume-onto-a-link-of-the-image")
async def test_a_link_of_the_image_is_no_place(
    driver: LocalDriver, busybox_image: PreparedImage, settings: Settings, folder: Path
) -> None:
    layer = settings.layers_dir / "linked"
    layer.mkdir(parents=True)
    (layer / "v").symlink_to("/etc")
    image = PreparedImage(name="linked", digest="sha256:linked", layers=(*busybox_image.layers, layer))
    for target in ("/v", "/v/below"):
        with pytest.raises(Exception, match="volume"):
            await driver.create(SandboxSpec(volumes=(Volume(source=folder, target=target),)), image)
    shutil.rmtree(layer)
