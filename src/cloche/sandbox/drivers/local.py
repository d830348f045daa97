"""The local driver: sandboxes on this machine, with the run folder as the only record of them.

Must never hold truth of its own: any process may use the same folders at the same time, or die at any moment.
"""

from __future__ import annotations

import asyncio
import builtins
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

from cloche.core.errors import ClocheError, InfraError, InvalidInput, NotFound, SandboxLost
from cloche.core.ids import is_name
from cloche.sandbox.driver import Capability, Change, Denial, Leftover, SandboxInfo, SandboxState
from cloche.sandbox.drivers import copies
from cloche.sandbox.drivers.base import CapabilityGate, refuse
from cloche.sandbox.drivers.runtime import Made, Runtime
from cloche.sandbox.guest.connection import connect
from cloche.sandbox.handle import Sandbox
from cloche.sandbox.images import names
from cloche.sandbox.images.disk import waiting_lock
from cloche.sandbox.images.lease import lease
from cloche.sandbox.images.store import ImageStore
from cloche.sandbox.images.tools import in_thread
from cloche.sandbox.native import store_diff, store_snapshot
from cloche.sandbox.native.finish import finish
from cloche.sandbox.native.record import (
    Folder,
    Record,
    boot_id,
    ended,
    read_folder,
    read_folders,
    this_process,
)
from cloche.sandbox.native.runtime import NativeRuntime
from cloche.sandbox.settings import Settings
from cloche.sandbox.spec import NetworkPolicy, PreparedImage, SandboxSpec

_FORKS_AT_ONCE = 16
_ON_DISK = frozenset({Capability.DIFF, Capability.SNAPSHOT, Capability.FORK})


