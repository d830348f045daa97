"""Handlers for files: raw bytes both ways, in pieces, never decoded; and what else one does with paths.

A body that ends early, or is not what its checksum says, changes nothing. Must never hold a file in memory.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator

from aiohttp import web

from cloche.api.models import FilePage, MoveBody
from cloche.api.queries import (
    FileQuery,
    GlobQuery,
    ListFilesQuery,
    MakeDirQuery,
    PutFileQuery,
    RemoveQuery,
    StatQuery,
)
from cloche.core.errors import InfraError, InvalidInput
from cloche.sandbox.guest.glob import glob as find
from cloche.sandbox.handle import FileInfo, FileKind, Sandbox
from cloche.server.call import Call
from cloche.server.errors import BadRange
from cloche.server.shapes import file_view

CHECKSUM = "X-Checksum-SHA256"
_PIECE_BYTES = 262_144
_RANGE = re.compile(r"bytes=(\d{1,18})?-(\d{1,18})?")


async def get(call: Call) -> web.StreamResponse:
    """``GET …/files`` and ``HEAD``: the whole file or one range of it."""
    query = call.query(FileQuery)
    sandbox = await call.handle()
    info = await sandbox.stat(query.path)
    if info.kind is not FileKind.FILE:
        raise InvalidInput(f"{query.path} is a {info.kind.value}, not a file", where="path")
    begin, end = _range(call, info.size_bytes)
    headers = {"ETag": _etag(info), "Accept-Ranges": "bytes", "X-File-Mode": f"{info.mode:o}"}
    headers["X-File-Size"] = str(info.size_bytes)
    if query.sha256:
        headers[CHECKSUM] = await checksum(sandbox, query.path)
    partial = begin is not None
    first, last = begin or 0, info.size_bytes if end is None else end
    if partial:
        headers["Content-Range"] = f"bytes {first}-{last - 1}/{info.size_bytes}"
    # a file of /proc says that it is empty, and is not: it goes without a length
    length = last - first if info.size_bytes else None
    if call.request.method == "HEAD":
        return await _head(call, 206 if partial else 200, length, headers)
    response = await call.stream(
        "application/octet-stream", status=206 if partial else 200, length=length, headers=headers
    )
    sent = await _send(call, response, sandbox.read_stream(query.path, offset=first, length=length))
    if length is not None and sent != length:
        raise InfraError(f"{query.path} became shorter while it was read")
    await response.write_eof()
    return response


async def _head(call: Call, status: int, length: int | None, headers: dict[str, str]) -> web.StreamResponse:
    response = await call.stream(
        "application/octet-stream", status=status, length=length or 0, headers=headers
    )
    await response.write_eof()
    return response


async def _send(call: Call, response: web.StreamResponse, pieces: AsyncIterator[bytes]) -> int:
    """Send pieces, joined to larger ones; returns how many bytes that were."""
    pending, sent = bytearray(), 0
    async for piece in pieces:
        pending += piece
        if len(pending) >= _PIECE_BYTES:
            await response.write(bytes(pending))
            sent += len(pending)
            pending.clear()
    if pending:
        await response.write(bytes(pending))
        sent += len(pending)
    call.context.metrics.bytes_out += sent
    return sent


def _etag(info: FileInfo) -> str:
    return f'W/"{round(info.modified_at * 1e6):x}-{info.size_bytes:x}"'


def _range(call: Call, size: int) -> tuple[int | None, int | None]:
    """Return first byte and end of the range that is asked for; several ranges are answered as none."""
    text = call.request.headers.get("Range")
    if text is None:
        return None, None
    match = _RANGE.fullmatch(text.strip())
    if match is None or (match[1] is None and match[2] is None):
        return None, None
    if match[1] is None:
        begin, end = max(0, size - int(match[2])), size
    else:
        begin, end = int(match[1]), size if match[2] is None else min(size, int(match[2]) + 1)
    if begin >= end:
        raise BadRange(f"the file has {size} bytes", where="Range")
    return begin, end


async def checksum(sandbox: Sandbox, path: str) -> str:
    """Return the SHA-256 of a file's bytes as they are now, in hexadecimal digits."""
    digest = hashlib.sha256()
    async for piece in sandbox.read_stream(path):
        digest.update(piece)
    return digest.hexdigest()


async def put(call: Call) -> web.StreamResponse:
    """``PUT …/files``: the file is there whole, or as it was before."""
    query = call.query(PutFileQuery)
    wanted = call.request.headers.get(CHECKSUM)
    sandbox = await call.handle()
    digest = hashlib.sha256() if wanted is not None else None

    async def pieces() -> AsyncIterator[bytes]:
        async for piece in call.request.content.iter_any():
            if digest is not None:
                digest.update(piece)
            call.context.metrics.bytes_in += len(piece)
            yield piece
        if digest is not None and wanted is not None and digest.hexdigest() != wanted.lower():
            raise InvalidInput(
                f"the body's SHA-256 is {digest.hexdigest()}", where=CHECKSUM, hint="nothing was written"
            )

    await sandbox.write_stream(query.path, pieces(), mode=int(query.mode, 8), user=query.user)
    return call.json(file_view(await sandbox.stat(query.path), digest.hexdigest() if digest else None))


async def stat(call: Call) -> web.StreamResponse:
    """``GET …/files/stat``."""
    query = call.query(StatQuery)
    sandbox = await call.handle()
    info = await sandbox.stat(query.path, follow=query.follow)
    wanted = query.sha256 and info.kind is FileKind.FILE
    return call.json(file_view(info, await checksum(sandbox, query.path) if wanted else None))


async def list_(call: Call) -> web.StreamResponse:
    """``GET …/files/list``: by name, in pages."""
    query = call.query(ListFilesQuery)
    found = await (await call.handle()).list_dir(query.path)
    views = [file_view(info) for info in found]
    views = [view for view in views if query.after is None or view.path > query.after]
    views.sort(key=lambda view: view.path)
    page = tuple(views[: query.limit])
    return call.json(FilePage(items=page, next=page[-1].path if len(views) > query.limit else None))


async def glob(call: Call) -> web.StreamResponse:
    """``GET …/files/glob``."""
    query = call.query(GlobQuery)
    pattern = query.pattern if query.pattern.startswith("/") else f"{query.path.rstrip('/')}/{query.pattern}"
    found = await find(await call.handle(), pattern, limit=query.limit)
    return call.json(FilePage(items=tuple(map(file_view, found))))


async def mkdir(call: Call) -> web.StreamResponse:
    """``POST …/files/mkdir``."""
    query = call.query(MakeDirQuery)
    sandbox = await call.handle()
    await sandbox.make_dir(query.path, mode=int(query.mode, 8), parents=query.parents, user=query.user)
    return call.json(file_view(await sandbox.stat(query.path)))


async def move(call: Call) -> web.StreamResponse:
    """``POST …/files/move``."""
    body = await call.body(MoveBody)
    await (await call.handle()).move(body.source, body.target)
    return call.nothing()


async def remove(call: Call) -> web.StreamResponse:
    """``DELETE …/files``."""
    query = call.query(RemoveQuery)
    await (await call.handle()).remove(query.path, recursive=query.recursive)
    return call.nothing()
