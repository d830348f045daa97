"""A sandbox's life from create to delete, through the local driver."""

# ruff: noqa: ASYNC110, ASYNC240  # a test may block its own loop

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from cloche.core.errors import InvalidInput, NotFound, SandboxLost
from cloche.sandbox.driver import SandboxState
from cloche.sandbox.drivers.local import LocalDriver
from cloche.sandbox.settings import Settings
from cloche.sandbox.spec import Command, ImageConfig, PreparedImage, Resources, SandboxSpec


async def text_of(sandbox, line: str, **options) -> str:
    completed = await sandbox.run(Command(shell=line, **options))
    assert completed.ok, (completed, completed.stderr.text)
    return completed.stdout.text.strip()


async def test_create_run_and_delete_leave_nothing(
    driver: LocalDriver, busybox_image: PreparedImage, settings: Settings
) -> None:
    sandbox = await driver.create(SandboxSpec(), busybox_image)
    assert await text_of(sandbox, "echo hello; exec 1>&-") == "hello"
    assert (settings.sandboxes_dir / sandbox.id / "record.json").exists()
    assert await driver.delete(sandbox.id)
    assert not (settings.sandboxes_dir / sandbox.id).exists()
    assert not (settings.uppers_dir / sandbox.id).exists()
    assert await driver.leftovers() == []
    await sandbox.close()


async def test_the_listing_tells_what_was_asked_for(
    driver: LocalDriver, busybox_image: PreparedImage
) -> None:
    spec = SandboxSpec(labels={"trial": "7"})
    async with await driver.create(spec, busybox_image):
        (info,) = await driver.list()
        assert (info.id, info.state, info.image) == (spec.id, SandboxState.READY, busybox_image.name)
        assert info.labels == {"trial": "7"}
        assert info.pid is not None
        assert Path(f"/proc/{info.pid}").exists()
    assert await driver.list() == []


async def test_another_client_attaches(
    driver: LocalDriver, busybox_image: PreparedImage, settings: Settings
) -> None:
    spec = SandboxSpec(env={"COLOUR": "blue"}, resources=Resources(memory_bytes=64 << 20, cpus=0.5))
    async with await driver.create(spec, busybox_image):
        other = LocalDriver(settings)
        attached = await other.attach(spec.id)
        assert attached.spec == spec
        assert await text_of(attached, "echo $COLOUR") == "blue"
        await attached.close()
        await other.close()


async def test_an_id_is_used_once(driver: LocalDriver, busybox_image: PreparedImage) -> None:
    async with await driver.create(SandboxSpec(id="twice"), busybox_image) as sandbox:
        with pytest.raises(InvalidInput, match="twice already"):
            await driver.create(SandboxSpec(id="twice"), busybox_image)
        assert await text_of(sandbox, "echo alive") == "alive"  # the first one is not harmed
    async with await driver.create(SandboxSpec(id="twice"), busybox_image) as again:
        assert await text_of(again, "echo free again") == "free again"


async def test_delete_can_be_repeated_and_says_whether_there_was_one(
    driver: LocalDriver, busybox_image: PreparedImage
) -> None:
    sandbox = await driver.create(SandboxSpec(), busybox_image)
    assert await driver.delete(sandbox.id) is True
    assert await driver.delete(sandbox.id) is False
    assert await driver.delete("never-was") is False
    assert await driver.delete("../../etc") is False
    await sandbox.close()


async def test_two_deletes_at_once_return_when_it_is_gone(
    driver: LocalDriver, busybox_image: PreparedImage, settings: Settings
) -> None:
    sandbox = await driver.create(SandboxSpec(), busybox_image)

    async def delete() -> bool:
        existed = await driver.delete(sandbox.id)
        assert not (settings.sandboxes_dir / sandbox.id).exists()
        return existed

    results = await asyncio.gather(delete(), delete(), delete())
    assert any(results)
    await sandbox.close()


async def test_attach_to_what_is_not_there(driver: LocalDriver) -> None:
    with pytest.raises(NotFound, match="no sandbox nothing-here"):
        await driver.attach("nothing-here")
    with pytest.raises(NotFound):
        await driver.attach("../../../etc")