class LocalDriver(CapabilityGate):
    """Implements :class:`cloche.sandbox.driver.Driver` over a :class:`Runtime` (default: native)."""

    name = "local"

    def __init__(self, settings: Settings, runtime: Runtime | None = None) -> None:
        self._settings = settings
        self._store = ImageStore(settings)
        self._rounds = copies.Rounds()
        self._runtime: Runtime = runtime or NativeRuntime(settings)

    @property
    def isolation(self) -> str:
        """How its sandboxes are kept apart from the host."""
        return self._runtime.isolation

    @property
    def store_dir(self) -> Path:
        """Where its sandboxes' files are."""
        return self._settings.state_dir

    def capabilities(self, isolation: str | None = None) -> frozenset[Capability]:
        """See :meth:`cloche.sandbox.driver.Driver.capabilities`."""
        return self._runtime.capabilities()

    async def create(self, spec: SandboxSpec, image: PreparedImage) -> Sandbox:
        """See :meth:`cloche.sandbox.driver.Driver.create`; raises EnvironmentUnusable as well."""
        self.check_capabilities(spec)
        owner = None if spec.owner else this_process()  # a service's sandboxes do not end with its process
        record = Record(spec=spec, image=image, created_at=time.time(), boot=boot_id(), owner=owner)
        with lease(self._settings, image.digest):  # until the record says that it is used
            made = await self._runtime.create(spec, image, record.dump())
        try:
            return await self._connect(record, made)
        except BaseException as error:
            await finish(self._runtime.delete(spec.id))
            if isinstance(error, SandboxLost):
                raise InfraError(
                    f"the guest of {spec.id} did not come up: {error}", code="infra/sandbox_start"
                ) from error
            raise

    async def attach(self, sandbox_id: str) -> Sandbox:
        """See :meth:`cloche.sandbox.driver.Driver.attach`."""
        folder = await asyncio.to_thread(self._folder, sandbox_id)
        if folder.record is None:
            raise NotFound(
                f"sandbox {sandbox_id} has no readable record", hint="cloche sandbox reap removes it"
            )
        if folder.end is not None:
            raise SandboxLost(f"sandbox {sandbox_id} is over: {folder.reason}")
        record, folder = folder.record, await self._settled(folder)
        if folder.info().state is SandboxState.PAUSED:
            raise InvalidInput(f"sandbox {sandbox_id} is paused", hint="resume it first")
        try:
            return await self._connect(record, self._runtime.find(sandbox_id))
        except SandboxLost as error:
            info = (await asyncio.to_thread(self._folder, sandbox_id)).info()
            if info.state is SandboxState.READY:
                raise InfraError(
                    f"sandbox {sandbox_id} lives but takes no further client: {error}", code="infra/transport"
                ) from error
            raise SandboxLost(f"sandbox {sandbox_id} is over: {info.reason or error}") from error

    async def _connect(self, record: Record, made: Made) -> Sandbox:
        connection = await connect(made.socket)
        return Sandbox(
            spec=record.spec,
            config=record.image.config,
            connection=connection,
            deleter=self.delete,
            oom_kills=made.oom_kills,
        )

    def _folder(self, sandbox_id: str) -> Folder:
        folder = read_folder(self._settings.sandboxes_dir / sandbox_id) if is_name(sandbox_id) else None
        if folder is None:
            raise NotFound(f"there is no sandbox {sandbox_id}", hint="cloche sandbox ls")
        return folder

    async def list(self) -> list[SandboxInfo]:
        """See :meth:`cloche.sandbox.driver.Driver.list`."""
        folders = await asyncio.to_thread(read_folders, self._settings.sandboxes_dir)
        return sorted((folder.info() for folder in folders), key=lambda info: info.created_at)

    async def ended(self, ids: Collection[str]) -> Mapping[str, SandboxInfo | None]:
        """See :meth:`cloche.sandbox.driver.Driver.ended`."""
        return await asyncio.to_thread(ended, self._settings.sandboxes_dir, ids)

    async def delete(self, sandbox_id: str) -> bool:
        """See :meth:`cloche.sandbox.driver.Driver.delete`."""
        if not is_name(sandbox_id):
            return False
        existed = await self._runtime.delete(sandbox_id)
        if store_snapshot.has_forks(self._store):
            await self._rounds.run(partial(store_snapshot.forget_forks, self._store))
        return existed

    async def pause(self, sandbox_id: str) -> None:
        """See :meth:`cloche.sandbox.driver.Driver.pause`; the guest is asked what is left of its ttl."""
        folder = await self._settled(await asyncio.to_thread(self._folder, sandbox_id))
        isolation = folder.record.spec.isolation if folder.record else None
        if Capability.PAUSE not in self.capabilities(isolation):
            refuse(self.name, Capability.PAUSE)
        if folder.info().state is not SandboxState.PAUSED:
            await self._pause(folder)

    async def _pause(self, folder: Folder) -> None:
        sandbox_id, record = folder.id, folder.record
        if record is None:
            raise NotFound(f"sandbox {sandbox_id} has no readable record")
        sandbox = await self._connect(record, self._runtime.find(sandbox_id))
        try:
            left_s = await sandbox.ttl_left_s()
        finally:
            await sandbox.close()
        await self._runtime.pause(sandbox_id, left_s)

    async def resume(self, sandbox_id: str) -> None:
        """See :meth:`cloche.sandbox.driver.Driver.resume`."""
        folder = await self._settled(await asyncio.to_thread(self._folder, sandbox_id))
        info = folder.info()
        if info.state is SandboxState.ENDED:
            raise SandboxLost(f"sandbox {sandbox_id} is over: {info.reason}")
        if info.state is SandboxState.PAUSED:
            await self._runtime.resume(sandbox_id)

    async def _settled(self, folder: Folder) -> Folder:
        """Wait for a copy that is being made of it; let it go if the copier died. Return it as it is then."""
        if not copies.is_marked(folder.path):
            return folder
        async with copies.locked_mark(folder.path) as mark:
            await self._let_go(folder.id, mark)
        return await asyncio.to_thread(self._folder, folder.id)

    async def _let_go(self, sandbox_id: str, mark: copies.Mark) -> None:
        if mark.read() == copies.FROZEN:
            try:
                await self._runtime.resume(sandbox_id)
            except ClocheError:
                if (await asyncio.to_thread(self._folder, sandbox_id)).info().state is SandboxState.PAUSED:
                    raise
        mark.write(b"")

    @asynccontextmanager
    async def _still(self, folder: Folder) -> AsyncIterator[None]:
        """Let every process of a sandbox stand still; one that was paused before stays so."""
        async with copies.locked_mark(folder.path) as mark:
            await self._let_go(folder.id, mark)
            paused = (await asyncio.to_thread(self._folder, folder.id)).info().state is SandboxState.PAUSED
            try:
                mark.write(copies.PAUSED if paused else copies.FROZEN)
                if not paused:
                    await self._pause(folder)
                yield
            finally:
                await finish(self._let_go(folder.id, mark))

    async def _copied(
        self, sandbox_id: str, capability: Capability, held: ExitStack, name: str = ""
    ) -> PreparedImage:
        """Make an image of a sandbox's file system as it is now; the sandbox goes on before it is hashed."""
        folder = await asyncio.to_thread(self._folder, sandbox_id)
        record = self._able(folder, capability)
        store = self._store
        await asyncio.to_thread(store.make_folders)
        origin = store_snapshot.FORK if capability is Capability.FORK else store_snapshot.SNAPSHOT
        async with (
            waiting_lock(store.root / "locks" / "builds", shared=True),  # what lies there unneeded stays
            store.staging.folder_aside(origin) as work,
        ):
            base = await asyncio.to_thread(store_snapshot.base_of, store, record.image)
            target = work / "layer"
            async with self._still(folder):
                try:
                    await in_thread(partial(store_snapshot.copy_upper, store, record, base, target))
                except FileNotFoundError as error:
                    raise SandboxLost(f"sandbox {sandbox_id} ended meanwhile") from error
            commit = partial(store_snapshot.commit, store, record, base, target, held=held)
            return await in_thread(lambda check: commit(origin=origin, name=name, check=check))

    async def snapshot(self, sandbox_id: str, name: str) -> PreparedImage:
        """See :meth:`cloche.sandbox.driver.Driver.snapshot`; an empty name is one made of the digest."""
        wanted = names.normalise(name) if name else ""
        with ExitStack() as held:
            return await self._copied(sandbox_id, Capability.SNAPSHOT, held, wanted)

    async def fork(self, sandbox_id: str, specs: Sequence[SandboxSpec]) -> builtins.list[Sandbox]:
        """See :meth:`cloche.sandbox.driver.Driver.fork`. All of them, or none and an error."""
        for spec in specs:
            self.check_capabilities(spec)
        places = asyncio.Semaphore(_FORKS_AT_ONCE)

        async def one(spec: SandboxSpec, image: PreparedImage) -> Sandbox:
            async with places:
                return await self.create(spec, image)

        with ExitStack() as held:
            image = await self._copied(sandbox_id, Capability.FORK, held)
            tasks = [asyncio.ensure_future(one(spec, image)) for spec in specs]
            try:
                return [await task for task in tasks]
            except BaseException:
                await finish(self._undo_forks(tasks, held))
                raise

    async def _undo_forks(self, tasks: Sequence[asyncio.Future[Sandbox]], held: ExitStack) -> None:
        for task in tasks:
            task.cancel()
        for made in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(made, Sandbox):
                await made.delete()
        held.close()
        await self._rounds.run(partial(store_snapshot.forget_forks, self._store))

    async def diff(self, sandbox_id: str) -> builtins.list[Change]:
        """See :meth:`cloche.sandbox.driver.Driver.diff`."""
        record = self._able(await asyncio.to_thread(self._folder, sandbox_id), Capability.DIFF)
        hidden = store_diff.hidden_paths(volume.target for volume in record.spec.volumes)
        upper = self._settings.uppers_dir / sandbox_id / "upper"
        try:
            return await asyncio.to_thread(store_diff.diff, upper, record.image.layers, hidden)
        except FileNotFoundError as error:
            raise SandboxLost(f"sandbox {sandbox_id} ended meanwhile") from error

    def _able(self, folder: Folder, capability: Capability) -> Record:
        """Return the record of a live sandbox whose isolation has this capability."""
        if folder.record is None:
            raise NotFound(f"sandbox {folder.id} has no readable record")
        if capability not in self.capabilities(folder.record.spec.isolation):
            refuse(self.name, capability)
        info = folder.info()
        if info.state is SandboxState.ENDED:
            raise SandboxLost(f"sandbox {folder.id} is over: {info.reason}")
        if capability in _ON_DISK and not (self._settings.uppers_dir / folder.id / "upper").is_dir():
            refuse(self.name, capability)  # what it writes is in memory, where only it sees it
        return folder.record

    async def set_network(self, sandbox_id: str, policy: NetworkPolicy) -> NetworkPolicy:
        """See :meth:`cloche.sandbox.driver.Driver.set_network`."""
        self._able(await asyncio.to_thread(self._folder, sandbox_id), Capability.NETWORK_SWITCH)
        return await self._runtime.set_network(sandbox_id, policy)

    async def network(self, sandbox_id: str) -> NetworkPolicy:
        """See :meth:`cloche.sandbox.driver.Driver.network`."""
        self._able(await asyncio.to_thread(self._folder, sandbox_id), Capability.NETWORK_SWITCH)
        return await self._runtime.network(sandbox_id)

    async def denials(self, sandbox_id: str) -> builtins.list[Denial]:
        """See :meth:`cloche.sandbox.driver.Driver.denials`."""
        self._able(await asyncio.to_thread(self._folder, sandbox_id), Capability.ALLOWLIST)
        return await self._runtime.denials(sandbox_id)

    async def leftovers(self) -> builtins.list[Leftover]:
        """See :meth:`cloche.sandbox.driver.Driver.leftovers`."""
        unused = await asyncio.to_thread(store_snapshot.unused_forks, self._store)
        return [*await self._runtime.leftovers(), *(Leftover(kind="file", name=one.name) for one in unused)]

    async def reap(self) -> builtins.list[Leftover]:
        """See :meth:`cloche.sandbox.driver.Driver.reap`."""
        for info in await self.list():
            if info.state is SandboxState.PAUSED:
                await self._settled(await asyncio.to_thread(self._folder, info.id))
        found = await self._runtime.reap()
        if store_snapshot.has_forks(self._store):
            unused = await asyncio.to_thread(store_snapshot.unused_forks, self._store)
            found += [Leftover(kind="file", name=one.name) for one in unused]
            await self._rounds.run(partial(store_snapshot.forget_forks, self._store))
        return found

    async def close(self) -> None:
        """See :meth:`cloche.sandbox.driver.Driver.close`."""
        await self._runtime.close()
