"""A download ends, says why in words, and never takes the host's disk, whatever the sandbox holds."""

# a test may block its own loop

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cloche.core.errors import ClocheError
from cloche.sandbox.handle import Sandbox
from cloche.sandbox.spec import Command

SECONDS_MAX = 4


@pytest.mark.fault("download-of-a-huge-file")
async def test_a_huge_sparse_file_does_not_fill_the_host(hostile: Sandbox, tmp_path: Path) -> None:
    made = await hostile.run(Command(shell="mkdir /A; dd if=/dev/null of=/A/big bs=1M seek=900000"))
    assert made.ok, made.stderr.text
    with pytest.raises(ClocheError):
        async with asyncio.timeout(SECONDS_MAX):  # it would go on for an hour
            await hostile.download("/A", tmp_path / "got")
    big = tmp_path / "got" / "big"
    assert not big.exists() or big.stat().st_blocks * 512 < 64 << 20


@pytest.mark.fault("host-path-too-long")
async def test_a_path_too_long_for_the_host_is_told_in_words(hostile: Sandbox, tmp_path: Path) -> None:
    name = "n" * 240
    await hostile.run(
        Command(
            shell=f"mkdir /L; cd /L; i=0; while [ $i -lt 16 ]; do mkdir {name}; cd {name}; i=$((i+1)); done;"
            " echo > f"
        )
    )
    target = tmp_path / ("z" * 200) / ("y" * 200)
    with pytest.raises(ClocheError):
        await hostile.download("/L", target)
