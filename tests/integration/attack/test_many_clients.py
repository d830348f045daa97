"""More clients than a guest serves: the one too many is told so, and not that the sandbox is over."""

from __future__ import annotations

import contextlib

import pytest

from cloche.core.errors import ClocheError, SandboxLost
from cloche.sandbox.drivers.local import LocalDriver
from cloche.sandbox.handle import Sandbox

CLIENTS = 80


@pytest.mark.fault("one-client-too-many")
async def test_one_client_too_many_is_not_told_that_the_sandbox_is_over(
    driver: LocalDriver, hostile: Sandbox
) -> None:
    refusal: ClocheError | None = None
    async with contextlib.AsyncExitStack() as stack:
        try:
            for _ in range(CLIENTS):
                client = await driver.attach(hostile.id)
                stack.push_async_callback(client.close)
        except ClocheError as error:
            refusal = error
    assert not isinstance(refusal, SandboxLost), refusal
    await hostile.ping()
