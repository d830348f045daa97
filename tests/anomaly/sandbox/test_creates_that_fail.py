"""A create that fails says why, and leaves nothing."""

# ruff: noqa: ASYNC221  # a test may block its own loop

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cloche.core.errors import EnvironmentUnusable, ImageError, InfraError, InvalidInput
from cloche.sandbox import binaries
from cloche.sandbox.drivers.local import LocalDriver
from cloche.sandbox.handle import Sandbox
from cloche.sandbox.native import launch
from cloche.sandbox.native.host import Host, check
from cloche.sandbox.settings import Settings
from cloche.sandbox.spec import Command, ImageConfig, NetworkMode, NetworkPolicy, PreparedImage, SandboxSpec
from cloche.testing.sandboxes import make_busybox_image, processes_of, stop_spawner

PUBLIC = NetworkPolicy(mode=NetworkMode.PUBLIC)


@pytest.fixture
async def small_disk() -> AsyncIterator[Settings]:
    """An installation whose state folder has room for a busybox and little more."""
    base = Path(tempfile.mkdtemp(prefix="clo-", dir="/var/tmp"))
    (base / "s").mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m,nr_inodes=900", "none", str(base / "s")], check=True
    )
    own = Settings(state_dir=base / "s", run_dir=base / "r")
    yield own
    await stop_spawner(own)
    subprocess.run(["umount", str(base / "s")], check=True)
    assert processes_of(own) == []
    await asyncio.to_thread(shutil.rmtree, base)


@pytest.mark.fault("disk-full-at-create")
async def test_a_full_disk_is_told_and_room_is_used_again(small_disk: Settings) -> None:
    driver = LocalDriver(small_disk)
    image = make_busybox_image(small_disk)
    made: list[Sandbox] = []

    async def fill() -> None:
        for _ in range(200):
            made.append(await driver.create(SandboxSpec(), image))  # noqa: PERF401  # what was made counts

    with pytest.raises(InfraError, match="full") as caught:
        await fill()
    assert caught.value.code == "infra/disk_full"
    assert made
    assert len(await driver.list()) == len(made)
    assert await driver.leftovers() == []
    for sandbox in made:
        await sandbox.delete()
    async with await driver.create(SandboxSpec(), image) as sandbox:
        assert (await sandbox.run(Command(argv=("/bin/true",)))).ok
    await driver.close()


@pytest.mark.fault("disk-full-inside")
async def test_a_sandbox_that_fills_the_disk_can_still_be_deleted(small_disk: Settings) -> None:
    driver = LocalDriver(small_disk)
    sandbox = await driver.create(SandboxSpec(), make_busybox_image(small_disk))
    completed = await sandbox.run(Command(shell="dd if=/dev/zero of=/tmp/big bs=1M count=100"))
    assert "No space left" in completed.stderr.text
    await sandbox.delete()
    assert await driver.leftovers() == []
    await driver.close()


@pytest.mark.fault("layer-gone-at-create")
async def test_a_layer_that_is_gone(
    driver: LocalDriver, busybox_image: PreparedImage, settings: Settings
) -> None:
    image = PreparedImage(
        name="i", digest="d", layers=(settings.layers_dir / "was-here", *busybox_image.layers)
    )
    with pytest.raises(ImageError, match="was-here"):
        await driver.create(SandboxSpec(), image)
    assert await driver.list() == []
    assert await driver.leftovers() == []


@pytest.mark.parametrize("layer", ["/etc", "/var/lib"])
async def test_a_layer_outside_the_store(driver: LocalDriver, layer: str) -> None:
    image = PreparedImage(name="i", digest="d", layers=(Path(layer),))
    with pytest.raises(InvalidInput, match="not below"):
        await driver.create(SandboxSpec(), image)


@pytest.mark.fault("bad-sandbox-name")
@pytest.mark.parametrize("name", ["", "UPPER", "a/b", "..", "x" * 64, "-begin", "ä"])
async def test_a_name_that_cannot_be(driver: LocalDriver, busybox_image: PreparedImage, name: str) -> None:
    with pytest.raises(InvalidInput, match="cannot name a sandbox"):
        await driver.create(SandboxSpec(id=name), busybox_image)


async def test_an_environment_too_large_for_the_kernel(
    driver: LocalDriver, busybox_image: PreparedImage
) -> None:
    with pytest.raises(InfraError, match="start the guest"):
        await driver.create(SandboxSpec(env={"BIG": "x" * 200_000}), busybox_image)
    with pytest.raises(InvalidInput, match="cannot be asked for"):
        await driver.create(SandboxSpec(env={"BIG": "x" * 2_000_000}), busybox_image)
    assert await driver.list() == []


@pytest.mark.fault("guest-does-not-start")
async def test_a_guest_that_fails_at_once(
    driver: LocalDriver, busybox_image: PreparedImage, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A spawner with a broken guest program; the installation's own has to go first."""
    await stop_spawner(settings)
    monkeypatch.setattr(binaries, "guest_path", lambda: Path("/bin/busybox"))
    with pytest.raises(InfraError, match=r"did not come up|died at once"):
        await driver.create(SandboxSpec(), busybox_image)
    assert await driver.list() == []
    assert await driver.leftovers() == []
    await stop_spawner(settings)


@pytest.mark.fault("no-guest-program")
async def test_an_installation_without_programs(
    driver: LocalDriver, busybox_image: PreparedImage, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stop_spawner(settings)
    monkeypatch.setattr(binaries, "_FOLDER", Path("/nonexistent"))
    with pytest.raises(EnvironmentUnusable, match="carries no cloche-spawner"):
        await driver.create(SandboxSpec(), busybox_image)


@pytest.mark.fault("no-nft")
async def test_a_machine_without_nft(
    driver: LocalDriver, busybox_image: PreparedImage, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stop_spawner(settings)
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr("cloche.sandbox.native.network.check_public", lambda: None)
    with pytest.raises(EnvironmentUnusable, match="nft") as caught:
        await driver.create(SandboxSpec(network=PUBLIC), busybox_image)
    assert caught.value.hint == "apt-get install nftables"
    assert await driver.list() == []
    await stop_spawner(settings)


@pytest.mark.fault("not-root")
async def test_not_root(
    busybox_image: PreparedImage, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stop_spawner(settings)
    monkeypatch.setattr(launch.host, "check", lambda: check(Host(euid=1000)))
    driver = LocalDriver(settings)
    with pytest.raises(EnvironmentUnusable, match="needs root") as caught:
        await driver.create(SandboxSpec(), busybox_image)
    assert caught.value.exit_code == 5
    await driver.close()


async def test_a_workdir_that_is_not_there_is_the_commands_failure(
    driver: LocalDriver, busybox_image: PreparedImage
) -> None:
    config = ImageConfig(workdir="/not/here")
    image = PreparedImage(name="w", digest="d", layers=busybox_image.layers, config=config)
    async with await driver.create(SandboxSpec(), image) as sandbox:
        completed = await sandbox.run(Command(argv=("/bin/pwd",)))
        assert not completed.ok or completed.stdout.text.strip() == "/not/here"
