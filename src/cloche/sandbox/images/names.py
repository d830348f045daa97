"""Image names: one spelling for each, so that a name is compared and stored in one place only.

Must never touch the disk: whether an image is there is the store's business.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from cloche.core.errors import InvalidInput

NAME_BYTES_MAX = 128

# Docker's reference grammar: components of lower-case words, an optional host, an optional tag
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
_HOST = r"(?:[A-Za-z0-9][A-Za-z0-9.-]*\.[A-Za-z0-9.-]+|localhost|[A-Za-z0-9.-]+(?=:[0-9]))(?::[0-9]+)?"
_NAME = re.compile(rf"(?:({_HOST})/)?({_COMPONENT}(?:/{_COMPONENT})*)(?::([A-Za-z0-9_][A-Za-z0-9_.-]*))?")
_DIGEST = re.compile(r"(?:sha256:)?([0-9a-f]{12,64})")
_DOCKER_HUB = frozenset({"docker.io", "index.docker.io"})

# what Debian calls a release by number and by name; the slim variants differ in what is left out,
# and our bootstrapped base leaves out the same
_DEBIAN_RELEASES = {"12": "bookworm", "13": "trixie"}


def normalise(name: str) -> str:
    """Return the one spelling of a name: ``debian`` is ``debian:latest``.

    ``localhost/x``, ``docker.io/x`` and ``docker.io/library/x`` are ``x``: all images of the store are
    local, so where others keep theirs says nothing. Raises InvalidInput for what is not a name, and for
    a name pinned to a registry's digest (``x@sha256:…``), which nothing here can check.
    """
    if "@" in name:
        raise InvalidInput(
            f"image name {name!r} is pinned to a registry's digest, and there is no registry here",
            hint="use a name with a tag, or the digest that `cloche image ls` shows",
        )
    match = _NAME.fullmatch(name)
    if match is None:
        raise InvalidInput(
            f"{name!r} is not an image name",
            hint="lower-case words, such as debian:12 or team/tool:1.0",
        )
    host, path, tag = match[1] or "", match[2], match[3] or "latest"
    if host in _DOCKER_HUB:
        host, path = "", path.removeprefix("library/")
    elif host == "localhost":
        host = ""
    result = f"{host}/{path}:{tag}" if host else f"{path}:{tag}"
    if len(result) > NAME_BYTES_MAX:
        raise InvalidInput(f"an image name has at most {NAME_BYTES_MAX} characters: {name!r}")
    return result


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
    names = sorted(known)
    if debian_suite(name) is not None:
        return f"make it: cloche image bootstrap {name}"
    nearest = difflib.get_close_matches(normalise(name), names, n=3, cutoff=0.5)
    if nearest:
        return f"there is {', '.join(nearest)}"
    there = f"there is {', '.join(names[:3])}; " if names else ""
    return f"{there}make one: cloche image bootstrap debian:12, cloche image import, cloche image build"
