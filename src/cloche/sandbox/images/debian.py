"""Making Debian's base system with mmdebstrap, from the machine's own package sources.

What comes out is recorded as ``bootstrapped`` with its sources: it is like a registry's image of that name,
and must never be passed off as one. The tar is kept in a cache outside of the store, keyed by all that it
was made from, so that making it again is an import.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloche.core.errors import ImageError, InvalidInput
from cloche.sandbox.images import authorities, names, sources
from cloche.sandbox.images.disk import Staging, private_folder, waiting_lock
from cloche.sandbox.images.logs import failure, new_log
from cloche.sandbox.images.store import ImageStore
from cloche.sandbox.images.tools import in_thread, require, run_contained, search_path
from cloche.sandbox.spec import ImageConfig, PreparedImage

RECIPE = 1  # raise it when the commands below change what comes out
CACHED_MAX = 8
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # a private folder is made in it
SHARED_MEMORY_FREE_BYTES = 3 << 30

_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_DPKG_OPTIONS = (
    "force-unsafe-io",
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
    "path-exclude=/usr/share/locale/*",
    "path-include=/usr/share/locale/locale.alias",
)
# mmdebstrap lends the host's name and resolver to the packages' scripts; the image keeps neither
_FORGET_HOST = ': > "$1/etc/resolv.conf"; echo localhost > "$1/etc/hostname"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything that decides what comes out. ``authorities`` are PEM texts."""

    suite: str
    packages: tuple[str, ...]
    source_lines: tuple[str, ...]
    apt_options: tuple[str, ...]
    authorities: tuple[str, ...]
    architecture: str
    tool: str

    @property
    def key(self) -> str:
        """Return 32 hexadecimal digits that change with anything of it."""
        text = json.dumps(
            [RECIPE, _DPKG_OPTIONS, _FORGET_HOST, *(getattr(self, name) for name in self.__slots__)]
        )
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @property
    def config(self) -> ImageConfig:
        """How its processes run: as in Debian's own images, and with the authorities where there are any."""
        trusted = authorities.ENVIRONMENT if self.authorities else {}
        return ImageConfig(env={"PATH": _PATH, **trusted}, cmd=("bash",))

    def details(self) -> dict[str, Any]:
        """Return what the record says."""
        return {
            "suite": self.suite,
            "packages": list(self.packages),
            "sources": list(self.source_lines),
            "apt_options": list(self.apt_options),
            "authorities": [hashlib.sha256(pem.encode()).hexdigest() for pem in self.authorities],
            "architecture": self.architecture,
            "tool": self.tool,
        }


async def bootstrap(
    store: ImageStore,
    release: str,
    packages: Sequence[str] = (),
    *,
    name: str | None = None,
    timeout_s: float = 900.0,
    say: Callable[[str], None] = lambda _: None,
) -> PreparedImage:
    """Make the image of ``release`` (``debian:12``, ``debian:trixie-slim``, …) with ``packages``.

    ``say`` gets one line per step. Raises InvalidInput for an unknown release or package name,
    EnvironmentUnusable without root, mmdebstrap or a mirror, and ImageError with the log's end and path.
    """
    suite = names.debian_suite(release)
    if suite is None:
        raise InvalidInput(f"{release} cannot be bootstrapped", hint="debian:12 and debian:13 can")
    wrong = next((item for item in packages if not _PACKAGE.fullmatch(item)), None)
    if wrong is not None:
        raise InvalidInput(f"{wrong!r} is not the name of a Debian package")
    program = require("mmdebstrap", f"making {release}")
    recipe = await asyncio.to_thread(_recipe, program, suite, tuple(sorted(set(packages))))
    with store.full_disk_is_said():
        store.make_folders()
        async with waiting_lock(store.root / "locks" / f"bootstrap-{recipe.key}"):
            return await _made(store, program, recipe, name or release, timeout_s=timeout_s, say=say)


async def _made(
    store: ImageStore,
    program: str,
    recipe: Recipe,
    name: str,
    *,
    timeout_s: float,
    say: Callable[[str], None],
) -> PreparedImage:
    """Import the cached archive, or make one, import it and cache it."""
    cached = _cache_path(recipe, say)
    if cached is not None and cached.exists():
        say(f"{recipe.suite} was made before with the same sources and packages: {cached}")
        try:
            return await _import(store, cached, name, recipe)
        except InvalidInput as error:
            say(f"the cached archive is damaged and is made again: {error}")
            cached.unlink(missing_ok=True)
    async with store.staging.folder_aside("bootstrap") as work:
        archive = work / "root.tar"
        log = new_log(store.root, "bootstrap")
        await _run(program, recipe, archive, log=log, timeout_s=timeout_s, say=say)
        image = await _import(store, archive, name, recipe)
        if cached is not None:
            await asyncio.to_thread(_keep, archive, cached, say)
        return image


async def _import(store: ImageStore, archive: Path, name: str, recipe: Recipe) -> PreparedImage:
    return await in_thread(
        lambda check: store.import_tar(
            archive,
            name,
            config=recipe.config,
            origin="bootstrapped",
            details=recipe.details(),
            check=check,
        )
    )


