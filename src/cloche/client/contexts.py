"""Services by name, with their keys, in a file that only its owner may read. Must never show a key."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cloche.client.target import Service
from cloche.core.errors import InvalidInput, NotFound
from cloche.core.ids import is_name

FILE = "contexts.json"


class Context(BaseModel):
    """A service's address and key."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str
    key: str | None = Field(default=None, repr=False)


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    current: str | None = None
    contexts: dict[str, Context] = {}


def config_dir(environ: Mapping[str, str]) -> Path:
    """Return the folder of the user's own settings."""
    base = environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path(environ.get("HOME") or "/root") / ".config") / "cloche"


class Contexts:
    """The file, read anew at each call."""

    def __init__(self, folder: Path) -> None:
        """Touch nothing yet."""
        self.path = folder / FILE

    def _read(self) -> _File:
        try:
            with self.path.open(encoding="utf-8") as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                text = file.read()
        except FileNotFoundError:
            return _File()
        if mode & 0o077:
            raise InvalidInput(
                f"{self.path} can be read by others, and holds keys", hint=f"chmod 600 {self.path}"
            )
        try:
            return _File.model_validate_json(text)
        except ValidationError as error:
            raise InvalidInput(f"{self.path} is not what cloche wrote", where=str(self.path)) from error

    def _write(self, content: _File) -> None:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial = self.path.with_name(f".{FILE}.{os.getpid()}")
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            dumped: dict[str, Any] = content.model_dump(exclude_none=True)
            json.dump(dumped, file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(self.path)

    def all(self) -> dict[str, Context]:
        """Return every context by its name."""
        return self._read().contexts

    def current_name(self) -> str | None:
        """Return the name of the one in use."""
        return self._read().current

    def current(self) -> Context | None:
        """Return the one in use, if one is."""
        content = self._read()
        return None if content.current is None else self.get(content.current)

    def get(self, name: str) -> Context:
        """Return a context. Raises NotFound."""
        found = self._read().contexts
        if name not in found:
            raise NotFound(f"there is no context {name}", hint="cloche context ls")
        return found[name]

    def add(self, name: str, context: Context) -> None:
        """Keep a context, in place of one of the same name. Raises InvalidInput."""
        if not is_name(name):
            raise InvalidInput(f"{name!r} is no name", hint="lower-case letters, digits and ._-")
        Service(url=context.url, key=context.key, allow_plain_http=True)  # raises for what is no address
        content = self._read()
        content.contexts[name] = context
        self._write(content)

    def use(self, name: str | None) -> None:
        """Make a context the one in use; ``None``: none. Raises NotFound."""
        content = self._read()
        if name is not None:
            self.get(name)
        content.current = name
        self._write(content)

    def remove(self, name: str) -> None:
        """Forget a context and its key. Raises NotFound."""
        self.get(name)
        content = self._read()
        del content.contexts[name]
        if content.current == name:
            content.current = None
        self._write(content)
