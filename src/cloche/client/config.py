"""The configuration: ``cloche.toml`` < the user's file < ``CLOCHE_*`` < a flag; docs/configuration.md.

Must never take a key from a file that lies beside code, send one to an address that such a file names, nor
show one.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from cloche.client.contexts import Context, Contexts, config_dir
from cloche.client.target import Service, checked_host
from cloche.core.errors import InvalidInput

PROJECT_FILE = "cloche.toml"
USER_FILE = "config.toml"
DRIVERS = ("local", "service")
SECRETS = frozenset({"key"})


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SandboxPart(_Part):
    """``[sandbox]``: what ``cloche sandbox create`` takes where no flag says otherwise."""

    cpus: float | None = Field(default=None, gt=0)
    memory: int | str | None = None
    pids: int = Field(default=4096, ge=1)
    network: Literal["none", "allowlist", "public"] = "none"
    ttl_s: float | None = Field(default=3600.0, ge=0)
    isolation: str | None = None


class RunPart(_Part):
    """``[run]``: what ``cloche run`` takes where no flag says otherwise."""

    concurrency: int | None = Field(default=None, ge=1)
    retries: int = Field(default=5, ge=0)


class Config(_Part):
    """All settings. ``url`` or ``context`` names a service; without, sandboxes are made by this process."""

    url: str | None = None
    context: str | None = None
    key: SecretStr | None = None
    allow_plain_http: bool = False
    driver: str | None = None
    sandbox: SandboxPart = SandboxPart()
    run: RunPart = RunPart()


@dataclass(frozen=True, slots=True)
class Setting:
    """One value that was said: how strong its source is (0 is the weakest) and how people call that."""

    value: Any
    rank: int
    source: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """The configuration, and who said what: ``said`` has every key that was not left at its default."""

    config: Config
    said: Mapping[str, Setting]
    contexts: Contexts

    def service(self) -> Service:
        """Return the service to use. Raises InvalidInput for an unknown context, or a key that may not go."""
        name, url = self.said.get("context"), self.said.get("url")
        key = self.config.key.get_secret_value() if self.config.key else None
        if name and url and name.rank == url.rank:
            raise InvalidInput(f"{url.source} names both a url and a context", hint="say one of the two")
        chosen = max((item for item in (name, url) if item), key=lambda item: item.rank, default=None)
        current = self.contexts.current()
        if current is not None and (chosen is None or chosen.rank == 0):
            return self._of(current, key)
        if chosen is None:
            return Service()
        if chosen is name:
            return self._of(self.contexts.get(str(chosen.value)), key)
        if key and chosen.rank == 0:
            raise InvalidInput(
                "the service's address stands in a file beside code, and gets no key",
                hint="name the address by CLOCHE_URL, or with cloche context add",
                where=chosen.source,
            )
        return self._made(str(chosen.value), key)

    def driver(self) -> str:
        """Return the name of the driver to use. Raises InvalidInput for none, or one without its service."""
        named = self.service().url is not None
        driver = self.config.driver or ("service" if named else "local")
        if driver not in DRIVERS:
            raise InvalidInput(f"there is no driver {driver}", hint=f"one of {', '.join(DRIVERS)}")
        if driver == "service" and not named:
            raise InvalidInput(
                "the driver is `service`, and no service is named", hint="CLOCHE_URL, or cloche context use"
            )
        return driver

    def _of(self, context: Context, key: str | None) -> Service:
        return self._made(context.url, key or context.key)

    def _made(self, url: str, key: str | None) -> Service:
        return Service(url=url, key=key, allow_plain_http=self.config.allow_plain_http)


def load(
    flags: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Loaded:
    """Read and check everything. Raises InvalidInput that names the file, the line and the nearest key.

    ``flags`` maps dotted keys to values; ``None`` there is a flag that was not given.
    """
    environ = os.environ if environ is None else environ
    said: dict[str, Setting] = {}
    project = find_project(folder or Path.cwd())
    if project is not None:
        said |= {key: Setting(value, 0, where) for key, value, where in _file(project)}
    user = config_dir(environ) / USER_FILE
    if user.is_file():
        said |= {key: Setting(value, 1, where) for key, value, where in _file(user)}
    for key in keys():
        variable = variable_of(key)
        if environ.get(variable):
            said[key] = Setting(environ[variable], 2, variable)
    for key, value in (flags or {}).items():
        if value is not None:
            said[key] = Setting(value, 3, "--" + key.rpartition(".")[2].replace("_", "-"))
    return Loaded(_checked(said), said, Contexts(config_dir(environ)))


def find_project(folder: Path) -> Path | None:
    """Return the nearest ``cloche.toml`` in a folder or above it."""
    return next((path for up in (folder, *folder.parents) if (path := up / PROJECT_FILE).is_file()), None)


def keys(model: type[BaseModel] = Config, prefix: str = "") -> Iterator[str]:
    """Yield every dotted key."""
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from keys(kind, f"{prefix}{name}.")
        else:
            yield prefix + name


def variable_of(key: str) -> str:
    """Return the environment variable of a key."""
    return "CLOCHE_" + key.upper().replace(".", "_")


def _file(path: Path) -> Iterator[tuple[str, Any, str]]:
    """Yield (key, value, file:line). Raises InvalidInput for unknown keys, and for secrets."""
    try:
        text = path.read_text(encoding="utf-8")
        values = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise InvalidInput(f"{path.name} cannot be read: {error}", where=str(path)) from error
    known = set(keys())
    for key, value in _flat(values):
        where = f"{path}:{line_of(text, key)}"
        if key.rpartition(".")[2] in SECRETS:
            raise InvalidInput(
                f"a key does not belong into {path.name}",
                hint="take it out, make a new one, and give it as CLOCHE_KEY or with cloche context add",
                where=where,
            )
        if key not in known:
            near = difflib.get_close_matches(key, known - SECRETS, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else "docs/configuration.md has all keys"
            raise InvalidInput(f"there is no setting {key}", hint=hint, where=where)
        yield key, value, where


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def line_of(text: str, key: str) -> int:
    """Return the line on which a dotted key stands, as far as it can be told; else 1."""
    table, _, name = key.rpartition(".")
    here = ""
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        if bare.startswith("["):
            here = bare.strip("[] ")
        left = bare.partition("=")[0].strip().strip("\"'")
        if "=" in bare and (here, left) in {(table, name), ("", key)}:
            return number
    return 1


def _checked(said: Mapping[str, Setting]) -> Config:
    tree: dict[str, Any] = {}
    for key, setting in said.items():
        table, _, name = key.rpartition(".")
        (tree.setdefault(table, {}) if table else tree)[name] = setting.value
    try:
        config = Config.model_validate(tree)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        key = ".".join(str(part) for part in first["loc"][:2])
        source = said[key].source if key in said else None
        raise InvalidInput(f"{key}: {first['msg']}", where=source) from error
    if config.url is not None:
        checked_host(config.url)
    return config
