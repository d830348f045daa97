"""What a service asks for images: any name that a create may carry, to an image that is ready.

    debian:12, host.example/team/tool:1     a name, pulled where it is not here and names a registry
    sha256:…, the first 12 digits of it     an image's own digest
    snapshot/…                              what was made from a sandbox
    build:/folder                           the Dockerfile of a folder, below one of ``build_roots`` only

Must never build, nor read, outside of the folders that its operator allows: a build runs as root.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from cloche.core.errors import UsageError
from cloche.sandbox.images.builds import build
from cloche.sandbox.images.ensure import ensure_image
from cloche.sandbox.images.policy import NOT_ALLOWED, ImagePolicy
from cloche.sandbox.images.store import ImageStore
from cloche.sandbox.settings import Settings
from cloche.sandbox.spec import PreparedImage

BUILD = "build:/"
"""How the name of a build begins; what follows the colon is the absolute path of its context."""


class StoreResolver:
    """Resolves over one installation's store, by a policy (default: that of the environment)."""

    def __init__(
        self,
        store: ImageStore | Settings,
        policy: ImagePolicy | None = None,
        *,
        build_roots: Sequence[Path] = (),
    ) -> None:
        self.store = store if isinstance(store, ImageStore) else ImageStore(store)
        self.policy = policy or ImagePolicy.from_environment()
        self._build_roots = tuple(build_roots)

    async def resolve(self, name: str) -> PreparedImage:
        """Return the image, pulled or built first if need be; its digest is what the record should hold.

        Raises NotFound, InvalidInput, UsageError (``images/not_allowed``, ``images/mutable_tag``), and as
        ``registry.pull`` and ``builds.build`` do.
        """
        if name.startswith(BUILD):
            return await build(self.store, await asyncio.to_thread(self._context, name), policy=self.policy)
        return await ensure_image(self.store, name, policy=self.policy)

    def _context(self, name: str) -> Path:
        context = Path(name.removeprefix("build:")).resolve()
        roots = [root.resolve() for root in self._build_roots]
        if not any(context.is_relative_to(root) for root in roots):
            raise UsageError(
                f"{context} may not be built here",
                hint=f"allowed are folders below {', '.join(map(str, roots))}" if roots else "no folder may",
                code=NOT_ALLOWED,
            )
        return context
