"""The native runtime: namespaces of our own making, through the spawner.

Implements ``drivers.runtime.Runtime``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from cloche.core.errors import ClocheError, InfraError, InvalidInput
from cloche.sandbox import leaks
from cloche.sandbox.driver import Capability, Denial, Leftover
from cloche.sandbox.drivers.runtime import Made
from cloche.sandbox.guest.frames import Fields
from cloche.sandbox.native import network, store
from cloche.sandbox.native.cgroups import Cgroups
from cloche.sandbox.native.finish import finish
from cloche.sandbox.native.policies import Policies
from cloche.sandbox.native.request import create_fields
from cloche.sandbox.native.spawner import Spawner
from cloche.sandbox.native.wire import Request, Tag
from cloche.sandbox.settings import Settings
from cloche.sandbox.spec import NetworkPolicy, PreparedImage, SandboxSpec

_DELETE_TRIES = 3
_FREEZING = (Capability.PAUSE, Capability.SNAPSHOT, Capability.FORK)


class NativeRuntime:
    """Makes sandboxes of one installation on this machine. Needs root."""

    isolation = "native"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._spawner = Spawner(settings)
        self._cgroups = Cgroups(settings)
        self._policies = Policies(settings, self._spawner)
        self._gateway = str(network.plan(settings).gateway)

    def capabilities(self) -> frozenset[Capability]:
        """See :meth:`cloche.sandbox.drivers.runtime.Runtime.capabilities`."""
        return frozenset(
            {
                Capability.PUBLIC,
                Capability.ALLOWLIST,
                Capability.NETWORK_SWITCH,
                Capability.UNIT,
                Capability.MEMORY_LIMIT,
                Capability.CPU_LIMIT,
                Capability.PIDS_LIMIT,
                Capability.VOLUMES,
                Capability.DIFF,
                *([Capability.DISK_LIMIT] if store.disk_limits(self._settings) else []),
                *(_FREEZING if self._cgroups.layout.freezes else ()),
            }
        )

    async def create(self, spec: SandboxSpec, image: PreparedImage, record: bytes) -> Made:
        """See :meth:`cloche.sandbox.drivers.runtime.Runtime.create`."""
        await asyncio.to_thread(self._policies.check, spec)
        fields = create_fields(spec, image, record, self._settings, self._gateway)
        asking = asyncio.ensure_future(self._make(spec, fields))
        try:
            await asyncio.shield(asking)
        except asyncio.CancelledError:
            await finish(self._undo(asking, spec.id))
            raise
        return self.find(spec.id)

    async def _make(self, spec: SandboxSpec, fields: list[tuple[int, int | str | bytes]]) -> Fields:
        answer = await self._ask_create(fields)
        try:
            await self._policies.begin(spec)
        except BaseException:
            await finish(self.delete(spec.id))
            raise
        return answer

    async def _ask_create(self, fields: list[tuple[int, int | str | bytes]]) -> Fields:
        try:
            return await self._spawner.ask(Request.CREATE, fields)
        except ValueError as error:
            raise InvalidInput(f"the sandbox cannot be asked for: {error}") from error
        except InfraError as error:
            if error.code == "infra/transport":  # it may be half made
                await finish(self.delete(dict(fields)[Tag.ID]))  # type: ignore[arg-type]  # a text
            raise

    async def _undo(self, asking: asyncio.Future[Fields], sandbox_id: str) -> None:
        """Wait for a create that nobody wants any more, and delete what it made."""
        try:
            await asking
        except ClocheError:
            return  # nothing was made
        await self.delete(sandbox_id)

    def find(self, sandbox_id: str) -> Made:
        """See :meth:`cloche.sandbox.drivers.runtime.Runtime.find`."""
        return Made(
            socket=self._settings.sandboxes_dir / sandbox_id / "guest.sock",
            oom_kills=self._oom_counter(sandbox_id),
        )

    def _oom_counter(self, sandbox_id: str) -> Callable[[], Awaitable[int]] | None:
        if not self._cgroups.memory_counts_kills:
            return None

        limited = self._cgroups.limits_memory(sandbox_id)
        pool_before = 0 if limited else self._cgroups.pool_kills(sandbox_id)

        async def count() -> int:
            own = self._cgroups.oom_kills(sandbox_id)
            if not limited and self._cgroups.pool_kills(sandbox_id) > pool_before:
                raise InfraError(
                    "the memory that sandboxes without a limit share ran out",
                    hint="give sandboxes a memory limit, or run fewer at once",
                    code="infra/host_memory",
                )
            return own

        return count

    async def delete(self, sandbox_id: str) -> bool:
        """See :meth:`cloche.sandbox.drivers.runtime.Runtime.delete`."""
        if not await self._spawner.running() and not await asyncio.to_thread(self._trace, sandbox_id):
            return False
        answer = dict(await self._ask_delete(sandbox_id))
        return int.from_bytes(answer.get(Tag.EXISTED, b""), "little") != 0

    async def _ask_delete(self, sandbox_id: str) -> Fields:
        """Ask for a delete, of the next spawner too: one that ended meanwhile has left a part to do."""
        for _ in range(_DELETE_TRIES - 1):
            try:
                return await self._spawner.ask(Request.DELETE, [(Tag.ID, sandbox_id)])
            except InfraError as error:
                if error.code != "infra/transport":
                    raise
        return await self._spawner.ask(Request.DELETE, [(Tag.ID, sandbox_id)])

    async def pause(self, sandbox_id: str, ttl_s: float | None) -> None:
        """See :meth:`cloche.sandbox.drivers.runtime.Runtime.pause`."""
        ttl_ms = 0 if ttl_s is None else max(1, round(ttl_s * 1000))
        await self._spawner.ask(Request.PAUSE, [(Tag.ID, sandbox_id), (Tag.TTL_MS, ttl_ms)])

    async def resume(self, sandbox_id: str) -> None:
        """See :meth:`cloche.sandbox.drivers.runtime.Runtime.resume`."""
        await self._spawner.ask(Request.RESUME, [(Tag.ID, sandbox_id)])

    async def set_network(self, sandbox_id: str, policy: NetworkPolicy) -> NetworkPolicy:
        """See :meth:`cloche.sandbox.drivers.runtime.Runtime.set_network`."""
        return await self._policies.change(sandbox_id, policy)

    async def network(self, sandbox_id: str) -> NetworkPolicy:
        """See :meth:`cloche.sandbox.drivers.runtime.Runtime.network`."""
        return await self._policies.held(sandbox_id)

    async def denials(self, sandbox_id: str) -> list[Denial]:
        """See :meth:`cloche.sandbox.drivers.runtime.Runtime.denials`."""
        return await self._policies.denials(sandbox_id)

    def _trace(self, sandbox_id: str) -> bool:
        folders = (self._settings.sandboxes_dir, self._settings.uppers_dir)
        return any((folder / sandbox_id).exists() for folder in folders) or self._cgroups.exists(sandbox_id)

    async def leftovers(self) -> list[Leftover]:
        """See :meth:`cloche.sandbox.drivers.runtime.Runtime.leftovers`."""
        return await asyncio.to_thread(leaks.find_leftovers, self._settings)

    async def reap(self) -> list[Leftover]:
        """See :meth:`cloche.sandbox.drivers.runtime.Runtime.reap`."""
        found = await self.leftovers()
        failed: list[InfraError] = []
        for sandbox_id in await asyncio.to_thread(leaks.dead_ids, self._settings):
            try:
                await self._ask_delete(sandbox_id)
            except InfraError as error:
                failed.append(error)  # the others go all the same
        await asyncio.to_thread(leaks.remove_rest, self._settings)
        if failed:
            more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
            raise InfraError(f"{failed[0].message}{more}", hint=failed[0].hint, code=failed[0].code)
        return found

    async def close(self) -> None:
        """See :meth:`cloche.sandbox.drivers.runtime.Runtime.close`."""
        await self._spawner.close()

    async def stop(self) -> None:
        """Let the spawner go at once if nothing is alive, and wait for its end."""
        await self._spawner.stop()
