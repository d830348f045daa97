"""Network policies of native sandboxes: the link is the spawner's, what it leads to the gateway's.

Must never report a policy that the gateway did not read back from the kernel.
"""

from __future__ import annotations

import asyncio
import re

from cloche.core.errors import InvalidInput
from cloche.sandbox.allow import parse_entries
from cloche.sandbox.driver import Denial
from cloche.sandbox.native import network
from cloche.sandbox.native.net import client, presets, sets
from cloche.sandbox.native.record import read_folder
from cloche.sandbox.native.request import has_link
from cloche.sandbox.native.spawner import Spawner
from cloche.sandbox.native.wire import Request, Tag
from cloche.sandbox.settings import Settings
from cloche.sandbox.spec import NetworkMode, NetworkPolicy, SandboxSpec, Unit

UNIT_MEMBERS_MAX = 64
_MEMBER = re.compile(r"[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?")


def entries_of(policy: NetworkPolicy) -> tuple[str, ...]:
    """Return a policy's list with its presets spelled out. Raises InvalidInput for what cannot be opened."""
    if policy.mode is not NetworkMode.ALLOWLIST:
        return ()
    entries = presets.spelled_out(policy.allow, policy.presets)
    sets.network_elements(1, parse_entries(entries))
    return entries


def _check_unit(unit: Unit) -> None:
    if not unit.id or unit.name not in unit.members or len(unit.members) > UNIT_MEMBERS_MAX:
        raise InvalidInput(f"a unit has an id and up to {UNIT_MEMBERS_MAX} members, each by its name")
    for name in unit.members:
        if not _MEMBER.fullmatch(name):
            raise InvalidInput(f"`{name}` cannot be the name of a member of a unit", hint="for example db-1")


class Policies:
    """The policies of one installation's sandboxes."""

    def __init__(self, settings: Settings, spawner: Spawner) -> None:
        self._settings = settings
        self._spawner = spawner

    @staticmethod
    def check(spec: SandboxSpec) -> None:
        """Raise InvalidInput for what cannot be, EnvironmentUnusable where nothing is forwarded."""
        entries_of(spec.network)
        if spec.unit is not None:
            _check_unit(spec.unit)
        if has_link(spec):
            network.check_public()

    async def begin(self, spec: SandboxSpec) -> None:
        """Give a sandbox that was just made its policy; until then its link leads nowhere."""
        if has_link(spec):
            await self._set(spec.id, spec.network, spec.unit)

    async def change(self, sandbox_id: str, policy: NetworkPolicy) -> NetworkPolicy:
        """Give a living sandbox another policy, and a link if it has none; return what the kernel holds."""
        entries_of(policy)
        if policy.mode is NetworkMode.NONE and not await asyncio.to_thread(self._linked, sandbox_id):
            return NetworkPolicy()
        network.check_public()
        await self._spawner.ask(Request.ATTACH, [(Tag.ID, sandbox_id)])
        return await self._set(sandbox_id, policy, None)

    async def _set(self, sandbox_id: str, policy: NetworkPolicy, unit: Unit | None) -> NetworkPolicy:
        entries = await asyncio.to_thread(entries_of, policy)
        return await client.set_policy(self._settings.run_dir, sandbox_id, policy, entries, unit)

    async def held(self, sandbox_id: str) -> NetworkPolicy:
        """Return the policy that holds, once the kernel was looked at."""
        if not await asyncio.to_thread(self._linked, sandbox_id):
            return NetworkPolicy()
        return await client.read_policy_of(self._settings.run_dir, sandbox_id)

    async def denials(self, sandbox_id: str) -> list[Denial]:
        """Return what was refused of late; none for a sandbox that never had a link."""
        if not await asyncio.to_thread(self._linked, sandbox_id):
            return []
        return await client.denials_of(self._settings.run_dir, sandbox_id)

    def _linked(self, sandbox_id: str) -> bool:
        folder = read_folder(self._settings.sandboxes_dir / sandbox_id)
        return folder is not None and folder.native.get("public", 0) != 0
