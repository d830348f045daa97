"""A sandbox over a built image sees what the Dockerfile says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cloche.core.errors import InvalidInput
from cloche.sandbox.drivers.local import LocalDriver
from cloche.sandbox.handle import Sandbox
from cloche.sandbox.images import ImageStore, build, collect
from cloche.sandbox.spec import Command, SandboxSpec

DOCKERFILE = """\
FROM base:1
RUN echo one > /one && rm /etc/motd && chmod 4755 /one
RUN rm -rf /usr/share/doc && mkdir /usr/share/doc && echo new > /usr/share/doc/new
RUN mkdir /srv && chown joe:joe /srv && rm /one && echo again > /one
ENV GREETING="hello there"
USER joe
WORKDIR /srv/site
ENTRYPOINT ["sh", "-c"]
"""


@pytest.fixture
async def driver(store: ImageStore) -> AsyncIterator[LocalDriver]:
    driver = LocalDriver(store.settings)
    yield driver
    for info in await driver.list():
        await driver.delete(info.id)
    assert await driver.leftovers() == []
    await driver.close()


async def said(sandbox: Sandbox, line: str) -> str:
    completed = await sandbox.run(Command(shell=line))
    assert completed.ok, completed.stderr.text + completed.message
    return completed.stdout.text


@pytest.mark.usefixtures("base")
async def test_layers_are_merged_and_the_configuration_is_honoured(
    store: ImageStore, driver: LocalDriver, tmp_path: Path
) -> None:
    (tmp_path / "Dockerfile").write_text(DOCKERFILE)
    image = await build(store, tmp_path, name="made")
    async with await driver.create(SandboxSpec(), image) as sandbox:
        assert await said(sandbox, "cat /one; ls /usr/share/doc") == "again\nnew\n"
        assert "motd" not in (await said(sandbox, "ls /etc")).split()
        assert await said(sandbox, 'echo "$GREETING|$BASE"; pwd; id -un') == (
            'hello there|a $HOME "b" \\c\n/srv/site\njoe\n'
        )
        assert "welcome" in (image.layers[0] / "etc" / "motd").read_text()
        await said(sandbox, "echo mine > /srv/mine")
        assert not any((layer / "srv" / "mine").exists() for layer in image.layers)
        with pytest.raises(InvalidInput, match=f"used by sandbox {sandbox.id}"):
            store.remove("made")
    store.remove("made")
    await collect(store)
