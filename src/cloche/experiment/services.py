"""What an image starts by itself, and what a healthcheck keeps alive, in a sandbox whose processes are ended.

Harbor starts an image's ENTRYPOINT with an endless sleep as its command; so do we. When the agent's processes
are ended those are ended too, so they are started again for what follows: the verifier, the next step. Must
never fail a trial after the agent has run: what does not come back then may be the agent's doing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from cloche.core.errors import InfraError, SandboxLost
from cloche.core.ids import new_id
from cloche.sandbox.handle import Sandbox
from cloche.sandbox.spec import Command
from cloche.tasks.health import wait_until_healthy
from cloche.tasks.model import Environment
from cloche.tasks.verify import workdir_of

ENTRYPOINT_PREFIX = "entrypoint-"
KILL_TIMEOUT_S = 60.0
_ENDLESS = ("sh", "-c", "sleep infinity")

Log = Callable[[str], None]


async def start_entrypoint(sandbox: Sandbox) -> None:
    """Start the image's entry point, if it has one, and do not wait for it."""
    if sandbox.image.entrypoint:
        argv = (*sandbox.image.entrypoint, *_ENDLESS)
        await sandbox.start(Command(id=new_id(ENTRYPOINT_PREFIX.rstrip("-")), argv=argv))


async def begin(sandbox: Sandbox, environment: Environment, log: Log) -> None:
    """Start what the image starts, and wait until the healthcheck succeeds. Raises HealthcheckFailed."""
    await start_entrypoint(sandbox)
    if environment.healthcheck is not None:
        cwd = workdir_of(environment, sandbox)
        tries = await wait_until_healthy(sandbox, environment.healthcheck, cwd=cwd)
        log(f"healthy after {tries} tries")


async def end_all(sandbox: Sandbox) -> None:
    """End every process of the sandbox but the guest."""
    async with asyncio.timeout(KILL_TIMEOUT_S):
        await sandbox.kill_all()


async def begin_again(sandbox: Sandbox, environment: Environment, log: Log, limit_s: float) -> None:
    """Start once more what ``begin`` started; what does not come back within ``limit_s`` is only noted."""
    try:
        async with asyncio.timeout(limit_s):
            await begin(sandbox, environment, log)
    except SandboxLost:
        raise
    except TimeoutError:
        log(f"services did not come back within {limit_s:g} s")
    except InfraError as error:
        log(f"services did not come back: {error}")