async def test_writes_stay_in_the_sandbox(driver: LocalDriver, busybox_image: PreparedImage) -> None:
    layer = busybox_image.layers[0]
    before = sorted(path.name for path in layer.iterdir())
    async with await driver.create(SandboxSpec(), busybox_image) as one:
        await text_of(one, "echo changed > /etc/passwd; rm -rf /home; mkdir /new; chmod 700 /tmp")
        async with await driver.create(SandboxSpec(), busybox_image) as two:
            assert "root:x:0:0" in await text_of(two, "cat /etc/passwd; ls -d /home")
    assert sorted(path.name for path in layer.iterdir()) == before
    assert layer.joinpath("etc/passwd").read_text().startswith("root:x:0:0")


async def test_image_and_spec_make_the_default_environment(
    driver: LocalDriver, busybox_image: PreparedImage
) -> None:
    config = ImageConfig(env={"A": "image", "B": "image"}, user="user", workdir="/var")
    image = PreparedImage(
        name="configured", digest=busybox_image.digest, layers=busybox_image.layers, config=config
    )
    spec = SandboxSpec(env={"B": "sandbox"}, hostname="greenhouse")
    async with await driver.create(spec, image) as sandbox:
        assert await text_of(sandbox, "echo $A $B $(id -u) $PWD $(hostname)") == (
            "image sandbox 1000 /var greenhouse"
        )
        assert await text_of(sandbox, "cat /etc/hostname") == "greenhouse"
        assert "greenhouse" in await text_of(sandbox, "grep 127.0.1.1 /etc/hosts")


async def test_layers_stack_and_whiteouts_hide(
    driver: LocalDriver, busybox_image: PreparedImage, settings: Settings
) -> None:
    upper = settings.layers_dir / "second"
    (upper / "etc").mkdir(parents=True)
    (upper / "etc" / "motd").write_text("from the second layer\n")
    os.mknod(upper / "home", 0o020000, os.makedev(0, 0))  # overlay's whiteout
    upper.chmod(0o750)
    image = PreparedImage(
        name="two", digest="sha256:two", layers=(*busybox_image.layers, upper), config=busybox_image.config
    )
    async with await driver.create(SandboxSpec(), image) as sandbox:
        assert await text_of(sandbox, "cat /etc/motd; stat -c %a /; test -e /home || echo hidden") == (
            "from the second layer\n750\nhidden"
        )


async def test_many_layers(driver: LocalDriver, busybox_image: PreparedImage, settings: Settings) -> None:
    layers = list(busybox_image.layers)
    for number in range(40):
        layer = settings.layers_dir / f"deep-{number:064x}"
        (layer / "many").mkdir(parents=True)
        (layer / "many" / str(number)).touch()
        layers.append(layer)
    image = PreparedImage(name="deep", digest="sha256:deep", layers=tuple(layers))
    async with await driver.create(SandboxSpec(), image) as sandbox:
        assert await text_of(sandbox, "ls /many | wc -l") == "40"


async def test_an_ended_sandbox_says_why_until_it_is_reaped(
    driver: LocalDriver, busybox_image: PreparedImage, settings: Settings
) -> None:
    sandbox = await driver.create(SandboxSpec(), busybox_image)
    (info,) = await driver.list()
    assert info.pid is not None
    os.kill(info.pid, 9)
    async with asyncio.timeout(10):
        while (await driver.list())[0].state is not SandboxState.ENDED:
            await asyncio.sleep(0.01)
        while not (settings.sandboxes_dir / sandbox.id / "end.json").exists():
            await asyncio.sleep(0.01)
        while (settings.uppers_dir / sandbox.id).exists():
            await asyncio.sleep(0.01)
    with pytest.raises(SandboxLost, match="killed or crashed"):
        await driver.attach(sandbox.id)
    reaped = await driver.reap()
    assert [item.kind for item in reaped] == ["file"]
    assert await driver.list() == []
    await sandbox.close()


async def test_the_record_is_plain_json(
    driver: LocalDriver, busybox_image: PreparedImage, settings: Settings
) -> None:
    async with await driver.create(SandboxSpec(), busybox_image) as sandbox:
        record = json.loads((settings.sandboxes_dir / sandbox.id / "record.json").read_bytes())
        assert record["spec"]["id"] == sandbox.id
        assert record["image"]["digest"] == busybox_image.digest


async def test_fifty_at_once(driver: LocalDriver, busybox_image: PreparedImage) -> None:
    async def one(number: int) -> str:
        spec = SandboxSpec(resources=Resources(memory_bytes=64 << 20, pids=64))
        async with await driver.create(spec, busybox_image) as sandbox:
            return await text_of(sandbox, f"echo {number}")

    said = await asyncio.gather(*(one(number) for number in range(50)))
    assert said == [str(number) for number in range(50)]
