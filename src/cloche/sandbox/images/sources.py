"""The machine's own package sources, and which of them make a plain Debian.

Must never name a mirror: it is always the one that the machine's administrator chose. Formats:
sources.list(5), one line or deb822.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from cloche.core.errors import EnvironmentUnusable

DEBIAN_COMPONENTS = frozenset({"main", "contrib", "non-free", "non-free-firmware"})
_SUITE = re.compile(r"[a-z]+(-updates|-security|/updates)?")
_ONE_LINE = re.compile(r"deb\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)\s*(.*)")
_OPTIONS_KEPT = re.compile(
    r'(Acquire::(?:Check-Valid-Until|Check-Date|https?::Proxy)) "([^"]*)";', re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One suite of one repository. ``signed_by`` is a key ring's path, or empty for the trusted ones."""

    uri: str
    suite: str
    components: tuple[str, ...]
    signed_by: str = ""

    def line(self) -> str:
        """Return it in the one-line format."""
        option = f"[signed-by={self.signed_by}] " if self.signed_by else ""
        return f"deb {option}{self.uri} {self.suite} {' '.join(self.components)}"


def read(etc: Path = Path("/etc/apt")) -> list[Source]:
    """Return every enabled binary source below apt's folder."""
    parts = etc / "sources.list.d"
    lists = [path for path in (etc / "sources.list", *sorted(parts.glob("*.list"))) if path.is_file()]
    found = [source for path in lists for source in parse_lines(path.read_text(errors="replace"))]
    for path in sorted(parts.glob("*.sources")):
        found += parse_deb822(path.read_text(errors="replace"))
    return found


def parse_lines(text: str) -> Iterator[Source]:
    """Yield the sources of a file in the one-line format."""
    for line in text.splitlines():
        match = _ONE_LINE.fullmatch(line.partition("#")[0].strip())
        if match is None:
            continue
        options = dict(item.partition("=")[::2] for item in (match[1] or "").split())
        yield Source(
            uri=match[2],
            suite=match[3],
            components=tuple(match[4].split()),
            signed_by=_key_ring(options.get("signed-by", "")),
        )


def parse_deb822(text: str) -> Iterator[Source]:
    """Yield the sources of a file in the deb822 format."""
    for stanza in re.split(r"\n\s*\n", "\n".join(_without_comments(text))):
        fields = _fields(stanza)
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() == "no":
            continue
        for uri in fields.get("uris", "").split():
            for suite in fields.get("suites", "").split():
                yield Source(
                    uri=uri,
                    suite=suite,
                    components=tuple(fields.get("components", "").split()),
                    signed_by=_key_ring(fields.get("signed-by", "")),
                )


def _without_comments(text: str) -> Iterable[str]:
    return (line for line in text.splitlines() if not line.startswith("#"))


def _fields(stanza: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    key = ""
    for line in stanza.splitlines():
        if line[:1].isspace():
            fields[key] = f"{fields.get(key, '')} {line.strip()}"
        elif ":" in line:
            key, _, value = line.partition(":")
            key = key.strip().lower()
            fields[key] = value.strip()
    return fields


def _key_ring(value: str) -> str:
    """Return a key ring's path; a key that stands in the file itself is left to the trusted ones."""
    words = value.split(",", maxsplit=1)[0].split()
    return words[0] if len(words) == 1 and words[0].startswith("/") else ""


def debian_sources(sources: Iterable[Source], suite: str) -> list[Source]:
    """Return what makes a plain Debian of this suite: the release, its updates, its security updates.

    The mirrors are those of the machine's own release. Backports, other suites and other people's
    repositories are left out. Raises EnvironmentUnusable if nothing is left.
    """
    found: list[Source] = []
    for source in sources:
        match = _SUITE.fullmatch(source.suite)
        components = tuple(item for item in source.components if item in DEBIAN_COMPONENTS)
        if match is None or "main" not in components or not _is_debian(source):
            continue
        fitting = replace(source, suite=suite + (match[1] or ""), components=components)
        if fitting not in found:
            found.append(fitting)
    if not any(source.suite == suite for source in found):
        raise EnvironmentUnusable(
            f"this machine's package sources have no Debian mirror for {suite}",
            hint="add one below /etc/apt, or import a root file system with `cloche image import`",
        )
    return found


def _is_debian(source: Source) -> bool:
    """Whether it is one of Debian's own: signed by Debian's archive keys, or trusted and called so.

    A mirror with a password in its address is left out, since the address becomes part of the image.
    """
    place = urlsplit(source.uri)
    if place.username is not None:
        return False
    if source.signed_by:
        return Path(source.signed_by).name.startswith("debian-archive")
    return "debian" in place.path.lower()


def kept_options(dump: str) -> list[str]:
    """Return from the output of ``apt-config dump`` what reaching the mirrors may depend on.

    These are the checks of dates (a mirror may be a snapshot) and proxies, but none with a password.
    """
    found = _OPTIONS_KEPT.findall(dump)
    return [f'{key} "{value}";' for key, value in found if value and "@" not in value]
