"""Named lists that the host knows. ``packages``: the servers that its own apt, pip and npm are set to use.

Read from files and the environment, nothing is known beforehand: a tool without a setting adds nothing. Must
never run a program.
"""

from __future__ import annotations

import configparser
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from cloche.core.errors import InvalidInput

NAMES = ("packages",)
_PORTS = {"http": 80, "https": 443}
_APT_URL = re.compile(r"\bhttps?://[^\s\"';]+")
_NPM_LINE = re.compile(r"^\s*(?:@[^:\s]+:)?registry\s*=\s*(\S+)", re.MULTILINE)
_PIP_KEYS = ("index-url", "extra-index-url", "find-links", "proxy")
_PIP_VARIABLES = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS")
_NPM_VARIABLES = ("npm_config_registry", "NPM_CONFIG_REGISTRY")


def spelled_out(
    allow: Iterable[str],
    presets: Iterable[str],
    *,
    root: Path = Path("/"),
    environ: Mapping[str, str] | None = None,
) -> tuple[str, ...]:
    """Return an allow list with the entries of its presets.

    Raises InvalidInput for a preset that nobody knows, and for one that is empty on this machine.
    """
    entries = list(allow)
    for name in presets:
        if name not in NAMES:
            raise InvalidInput(f"there is no network preset `{name}`", hint=f"one of {', '.join(NAMES)}")
        found = packages(root, os.environ if environ is None else environ)
        if not found:
            raise InvalidInput(
                "the network preset `packages` is empty: this machine sets no server for apt, pip or npm",
                hint="name the hosts in the allow list",
            )
        entries += found
    return tuple(dict.fromkeys(entries))


def packages(root: Path, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return ``host:port`` of every server that apt, pip and npm of a machine are set to use."""
    home = root / environ.get("HOME", "/root").lstrip("/")
    urls = [*_apt(root), *_pip(root, home, environ), *_npm(root, home, environ)]
    return tuple(sorted({entry for url in urls if (entry := _entry(url))}))


def _entry(url: str) -> str:
    """Return ``host:port`` of a URL, empty for one that names no server."""
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return ""
    return f"{parts.hostname}:{port}" if parts.hostname and port and ":" not in parts.hostname else ""


def _apt(root: Path) -> Iterator[str]:
    folder = root / "etc/apt"
    for path in [folder / "sources.list", *_files(folder / "sources.list.d", (".list", ".sources"))]:
        lines = [line for line in _text(path).splitlines() if not line.lstrip().startswith("#")]
        yield from _APT_URL.findall("\n".join(lines))
    for path in [folder / "apt.conf", *_files(folder / "apt.conf.d", ("",))]:
        lines = [line for line in _text(path).splitlines() if "proxy" in line.lower()]
        yield from _APT_URL.findall(
            "\n".join(line for line in lines if not line.lstrip().startswith(("#", "//")))
        )


def _pip(root: Path, home: Path, environ: Mapping[str, str]) -> Iterator[str]:
    paths = [root / "etc/pip.conf", home / ".pip/pip.conf", home / ".config/pip/pip.conf"]
    if environ.get("PIP_CONFIG_FILE"):
        paths.append(root / environ["PIP_CONFIG_FILE"].lstrip("/"))
    for path in paths:
        parser = configparser.RawConfigParser(strict=False)
        try:
            parser.read_string(_text(path))
        except configparser.Error:
            continue  # pip would not read it either
        for section in parser.sections():
            for key in _PIP_KEYS:
                yield from parser.get(section, key, fallback="").split()
    for name in _PIP_VARIABLES:
        yield from environ.get(name, "").split()


def _npm(root: Path, home: Path, environ: Mapping[str, str]) -> Iterator[str]:
    for path in (root / "etc/npmrc", root / "usr/etc/npmrc", root / "usr/local/etc/npmrc", home / ".npmrc"):
        yield from _NPM_LINE.findall(_text(path))
    for name in _NPM_VARIABLES:
        yield from environ.get(name, "").split()


def _files(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    return sorted(path for path in folder.glob("*") if path.name.endswith(suffixes))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
