"""API keys at rest: who they belong to, what they may do, until when; of the key itself only a hash.

A key is 256 random bits, so one pass of a keyed hash is enough: there is nothing to guess. The file is read
again when it has changed, so that a revoked key ends at once. Must never write, log or return a key but once,
to the one who made it.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from cloche.core.errors import EnvironmentUnusable, InvalidInput, NotFound
from cloche.server.secrets import check_private
from cloche.service.caller import Caller, Quota, Scope

PREFIX = "clk"


class Key(BaseModel):
    """A key without the key. Times are seconds since 1970."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    owner: str
    salt: str
    hash: str
    scopes: frozenset[Scope]
    quota: Quota = Quota()
    created_at: float
    expires_at: float | None = None
    note: str = ""

    def is_over(self, now: float) -> bool:
        """Whether its time has run out."""
        return self.expires_at is not None and now >= self.expires_at

    def caller(self, sandbox: str | None = None) -> Caller:
        """Return whom a request with this key comes from; ``sandbox`` bounds it to one."""
        scopes = self.scopes - {Scope.ADMIN} if sandbox else self.scopes
        return Caller(owner=self.owner, key=self.id, scopes=scopes, quota=self.quota, sandbox=sandbox)


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    version: int = 1
    keys: list[Key] = []


def _digest(secret: str, salt: str) -> str:
    return hashlib.blake2b(secret.encode(), key=bytes.fromhex(salt), digest_size=32).hexdigest()


class Keyring:
    """The keys of one file, which need not exist: then there are none."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: tuple[int, int, int] | None = None
        self._keys: dict[str, Key] = {}

    def _load(self) -> dict[str, Key]:
        try:
            state = self.path.stat()
        except FileNotFoundError:
            self._seen, self._keys = None, {}
            return self._keys
        mark = (state.st_mtime_ns, state.st_ino, state.st_size)
        if mark != self._seen:
            check_private(self.path)
            try:
                self._keys = {key.id: key for key in _File.model_validate_json(self.path.read_bytes()).keys}
            except ValidationError as error:
                raise EnvironmentUnusable(f"{self.path} is no file of keys", hint="cloche key ls") from error
            self._seen = mark
        return self._keys

    def __len__(self) -> int:
        return len(self._load())

    def all(self) -> list[Key]:
        """Return the keys, the oldest first."""
        return sorted(self._load().values(), key=lambda key: key.created_at)

    def get(self, key_id: str, now: float) -> Key | None:
        """Return a key that may be used now, or None."""
        key = self._load().get(key_id)
        return None if key is None or key.is_over(now) else key

    def find(self, token: str, now: float) -> Key | None:
        """Return whose key this is, or None: unknown, revoked, run out, and garbage look the same."""
        prefix, _, rest = token.partition("_")
        key_id, _, secret = rest.partition("_")
        key = self._load().get(key_id)
        salt, expected = (key.salt, key.hash) if key is not None else ("00" * 16, "00" * 32)
        same = hmac.compare_digest(_digest(secret, salt), expected)
        return key if key is not None and same and prefix == PREFIX and not key.is_over(now) else None

    @contextmanager
    def _changing(self) -> Iterator[dict[str, Key]]:
        """Hold the lock, yield the keys, and write what they are then."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(
            self.path.with_name(f".{self.path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            keys = dict(self._load())
            yield keys
            fresh = self.path.with_name(f".{self.path.name}.{os.getpid()}")
            fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "w") as out:
                out.write(_File(keys=list(keys.values())).model_dump_json(indent=1) + "\n")
                out.flush()
                os.fsync(out.fileno())
            fresh.replace(self.path)
        finally:
            os.close(lock)

    def create(
        self,
        owner: str,
        *,
        scopes: frozenset[Scope],
        quota: Quota = Quota(),  # noqa: B008  # frozen data
        expires_at: float | None = None,
        note: str = "",
    ) -> tuple[str, Key]:
        """Make a key; returns it, which nobody can do again, and what is kept of it."""
        if not owner or len(owner) > 63 or not owner.isprintable():
            raise InvalidInput(f"an owner is named in 1 to 63 printable characters: {owner!r}")
        key_id, salt, secret = secrets.token_hex(5), secrets.token_hex(16), secrets.token_urlsafe(32)
        key = Key(
            id=key_id,
            owner=owner,
            salt=salt,
            hash=_digest(secret, salt),
            scopes=scopes,
            quota=quota,
            created_at=time.time(),
            expires_at=expires_at,
            note=note,
        )
        with self._changing() as keys:
            keys[key_id] = key
        return f"{PREFIX}_{key_id}_{secret}", key

    def revoke(self, key_id: str) -> Key:
        """End a key, and with it every token made with it. Raises NotFound."""
        with self._changing() as keys:
            if key_id not in keys:
                raise NotFound(f"there is no key {key_id}", hint="cloche key ls")
            return keys.pop(key_id)
