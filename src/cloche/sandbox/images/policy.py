"""Which images may be used: by name, and only pinned ones where a run must be repeatable.

Pure. Must never let a name through that it does not understand.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Mapping
from dataclasses import dataclass

from cloche.core.errors import UsageError
from cloche.sandbox.images import names

NOT_ALLOWED = "images/not_allowed"
MUTABLE_TAG = "images/mutable_tag"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePolicy:
    """``allow`` (``CLOCHE_IMAGES_ALLOW``, commas between) are patterns of names; none: every image.

    ``*`` matches slashes too: ``debian:*``, ``host.example/team/*``. A snapshot is allowed where the image is
    that it began from. ``locked`` (``CLOCHE_IMAGES_LOCKED=1``) refuses names that may mean another image
    tomorrow: what is left are digests and ``name@sha256:…``.
    """

    allow: tuple[str, ...] = ()
    locked: bool = False

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> ImagePolicy:
        """Read the variables."""
        patterns = environment.get("CLOCHE_IMAGES_ALLOW", "").split(",")
        return cls(
            allow=tuple(pattern.strip() for pattern in patterns if pattern.strip()),
            locked=environment.get("CLOCHE_IMAGES_LOCKED", "") not in {"", "0"},
        )

    def check_pinned(self, name: str, digest: str | None = None) -> None:
        """Raise UsageError (``images/mutable_tag``) for a tag; ``digest`` is what it means now."""
        if not self.locked or names.as_digest(name) is not None or names.pinned_digest(name) is not None:
            return
        raise UsageError(
            f"image {name} is named by a tag, which may mean another image tomorrow, and images are locked",
            hint=f"name it by its digest: {digest}" if digest else "pin it: NAME@sha256:…",
            code=MUTABLE_TAG,
        )

    def allows(self, name: str) -> bool:
        """Whether a name (in any spelling) matches a pattern. Raises InvalidInput for what is no name."""
        wanted = names.normalise(name)
        repository = wanted.partition("@")[0]
        return not self.allow or any(
            fnmatch.fnmatchcase(one, pattern) for pattern in self.allow for one in (wanted, repository)
        )

    def check_allowed(self, name: str) -> None:
        """Raise UsageError (``images/not_allowed``) for a name that no pattern matches."""
        if not self.allows(name):
            raise UsageError(
                f"image {name} is not one that may be used here",
                hint=f"allowed are: {', '.join(self.allow)}",
                code=NOT_ALLOWED,
            )
