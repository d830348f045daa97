"""What the spawner's refusals mean to people. Must never lose what the spawner said."""

from __future__ import annotations

import errno
from collections.abc import Callable

from cloche.core.errors import (
    ClocheError,
    EnvironmentUnusable,
    ImageError,
    InfraError,
    InvalidInput,
    NotFound,
)
from cloche.sandbox.guest.frames import Fields
from cloche.sandbox.native.wire import Tag

_HOST_CODES = {
    errno.EMFILE: "infra/no_descriptors",
    errno.ENFILE: "infra/no_descriptors",
    errno.ENOMEM: "infra/host_memory",
}
_NAMESPACE_ERRNOS = {errno.ENOSPC, errno.EUSERS, errno.EPERM, errno.ENOSYS, errno.EINVAL}


def refusal(fields: Fields) -> ClocheError:
    """Return the error that an ERROR answer stands for."""
    values = dict(fields)
    code = values.get(Tag.CODE, b"").decode("utf-8", "replace")
    message = values.get(Tag.MESSAGE, b"").decode("utf-8", "replace")
    number = int.from_bytes(values.get(Tag.ERRNO, b""), "little")
    return _of(code, message, number)


def _of(code: str, message: str, number: int) -> ClocheError:
    if message.startswith("make the sandbox's namespaces") and number in _NAMESPACE_ERRNOS:
        return EnvironmentUnusable(message, hint="cloche doctor says how many user namespaces are allowed")
    if code == "host_limit":
        return InfraError(message, code=_HOST_CODES.get(number, "infra/capacity"))
    make = _KINDS.get(code)
    return InfraError(message, code="infra/sandbox_start") if make is None else make(message)


_KINDS: dict[str, Callable[[str], ClocheError]] = {
    "exists": lambda text: InvalidInput(text, hint="choose another name, or: cloche sandbox rm"),
    "disk_full": lambda text: InfraError(
        f"the disk of the state folder is full ({text})",
        hint="free space below CLOCHE_STATE_DIR: cloche image ls, cloche sandbox reap",
        code="infra/disk_full",
    ),
    "no_layer": lambda text: ImageError(text, hint="import or build the image again"),
    "unsupported": lambda text: EnvironmentUnusable(text, hint="cloche doctor shows what is missing"),
    "no_nft": lambda _: EnvironmentUnusable(
        "public networks need nft, which is not installed", hint="apt-get install nftables"
    ),
    "network": lambda text: InfraError(
        text, code="infra/sandbox_start", hint="see network.log in CLOCHE_RUN_DIR"
    ),
    "version": lambda text: EnvironmentUnusable(
        text, hint="sandboxes of another version of cloche are alive: delete them first"
    ),
    "bad_volume": InvalidInput,
    "no_sandbox": NotFound,
    "bad_request": lambda text: InfraError(text, code="infra/internal"),
}
