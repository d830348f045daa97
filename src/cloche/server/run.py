"""A service that listens: opened, announced, and closed without ending a sandbox.

Must never listen beyond this machine without a key.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import ssl
import stat
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from aiohttp import web

from cloche.core.errors import EnvironmentUnusable, InvalidInput
from cloche.server.app import make_app, make_context
from cloche.server.call import Context
from cloche.server.gate import is_loopback
from cloche.server.keys import Keyring
from cloche.server.settings import ServerSettings
from cloche.service.service import SandboxService


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    """Where to listen: at a host and port, at a unix socket, or both."""

    host: str | None = "127.0.0.1"
    port: int = 7070
    unix: Path | None = None
    tls: ssl.SSLContext | None = None


def check_exposure(listen: Listen, settings: ServerSettings) -> None:
    """Raise InvalidInput for a service that anyone could reach and that asks for no key."""
    if listen.host is None or is_loopback(listen.host) or len(Keyring(settings.keys_file)):
        return
    raise InvalidInput(
        f"without a key a service listens on this machine only, not on {listen.host}",
        hint="make a key first: cloche key create OWNER",
        code="user/unauthorised",
    )


class _JsonLines(logging.Formatter):
    """One JSON object a line; extra fields that are known here, and no others."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "at": round(record.created, 3),
            "level": record.levelname.lower(),
            "says": record.getMessage(),
        }
        request_id = getattr(record, "request_id", None)
        if request_id is not None:
            entry["request"] = request_id
        if record.exc_info:
            # types and places only: what an error says may hold what a client sent
            kind, _, trace = record.exc_info
            entry["error"] = getattr(kind, "__name__", "?")
            entry["where"] = _places(trace)
        return json.dumps(entry)


def _places(trace: object) -> list[str]:
    if not isinstance(trace, TracebackType):
        return []
    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(trace)[-12:]]


def log_to_stderr() -> None:
    """Let the service's log go to standard error, as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("cloche").setLevel(logging.INFO)


class Running:
    """A service that listens. ``addresses`` are the URLs (and ``unix:PATH``) it is reached at."""

    def __init__(
        self, context: Context, runner: web.AppRunner, addresses: list[str], unix: Path | None
    ) -> None:
        self.context = context
        self.addresses = addresses
        self._runner = runner
        self._unix = unix

    async def stop(self) -> None:
        """Take no more, hand back what waits, let the rest finish for a while; sandboxes live on."""
        context = self.context
        context.stopping.begin()
        await self._runner.cleanup()
        await context.service.close()
        context.audit.flush()
        context.audit.close()
        if self._unix is not None:
            self._unix.unlink(missing_ok=True)


async def open_service(service: SandboxService, settings: ServerSettings, listen: Listen) -> Running:
    """Start the service and listen. Raises EnvironmentUnusable when that address cannot be had."""
    check_exposure(listen, settings)
    context = make_context(service, settings)
    try:
        context.audit.open()
    except OSError as error:
        raise EnvironmentUnusable(f"{settings.audit_file} cannot be written: {error.strerror}") from error
    runner = web.AppRunner(
        make_app(context),
        handle_signals=False,
        access_log=None,
        handler_cancellation=True,
        keepalive_timeout=settings.keepalive_s,
        shutdown_timeout=settings.drain_s,
        read_bufsize=1 << 18,
    )
    await runner.setup()
    try:
        addresses = await _listen(runner, listen)
        context.address = settings.public_url or next((a for a in addresses if "://" in a), "")
        await service.start()
    except BaseException:
        await runner.cleanup()
        context.audit.close()
        raise
    return Running(context, runner, addresses, listen.unix)


async def _listen(runner: web.AppRunner, listen: Listen) -> list[str]:
    addresses: list[str] = []
    try:
        if listen.unix is not None:
            _remove_stale(listen.unix)
            mask = os.umask(0o177)
            try:
                await web.UnixSite(runner, str(listen.unix)).start()
            finally:
                os.umask(mask)
            addresses.append(f"unix:{listen.unix}")
        if listen.host is not None:
            site = web.TCPSite(runner, listen.host, listen.port, ssl_context=listen.tls, backlog=1024)
            await site.start()
            port = runner.addresses[-1][1]
            shown = f"[{listen.host}]" if ":" in listen.host else listen.host
            addresses.append(f"{'https' if listen.tls else 'http'}://{shown}:{port}")
    except OSError as error:
        where = listen.unix if listen.host is None else f"{listen.host}:{listen.port}"
        raise EnvironmentUnusable(
            f"cannot listen at {where}: {error.strerror or error}", hint="is another service running there?"
        ) from error
    return addresses


def _remove_stale(path: Path) -> None:
    """Remove a socket that nobody listens at any more; anything else at that path is left alone."""
    if not path.exists() or not stat.S_ISSOCK(path.stat().st_mode):
        return
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()


async def serve_until_told(
    service: SandboxService, settings: ServerSettings, listen: Listen, ready: Callable[[Running], None]
) -> None:
    """Serve until SIGTERM or SIGINT; a second one ends the waiting for requests at once."""
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    running = await open_service(service, settings, listen)
    ready(running)
    logging.getLogger("cloche.server").info("listening at %s", ", ".join(running.addresses))
    await told.wait()
    told.clear()
    began = time.monotonic()
    stop = asyncio.ensure_future(running.stop())
    again = asyncio.ensure_future(told.wait())
    await asyncio.wait({stop, again}, return_when=asyncio.FIRST_COMPLETED)
    again.cancel()
    if not stop.done():
        stop.cancel()
    await asyncio.gather(stop, return_exceptions=True)
    logging.getLogger("cloche.server").info("stopped after %.1f s", time.monotonic() - began)
