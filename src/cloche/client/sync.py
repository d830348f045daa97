"""``Sandbox``: the same methods as ``AsyncSandbox``, without ``await``.

Every method is derived from the async one (see ``derive``); a test compares both. They may be called from
any thread, in a notebook too. Must never hold behaviour of its own.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from cloche.api.models import SandboxView
from cloche.client.aio import AsyncSandbox
from cloche.client.derive import Face, face, faces, faces_or_errors, items, made, told, value
from cloche.client.files import AsyncFiles
from cloche.client.process import AsyncProcess


class Files(Face[AsyncFiles]):
    """See :class:`cloche.client.files.AsyncFiles`."""

    read = value(AsyncFiles.read)
    read_text = value(AsyncFiles.read_text)
    stream = items(AsyncFiles.stream)
    write = value(AsyncFiles.write)
    upload = value(AsyncFiles.upload)
    download = value(AsyncFiles.download)
    stat = value(AsyncFiles.stat)
    exists = value(AsyncFiles.exists)
    mkdir = value(AsyncFiles.mkdir)
    move = value(AsyncFiles.move)
    remove = value(AsyncFiles.remove)
    diff = value(AsyncFiles.diff)
    glob = value(AsyncFiles.glob)
    apply_patch = value(AsyncFiles.apply_patch)
    list = value(AsyncFiles.list)


class Process(Face[AsyncProcess]):
    """See :class:`cloche.client.process.AsyncProcess`."""

    output = items(AsyncProcess.output)
    text = items(AsyncProcess.text)
    __iter__ = items(AsyncProcess.__aiter__)
    wait = value(AsyncProcess.wait)
    write = value(AsyncProcess.write)
    close_stdin = value(AsyncProcess.close_stdin)
    signal = value(AsyncProcess.signal)
    resize = value(AsyncProcess.resize)
    cancel = value(AsyncProcess.cancel)

    @property
    def id(self) -> str:
        """Its name."""
        return self._inner.id


class Sandbox(Face[AsyncSandbox]):
    """See :class:`cloche.client.aio.AsyncSandbox`; as a context manager it deletes itself on exit."""

    create = staticmethod(made(AsyncSandbox.create, lambda: Sandbox))
    connect = staticmethod(made(AsyncSandbox.connect, lambda: Sandbox))
    create_many = staticmethod(faces_or_errors(AsyncSandbox.create_many, lambda: Sandbox))
    refresh = value(AsyncSandbox.refresh)
    wait = value(AsyncSandbox.wait)
    events = items(AsyncSandbox.events)
    run = value(AsyncSandbox.run)
    start = face(AsyncSandbox.start, lambda: Process)
    terminal = face(AsyncSandbox.terminal, lambda: Process)
    commands = value(AsyncSandbox.commands)
    pause = value(AsyncSandbox.pause)
    resume = value(AsyncSandbox.resume)
    snapshot = value(AsyncSandbox.snapshot)
    fork = faces(AsyncSandbox.fork, lambda: Sandbox)
    set_network = value(AsyncSandbox.set_network)
    denials = value(AsyncSandbox.denials)
    port_url = value(AsyncSandbox.port_url)
    extend = value(AsyncSandbox.extend)
    heartbeat = value(AsyncSandbox.heartbeat)
    delete = value(AsyncSandbox.delete)
    close = value(AsyncSandbox.close)
    sidecar = face(AsyncSandbox.sidecar, lambda: Sandbox)

    @property
    def id(self) -> str:
        """Its name."""
        return self._inner.id

    @property
    def view(self) -> SandboxView:
        """What was last heard of it: see ``refresh``."""
        return self._inner.view

    @property
    def files(self) -> Files:
        """Its files."""
        return Files(self._inner.files, self._portal)

    def process(self, command_id: str) -> Process:
        """Return a command that anyone started; whether it exists shows on use (NotFound)."""
        return Process(self._inner.process(command_id), self._portal)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.delete()

    list = staticmethod(told(AsyncSandbox.list))
