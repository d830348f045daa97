"""The sandboxes of one attempt: each known by its id before it is made, and deleted whatever happens.

Must never forget one whose making was not answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from cloche.core.errors import InvalidInput, PlanRefused
from cloche.core.failures import classify
from cloche.sandbox.driver import Driver
from cloche.sandbox.handle import Sandbox
from cloche.sandbox.spec import PreparedImage, SandboxSpec

DELETE_TIMEOUT_S = 120.0


class Boxes:
    """Makes and deletes sandboxes, and knows which of them are left."""

    def __init__(self, driver: Driver, log: Callable[[str], None]) -> None:
        """``log`` is told of a sandbox that could not be deleted."""
        self._driver = driver
        self._log = log
        self._made: dict[str, Sandbox | None] = {}

    async def create(self, spec: SandboxSpec, image: PreparedImage) -> Sandbox:
        """Make a sandbox. Raises as the driver does, but PlanRefused for what no sandbox can be asked for."""
        self._made[spec.id] = None
        try:
            sandbox = await self._driver.create(spec, image)
        except InvalidInput as error:
            raise PlanRefused(error.message, hint=error.hint, where=error.where) from error
        self._made[spec.id] = sandbox
        return sandbox

    async def delete(self, sandbox_id: str) -> bool:
        """Delete a sandbox by its id, whether or not its making was ever answered; say whether it is gone."""
        try:
            async with asyncio.timeout(DELETE_TIMEOUT_S):
                await self._driver.delete(sandbox_id)
                sandbox = self._made.get(sandbox_id)
                if sandbox is not None:
                    await sandbox.close()
        except Exception as error:  # noqa: BLE001  # boundary: driver
            found = classify(error)
            self._log(f"the sandbox {sandbox_id} could not be deleted: {found.message} [{found.code}]")
            return False
        self._made.pop(sandbox_id, None)
        return True

    async def delete_all(self) -> bool:
        """Delete what is left; say whether all of it is gone."""
        gone = [await self.delete(sandbox_id) for sandbox_id in list(self._made)]
        return all(gone)
