"""Image names: one spelling for each, so that a name is compared and stored in one place only.

Must never touch the disk: whether an image is there is the store's business.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from cloche.core.errors import InvalidInput

NAME_BYTES_MAX = 128

# Docker's reference grammar: components of lower-case words, an optional host, an optional tag
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
_HOST = r"(?:[A-Za-z0-9][A-Za-z0-9.-]*\.[A-Za-z0-9.-]+|localhost|[A-Za-z0-9.-]+(?=:[0-9]))(?::[0-9]+)?"
_NAME = re.compile(
    rf"(?:({_HOST})/)?({_COMPONENT}(?:/{_COMPONENT})*)(?::([A-Za-z0-9_][A-Za-z0-9_.-]*))?"
    r"(?:@(sha256:[0-9a-f]{64}))?"
)
_DIGEST = re.compile(r"(?:sha256:)?([0-9a-f]{12,64})")
_DOCKER_HUB = frozenset({"docker.io", "index.docker.io"})

# what Debian calls a release by number and by name; the slim variants differ in what is left out,
# and our bootstrapped base leaves out the same
_DEBIAN_RELEASES = {"12": "bookworm", "13": "trixie"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """A name taken apart, as it was written; what was not written is empty."""

    host: str
    path: str
    tag: str
    digest: str


def parts(name: str) -> Parts:
    """Take a name apart. Raises InvalidInput for what is not a name."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise InvalidInput(
            f"{name!r} is not an image name",
            hint="lower-case words, such as debian:12, team/tool:1.0 or host.example/tool@sha256:…",
        )
    found = Parts(host=match[1] or "", path=match[2], tag=match[3] or "", digest=match[4] or "")
    if len(f"{found.host}/{found.path}:{found.tag}") > NAME_BYTES_MAX:
        raise InvalidInput(f"an image name has at most {NAME_BYTES_MAX} characters: {name!r}")
    return found


def is_docker_hub(host: str) -> bool:
    """Whether this is the registry whose names are mostly written without a host."""
    return host in _DOCKER_HUB


def normalise(name: str) -> str:
    """Return the one spelling of a name: ``debian`` is ``debian:latest``.

    ``localhost/x``, ``docker.io/x`` and ``docker.io/library/x`` are ``x``: what is written without a host
    is looked for here first. Of a name that is pinned to a registry's digest (``x:1@sha256:…``) the tag
    says nothing and goes. Raises InvalidInput for what is not a name.
    """
    found = parts(name)
    host, path = found.host, found.path
    if is_docker_hub(host):
        host, path = "", path.removeprefix("library/")
    elif host == "localhost":
        host = ""
    place = f"{host}/{path}" if host else path
    return f"{place}@{found.digest}" if found.digest else f"{place}:{found.tag or 'latest'}"


def pinned_digest(name: str) -> str | None:
    """Return the registry's digest that a name is pinned to, or None."""
    return parts(name).digest or None


def as_digest(text: str) -> str | None:
    """Return the hexadecimal digits if ``text`` is (the beginning of) an image digest, else None."""
    match = _DIGEST.fullmatch(text)
    if match is None or (not text.startswith("sha256:") and text.isdigit()):
        return None
    return match[1]


def debian_suite(name: str) -> str | None:
    """Return Debian's suite for ``debian:12``, ``debian:trixie-slim`` and the like, else None."""
    repository, _, tag = normalise(name).rpartition(":")
    release = tag.removesuffix("-slim")
    if repository != "debian":
        return None
    suite = _DEBIAN_RELEASES.get(release, release)
    return suite if suite in _DEBIAN_RELEASES.values() else None


def aliases(name: str) -> tuple[str, ...]:
    """Return all the names (this one among them) that mean the same bootstrapped Debian."""
    suite = debian_suite(name)
    if suite is None:
        return (normalise(name),)
    number = next(key for key, value in _DEBIAN_RELEASES.items() if value == suite)
    tags = (number, suite, f"{number}-slim", f"{suite}-slim")
    return tuple(f"debian:{tag}" for tag in tags)


def hint_for(name: str, known: Iterable[str]) -> str:
    """Say what to do about a name that is not there: the nearest ones, or how to make it."""
    names = sorted(one for one in known if not one.startswith("build:"))  # those say nothing to a person
    if debian_suite(name) is not None:
        return f"make it: cloche image bootstrap {name}"
    nearest = difflib.get_close_matches(normalise(name), names, n=3, cutoff=0.5)
    if nearest:
        return f"there is {', '.join(nearest)}"
    there = f"there is {', '.join(names[:3])}; " if names else ""
    return f"{there}make one: cloche image bootstrap debian:12, or cloche image import, build or pull"
