"""Files inside a sandbox, through its guest. Must never touch a file of the host.

Paths are absolute inside; the guest resolves them so that nothing leads out, and follows no magic link of
``/proc``. A new file belongs to ``user``, else to root.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator

from cloche.core.errors import InvalidInput, NotFound
from cloche.sandbox.guest.connection import READ_WINDOW_BYTES, GuestConnection
from cloche.sandbox.guest.errors import RequestFailed, as_error
from cloche.sandbox.guest.frames import (
    Fields,
    Tag,
    TornFrame,
    Type,
    Value,
    decode_fields,
    next_page,
    required,
)
from cloche.sandbox.guest.records import FileInfo, file_info, text

READ_BYTES_MAX = 64 << 20
LIST_ENTRIES_MAX = 1_000_000


class Files:
    """The file requests of one connection."""

    def __init__(self, connection: GuestConnection) -> None:
        self._connection = connection

    async def _ask(self, kind: Type, path: str, *more: tuple[int, Value]) -> Fields:
        try:
            return await self._connection.ask(kind, [(Tag.PATH, _checked(path)), *more])
        except RequestFailed as failure:
            raise as_error(failure, path) from failure

    async def read(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """Return the file's bytes. Raises NotFound, and InvalidInput for more than 64 MiB."""
        data = bytearray()
        async for piece in self.read_stream(path, offset=offset, length=length):
            data += piece
            if len(data) > READ_BYTES_MAX:
                raise InvalidInput(
                    f"{path} is larger than {READ_BYTES_MAX >> 20} MiB",
                    hint="read it in parts, or as a stream",
                )
        return bytes(data)

    async def read_stream(
        self, path: str, *, offset: int = 0, length: int | None = None
    ) -> AsyncIterator[bytes]:
        """Yield the file's bytes. Raises NotFound or InvalidInput."""
        fields: list[tuple[int, Value]] = [
            (Tag.PATH, _checked(path)),
            (Tag.OFFSET, offset),
            (Tag.CREDIT, READ_WINDOW_BYTES),
        ]
        if length is not None:
            fields.append((Tag.LENGTH, length))
        call = self._connection.call(Type.READ, fields)
        try:
            async for _, data in call.chunks():
                yield data
        except RequestFailed as failure:
            raise as_error(failure, path) from failure
        finally:
            call.abandon()

    async def write(self, path: str, data: bytes, *, mode: int = 0o644, user: str | None = None) -> None:
        """Replace the file's contents at once, making the folders above it."""

        async def whole() -> AsyncIterator[bytes]:
            yield data

        await self.write_stream(path, whole(), mode=mode, user=user)

    async def write_stream(
        self, path: str, chunks: AsyncIterable[bytes], *, mode: int = 0o644, user: str | None = None
    ) -> None:
        """Like ``write``, from pieces. When these fail, or the task is cancelled, nothing has changed."""
        call = self._connection.call(
            Type.WRITE, [(Tag.PATH, _checked(path)), (Tag.MODE, mode), *_owner(user)]
        )
        try:
            async for chunk in chunks:
                await call.send(chunk)
            if not call.reply.done():
                call.finish()
            await call.result()
        except RequestFailed as failure:
            raise as_error(failure, path) from failure
        finally:
            call.abandon()

    async def stat(self, path: str, *, follow: bool = True) -> FileInfo:
        """Return what is at ``path``; without ``follow`` a symbolic link is told as one."""
        return file_info(await self._ask(Type.STAT, path, (Tag.FOLLOW, int(follow))), path)

    async def exists(self, path: str) -> bool:
        """Whether something is there (a link that leads nowhere is something)."""
        try:
            await self.stat(path, follow=False)
        except NotFound:
            return False
        except InvalidInput as error:
            cause = error.__cause__
            if isinstance(cause, RequestFailed) and cause.error_number:
                return False
            raise
        return True

    async def list_dir(self, path: str) -> list[FileInfo]:
        """Return the folder's entries by name, links as links. Raises InvalidInput beyond a million."""
        found: list[FileInfo] = []
        following: int | None = 0
        base = path.rstrip("/")
        while following is not None:
            at, following = following, None
            fields = await self._ask(Type.LIST, path, (Tag.OFFSET, at))
            for tag, value in fields:
                if tag == Tag.ENTRY:
                    entry = decode_fields(value)
                    found.append(file_info(entry, f"{base}/{_name(entry)}"))
                elif tag == Tag.NEXT:
                    following = next_page(value, at)
            if len(found) > LIST_ENTRIES_MAX:
                raise InvalidInput(f"{path} has more than {LIST_ENTRIES_MAX:,} entries")
        return sorted(found, key=lambda info: info.path)

    async def make_dir(
        self, path: str, *, mode: int = 0o755, parents: bool = True, user: str | None = None
    ) -> None:
        """Make a folder; with ``parents`` those above it too, and it may be there already."""
        await self._ask(Type.MAKE_DIR, path, (Tag.MODE, mode), (Tag.PARENTS, int(parents)), *_owner(user))

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, a link or an empty folder; with ``recursive`` a folder and all it holds."""
        await self._ask(Type.REMOVE, path, (Tag.RECURSIVE, int(recursive)))

    async def move(self, source: str, target: str) -> None:
        """Rename, replacing what is at ``target``."""
        await self._ask(Type.MOVE, source, (Tag.TARGET, _checked(target)))

    async def symlink(self, path: str, target: str, *, user: str | None = None) -> None:
        """Make a symbolic link at ``path``, replacing what is there."""
        await self._ask(Type.SYMLINK, path, (Tag.TARGET, _checked(target)), *_owner(user))


def _name(entry: Fields) -> str:
    """Return an entry's name; one that would lead elsewhere is no name of a file."""
    name = text(required(dict(entry), Tag.NAME))
    if name in {"", ".", ".."} or "/" in name or "\0" in name:
        raise TornFrame(f"a listing with the entry {name!r}")
    return name


def _owner(user: str | None) -> list[tuple[int, Value]]:
    return [] if user is None else [(Tag.USER, user)]


def _checked(path: str) -> str:
    if not path or "\0" in path:
        raise InvalidInput(f"{path!r} is no path")
    return path
