"""Where the members of an archive or a patch may go inside a sandbox: below one folder, through no link.

What is inside belongs to the workload, which may change it at any moment: these checks keep an archive from
writing elsewhere than its sender sees; they protect nothing on the host, where nothing is written at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloche.core.errors import InvalidInput, NotFound
from cloche.sandbox.guest.records import FileKind

if TYPE_CHECKING:
    from cloche.sandbox.handle import Sandbox

DEPTH_MAX = 200
COMPONENT_BYTES_MAX = 255


def relative(path: str, what: str) -> tuple[str, ...]:
    """Return the components of a relative path. Raises InvalidInput, naming ``what`` it belongs to."""
    if path.startswith("/"):
        raise InvalidInput(f"{what!r} has an absolute path; paths are relative to the folder")
    if "\0" in path:
        raise InvalidInput(f"{what!r} has a NUL in its path")
    parts = tuple(part for part in path.split("/") if part not in {"", "."})
    if ".." in parts:
        raise InvalidInput(f"{what!r} leads out of the folder with '..'")
    if len(parts) > DEPTH_MAX or any(
        len(part.encode("utf-8", "surrogateescape")) > COMPONENT_BYTES_MAX for part in parts
    ):
        raise InvalidInput(f"{what[:200]!r} is too long or too deep a path")
    return parts


def folder(path: str) -> str:
    """Return an absolute folder in one spelling, ``""`` for ``/``. Raises InvalidInput for another path."""
    parts = [part for part in path.split("/") if part not in {"", "."}]
    if not path.startswith("/") or ".." in parts or "\0" in path:
        raise InvalidInput(f"{path!r} is not the absolute path of a folder")
    return "".join(f"/{part}" for part in parts)


class Parents:
    """Folders below ``base`` that were seen to be folders, not links."""

    def __init__(self, sandbox: Sandbox, base: str) -> None:
        self._sandbox = sandbox
        self._base = base
        self._seen: set[tuple[str, ...]] = {()}

    async def check(self, parts: tuple[str, ...], what: str) -> None:
        """Raise InvalidInput if a folder above ``parts`` is a link or no folder; it may be missing."""
        for depth in range(1, len(parts)):
            above = parts[:depth]
            if above in self._seen:
                continue
            try:
                info = await self._sandbox.stat(f"{self._base}/{'/'.join(above)}", follow=False)
            except NotFound:
                return
            if info.kind is FileKind.SYMLINK:
                raise InvalidInput(f"{what!r} goes through the link {'/'.join(above)!r}")
            if not info.is_folder:
                raise InvalidInput(f"{what!r} goes through {'/'.join(above)!r}, which is not a folder")
            self._seen.add(above)

    def forget(self, parts: tuple[str, ...]) -> None:
        """A link was put at ``parts``: what was known of it and below is not true any more."""
        self._seen = {seen for seen in self._seen if seen[: len(parts)] != parts}
