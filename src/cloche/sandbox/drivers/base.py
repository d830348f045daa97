"""What every driver refuses until it can do it: the capabilities, by name.

A driver inherits from :class:`CapabilityGate` and overrides what it can. Must never emulate one badly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NoReturn

from cloche.core.errors import PlanRefused
from cloche.sandbox.driver import Capability, Change, Denial
from cloche.sandbox.handle import Sandbox
from cloche.sandbox.spec import NetworkMode, NetworkPolicy, PreparedImage, SandboxSpec

_HINT = "cloche explain plan/capability_missing says what each driver can do"


def refuse(driver: str, capability: Capability) -> NoReturn:
    """Raise PlanRefused: this driver cannot do that."""
    raise PlanRefused(
        f"the {driver} driver cannot do `{capability.value}` here", hint=_HINT, code="plan/capability_missing"
    )


def needed(spec: SandboxSpec) -> Iterator[Capability]:
    """Yield what a driver must be able to do to make this sandbox as it is asked for."""
    if spec.network.mode is NetworkMode.PUBLIC:
        yield Capability.PUBLIC
    if spec.network.mode is NetworkMode.ALLOWLIST:
        yield Capability.ALLOWLIST
    if spec.resources.disk_bytes is not None:
        yield Capability.DISK_LIMIT
    if spec.volumes:
        yield Capability.VOLUMES
    if spec.unit is not None:
        yield Capability.UNIT


class CapabilityGate:
    """Refuses every capability; see :class:`cloche.sandbox.driver.Driver` for what each does."""

    name: str = "base"

    def capabilities(self, isolation: str | None = None) -> frozenset[Capability]:  # contract
        """Return none."""
        return frozenset()

    def check_capabilities(self, spec: SandboxSpec) -> None:
        """Raise PlanRefused for the first thing that the spec needs and that cannot be done."""
        able = self.capabilities(spec.isolation)
        for capability in needed(spec):
            if capability not in able:
                refuse(self.name, capability)

    async def pause(self, sandbox_id: str) -> None:  # contract
        """Refuse."""
        refuse(self.name, Capability.PAUSE)

    async def resume(self, sandbox_id: str) -> None:  # contract
        """Refuse."""
        refuse(self.name, Capability.PAUSE)

    async def fork(self, sandbox_id: str, specs: Sequence[SandboxSpec]) -> list[Sandbox]:  # contract
        """Refuse."""
        refuse(self.name, Capability.FORK)

    async def snapshot(self, sandbox_id: str, name: str) -> PreparedImage:  # contract
        """Refuse."""
        refuse(self.name, Capability.SNAPSHOT)

    async def diff(self, sandbox_id: str) -> list[Change]:  # contract
        """Refuse."""
        refuse(self.name, Capability.DIFF)

    async def set_network(self, sandbox_id: str, policy: NetworkPolicy) -> NetworkPolicy:  # contract
        """Refuse."""
        refuse(self.name, Capability.NETWORK_SWITCH)

    async def network(self, sandbox_id: str) -> NetworkPolicy:  # contract
        """Refuse."""
        refuse(self.name, Capability.NETWORK_SWITCH)

    async def denials(self, sandbox_id: str) -> list[Denial]:  # contract
        """Refuse."""
        refuse(self.name, Capability.ALLOWLIST)
