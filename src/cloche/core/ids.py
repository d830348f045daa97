"""Names for things: short, sortable by time, safe in paths, host names and labels.

Must never be used as a secret: an identifier is not a credential.
"""

from __future__ import annotations

import re
import secrets
import time

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32: no i, l, o, u
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


def _base32(value: int, digits: int) -> str:
    text = ""
    for _ in range(digits):
        value, low = divmod(value, 32)
        text = _ALPHABET[low] + text
    return text


def new_id(prefix: str) -> str:
    """Return ``prefix-`` and 16 characters: 9 of milliseconds since 1970 and 7 random (35 bits)."""
    return f"{prefix}-{_base32(time.time_ns() // 1_000_000, 9)}{_base32(secrets.randbits(35), 7)}"


def is_name(text: str) -> bool:
    """Whether ``text`` may name a sandbox: lower-case letters, digits, ``._-``, at most 63 characters."""
    return _NAME.fullmatch(text) is not None
