"""Specs that make no sense are refused as the caller's mistake, before anything is made."""

from __future__ import annotations

from typing import Any

import pytest

from cloche.core.errors import InvalidInput
from cloche.sandbox.drivers.local import LocalDriver
from cloche.sandbox.spec import Lease, PreparedImage, Resources, SandboxSpec

NAN, INFINITE = float("nan"), float("inf")

WRONG: dict[str, dict[str, Any]] = {
    "hostname-surrogate": {"hostname": "\udcff"},
    "hostname-blank": {"hostname": "a b"},
    "hostname-return": {"hostname": "a\rb"},
    "user-nul": {"user": "a\0b"},
    "workdir-nul": {"workdir": "/a\0b"},
    "cpus-nan": {"resources": Resources(cpus=NAN)},
    "cpus-infinite": {"resources": Resources(cpus=INFINITE)},
    "cpus-absurd": {"resources": Resources(cpus=1e9)},
    "pids-absurd": {"resources": Resources(pids=1 << 40)},
    "memory-absurd": {"resources": Resources(memory_bytes=1 << 70)},
    "ttl-zero": {"lease": Lease(ttl_s=0)},
    "ttl-negative": {"lease": Lease(ttl_s=-1)},
    "ttl-nan": {"lease": Lease(ttl_s=NAN)},
    "ttl-infinite": {"lease": Lease(ttl_s=INFINITE)},
    "ttl-absurd": {"lease": Lease(ttl_s=1e30)},
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.fault("impossible-spec")
async def test_a_spec_that_cannot_be_is_refused(
    driver: LocalDriver, busybox_image: PreparedImage, name: str
) -> None:
    with pytest.raises(InvalidInput):
        async with await driver.create(SandboxSpec(**WRONG[name]), busybox_image):
            pass
    assert await driver.list() == []
