"""User and password of a registry, from a file like Docker's ``config.json`` that the user named.

Must never show, log or store what it reads, nor start the credential helpers that such a file may name.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloche.core.errors import InvalidInput

FILE_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class Credentials:
    """What one registry wants to see; never part of a text."""

    user: str = field(repr=False)
    password: str = field(repr=False)
    identity_token: str = field(default="", repr=False)

    @property
    def basic(self) -> str:
        """The value of an ``Authorization`` header (RFC 7617)."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


def credentials_for(file: Path | None, host: str, repository: str) -> Credentials | None:
    """Return the credentials for a registry: the entry of the longest path counts, or None.

    Raises InvalidInput naming the file (never its content) if it cannot be read or understood.
    """
    if file is None:
        return None
    entries = _entries(file)
    path = f"{host}/{repository}"
    while path:
        if path in entries:
            return _credentials(entries[path], file)
        path = path.rpartition("/")[0]
    return None


def _entries(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as stream:
            text = stream.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        raise InvalidInput("the file with registry credentials is not there", where=str(file)) from None
    except OSError as error:
        raise InvalidInput(
            f"cannot read the file with registry credentials: {error.strerror}", where=str(file)
        ) from None
    if len(text) > FILE_BYTES_MAX:
        raise InvalidInput("the file with registry credentials is larger than 1 MiB", where=str(file))
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    auths = value.get("auths", {}) if isinstance(value, dict) else None
    if not isinstance(auths, Mapping):
        raise _unusable(file)
    return {_place(key): entry for key, entry in auths.items()}


def _place(key: str) -> str:
    """Return host and path of an entry: Docker also writes ``https://host/v1/``."""
    place = key.removeprefix("https://").removeprefix("http://").rstrip("/")
    return place.removesuffix("/v1").removesuffix("/v2")


def _credentials(entry: Any, file: Path) -> Credentials | None:
    """Read one entry; an empty one (its secret is with a helper) is none."""
    if not isinstance(entry, Mapping):
        raise _unusable(file)
    user, password = entry.get("username") or "", entry.get("password") or ""
    token = entry.get("identitytoken") or ""
    auth = entry.get("auth") or ""
    if not all(isinstance(value, str) for value in (user, password, token, auth)):
        raise _unusable(file)
    if auth:
        try:
            text = base64.b64decode(auth, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            raise _unusable(file) from None
        user, colon, password = text.partition(":")
        if not colon:
            raise _unusable(file)
    return Credentials(user, password, token) if user or token else None


def _unusable(file: Path) -> InvalidInput:
    return InvalidInput(
        "the file with registry credentials is not understood",
        where=str(file),
        hint='like Docker\'s config.json: {"auths": {"host.example": {"auth": "…"}}}',
    )
