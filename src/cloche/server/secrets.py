"""The service's own secret, and what is signed with it: links to ports, tokens for one sandbox.

What is signed is read by nobody but the service, and stands for itself: nothing of it is kept. Must never
compare a signature but in constant time, nor log a signed text.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import os
import secrets
from pathlib import Path
from typing import Any

from cloche.core.errors import EnvironmentUnusable

SECRET_BYTES = 32
_SIGNATURE_BYTES = 18


def read_or_make_secret(path: Path) -> bytes:
    """Return the secret in this file, made once for everyone who asks; its mode is 0600.

    Raises EnvironmentUnusable when somebody else may read it, or when it is damaged.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        fresh = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, secrets.token_bytes(SECRET_BYTES))
        finally:
            os.close(fd)
        try:
            os.link(fresh, path)  # the first one wins, whole
        except FileExistsError:
            pass  # another service of this installation was first
        finally:
            fresh.unlink()
        check_private(path)
        data = path.read_bytes()
    except OSError as error:
        raise EnvironmentUnusable(f"{path} cannot be used: {error.strerror}") from error
    if len(data) != SECRET_BYTES:
        raise EnvironmentUnusable(f"{path} is damaged", hint="remove it: links and tokens made so far end")
    return data


def check_private(path: Path) -> None:
    """Raise EnvironmentUnusable when others than the owner may read or write the file."""
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        raise EnvironmentUnusable(f"{path} may be read by others (mode {mode:o})", hint=f"chmod 600 {path}")


class Signer:
    """Signs small JSON objects for one purpose; what is signed for one is nothing for another."""

    def __init__(self, secret: bytes, purpose: str) -> None:
        self._key = hmac.digest(secret, f"cloche/{purpose}/1".encode(), "sha256")

    def _mac(self, payload: str) -> str:
        digest = hmac.digest(self._key, payload.encode(), "sha256")
        return _text(digest[:_SIGNATURE_BYTES])

    def sign(self, value: dict[str, Any]) -> str:
        """Return the value and its signature, of letters that may stand in a URL."""
        payload = _text(json.dumps(value, separators=(",", ":")).encode())
        return f"{payload}.{self._mac(payload)}"

    def read(self, text: str) -> dict[str, Any] | None:
        """Return what was signed, or None for what this service did not sign for this purpose."""
        payload, dot, mac = text.partition(".")
        if not dot or not text.isascii() or not hmac.compare_digest(mac, self._mac(payload)):
            return None
        try:
            value: dict[str, Any] = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        except (ValueError, binascii.Error):
            return None
        return value


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
