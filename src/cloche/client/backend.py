"""The seam between the SDK and where sandboxes come from. Must never name a way of reaching them."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Protocol

from cloche.api.models import (
    CapabilitiesView,
    CreateBody,
    DenialPage,
    DiffView,
    EventView,
    ExtendBody,
    FitView,
    ForkBody,
    ImageView,
    LinkView,
    NetworkBody,
    SandboxPage,
    SandboxView,
    SnapshotBody,
    State,
)
from cloche.core.errors import ClocheError
from cloche.sandbox.handle import Sandbox


class Backend(Protocol):
    """A service, embedded or far away. Every method raises a ClocheError and nothing else of its own."""

    async def create(self, body: CreateBody) -> SandboxView:
        """Ask for a sandbox; returns at once. With its idempotency key it may be sent again."""

    async def create_many(self, bodies: Sequence[CreateBody]) -> builtins.list[SandboxView | ClocheError]:
        """Ask for many; each is answered for itself, in order."""

    async def get(self, sandbox_id: str) -> SandboxView:
        """Return it as it is now. Raises NotFound."""

    async def wait(self, sandbox_id: str, states: Collection[State]) -> SandboxView:
        """Return it once it is in one of the states, or has ended."""

    def events(
        self, *, ids: Collection[str] = (), labels: Mapping[str, str] | None = None, after: int | None = None
    ) -> AsyncIterator[EventView]:
        """Yield changes of state, without an end."""

    async def delete(self, sandbox_id: str) -> SandboxView:
        """End it; returns once it is gone."""

    async def delete_many(self, ids: Sequence[str]) -> builtins.list[SandboxView | ClocheError]:
        """End many; each is answered for itself, in order."""

    async def handle(self, sandbox_id: str) -> Sandbox:
        """Return a connection to its guest. Raises NotFound, SandboxLost, or Conflict while not ready."""

    async def release(self, handle: Sandbox) -> None:
        """Let go of what ``handle`` returned."""

    async def pause(self, sandbox_id: str) -> SandboxView:
        """Freeze it."""

    async def resume(self, sandbox_id: str) -> SandboxView:
        """Let it go on."""

    async def fork(self, sandbox_id: str, body: ForkBody) -> builtins.list[SandboxView]:
        """Make more from its file system as it is now."""

    async def snapshot(self, sandbox_id: str, body: SnapshotBody) -> ImageView:
        """Make an image of its file system as it is now."""

    async def diff(self, sandbox_id: str) -> DiffView:
        """Return how its file system differs from the image."""

    async def set_network(self, sandbox_id: str, body: NetworkBody) -> NetworkBody:
        """Change what it may reach; returns what holds now."""

    async def denials(self, sandbox_id: str) -> DenialPage:
        """Return what its network policy refused."""

    async def link(self, sandbox_id: str, port: int, ttl_s: float) -> LinkView:
        """Return a URL that reaches one of its ports."""

    async def heartbeat(self, sandbox_id: str) -> None:
        """Push its heartbeat limit on."""

    async def extend(self, sandbox_id: str, body: ExtendBody) -> SandboxView:
        """Let it live so long from now."""

    async def would_fit(self, body: CreateBody) -> FitView:
        """Return whether a create would start at once."""

    async def capabilities(self) -> CapabilitiesView:
        """Return what its driver can do."""

    async def close(self) -> None:
        """Let go of connections; ends no sandbox."""

    # stands last: in a class body the name `list` means this method from here on
    async def list(
        self,
        *,
        labels: Mapping[str, str] | None = None,
        states: Collection[State] = (),
        after: str | None = None,
        limit: int = 1000,
    ) -> SandboxPage:
        """Return a page of sandboxes."""
