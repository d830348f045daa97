"""Real sandboxes, embedded or behind a way that a test can cut."""

import pytest

from cloche.sandbox.settings import Settings
from cloche.testing.experiments import installation
from cloche.testing.sandboxes import busybox_image, driver, nothing_is_left, settings

__all__ = ["busybox_image", "driver", "here", "installation", "nothing_is_left", "settings"]


@pytest.fixture
def here(settings: Settings, installation: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the session's installation what an unconfigured program uses."""
    monkeypatch.setenv("CLOCHE_STATE_DIR", str(settings.state_dir))
    monkeypatch.setenv("CLOCHE_RUN_DIR", str(settings.run_dir))