def _recipe(program: str, suite: str, packages: tuple[str, ...]) -> Recipe:
    found = sources.debian_sources(sources.read(), suite)
    return Recipe(
        suite=suite,
        packages=packages,
        source_lines=tuple(source.line() for source in found),
        apt_options=tuple(sources.kept_options(_output("apt-config", "dump"))),
        authorities=tuple(authorities.extra()),
        architecture=_output("dpkg", "--print-architecture").strip(),
        tool=_output(program, "--version").strip(),
    )


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=_environment())
    if done.returncode != 0:
        raise ImageError(f"{command[0]} failed: {done.stderr.strip()}")
    return done.stdout


def _environment() -> dict[str, str]:
    return {"PATH": search_path(), "LC_ALL": "C.UTF-8", "HOME": "/root", "DEBIAN_FRONTEND": "noninteractive"}


def cache_dir() -> Path:
    """Return the folder for what is slow to make (``CLOCHE_CACHE_DIR``, default ``/var/cache/cloche``)."""
    return Path(os.environ.get("CLOCHE_CACHE_DIR") or "/var/cache/cloche").absolute()


def _cache_path(recipe: Recipe, say: Callable[[str], None]) -> Path | None:
    try:
        return private_folder(cache_dir() / "bootstrap") / f"{recipe.suite}-{recipe.key}.tar"
    except OSError as error:
        say(f"nothing will be cached: {error}")
        return None


def _keep(archive: Path, cached: Path, say: Callable[[str], None]) -> None:
    """Copy the archive into the cache and drop the oldest others; a full disk there is no failure."""
    temporary = cached.with_suffix(f".{os.getpid()}.part")
    try:
        shutil.copyfile(archive, temporary)
        temporary.replace(cached)
    except OSError as error:
        say(f"not cached: {error}")
    finally:
        temporary.unlink(missing_ok=True)
    others = sorted(cached.parent.glob("*.tar"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in others[CACHED_MAX:]:
        path.unlink(missing_ok=True)


async def _run(
    program: str,
    recipe: Recipe,
    archive: Path,
    *,
    log: Path,
    timeout_s: float,
    say: Callable[[str], None],
) -> None:
    work = archive.parent
    say(f"making {recipe.suite} with mmdebstrap from {len(recipe.source_lines)} sources; log: {log}")
    async with _fast_folder(work) as scratch:
        command = [program, *_arguments(recipe, work), recipe.suite, str(archive), *recipe.source_lines]
        env = {**_environment(), "TMPDIR": str(scratch)}
        try:
            status = await run_contained(command, log=log, env=env, timeout_s=timeout_s)
        except TimeoutError:
            what = f"making {recipe.suite} took longer than {timeout_s:g} s and was ended"
            raise failure(what, log, hint="--timeout allows more time") from None
    if status != 0:
        raise failure(f"making {recipe.suite} failed (mmdebstrap ended with {status})", log)


def _memory_is_enough() -> bool:
    return SHARED_MEMORY.is_dir() and shutil.disk_usage(SHARED_MEMORY).free >= SHARED_MEMORY_FREE_BYTES


@asynccontextmanager
async def _fast_folder(work: Path) -> AsyncIterator[Path]:
    """Yield a scratch folder in memory where there is room: unpacking packages is three times as fast."""
    if not _memory_is_enough():
        (work / "scratch").mkdir()
        yield work / "scratch"
        return
    staging = Staging(SHARED_MEMORY, "cloche-bootstrap-", shared=True)
    async with staging.folder_aside("scratch") as scratch:
        yield scratch


def _arguments(recipe: Recipe, work: Path) -> list[str]:
    arguments = ["--variant=minbase", "--format=tar", "--mode=root"]
    arguments += [f"--architectures={recipe.architecture}"]
    arguments += [f"--dpkgopt={option}" for option in _DPKG_OPTIONS]
    arguments += [f"--aptopt={option}" for option in recipe.apt_options]
    if recipe.packages:
        arguments.append(f"--include={','.join(recipe.packages)}")
    arguments += [f"--customize-hook={hook}" for hook in (*_authority_hooks(recipe, work), _FORGET_HOST)]
    return arguments


def _authority_hooks(recipe: Recipe, work: Path) -> list[str]:
    """Put the authorities where Debian's own package looks for a machine's additions.

    So they stay when ``ca-certificates`` is installed or updated later; until then the bundle is the host's.
    """
    if not recipe.authorities:
        return []
    folder = "usr/local/share/ca-certificates"
    files = []
    for number, pem in enumerate(recipe.authorities, 1):
        path = work / f"cloche-host-{number}.crt"
        path.write_text(pem)
        files.append(str(path))
    bundle = str(authorities.BUNDLE)
    return [
        f'mkdir -p "$1/{folder}" "$1{Path(bundle).parent}"',
        f"copy-in {' '.join(map(shlex.quote, files))} /{folder}",
        'if [ -x "$1/usr/sbin/update-ca-certificates" ]; then chroot "$1" update-ca-certificates; '
        f'else install -m 644 {bundle} "$1{bundle}"; fi',
    ]
