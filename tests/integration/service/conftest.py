"""A service over real sandboxes."""

from collections.abc import AsyncIterator, Callable

import pytest

from cloche.sandbox.drivers.local import LocalDriver
from cloche.sandbox.images.resolve import StoreResolver
from cloche.sandbox.settings import Settings
from cloche.service.pending import Pending
from cloche.service.service import SandboxService
from cloche.service.settings import ServiceSettings
from cloche.testing.experiments import installation
from cloche.testing.sandboxes import busybox_image, driver, nothing_is_left, settings

__all__ = ["busybox_image", "driver", "installation", "nothing_is_left", "settings"]

MakeService = Callable[..., SandboxService]


@pytest.fixture
def make_service(settings: Settings, installation: object) -> MakeService:
    """Return a function that makes one more service over the same run directory."""

    def make(**bounds: object) -> SandboxService:
        chosen = ServiceSettings(**{"poll_s": 0.05, "list_s": 0.2, **bounds})  # type: ignore[arg-type]  # whole where it must
        return SandboxService(
            LocalDriver(settings), StoreResolver(settings), chosen, pending=Pending(settings.run_dir)
        )

    return make


@pytest.fixture
async def service(make_service: MakeService) -> AsyncIterator[SandboxService]:
    """A started service whose sandboxes are gone after the test."""
    async with make_service() as made:
        yield made
        page = await made.list()
        await made.delete_many([view.id for view in page.items])
