"""``cloche store``: made, shown and removed by hand."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_a_store_is_made_shown_and_removed() -> None:
    with tempfile.TemporaryDirectory(prefix="clt-", dir="/var/tmp") as base:
        env = {
            **os.environ,
            "PYTHONPATH": str(ROOT / "src"),
            "CLOCHE_STATE_DIR": f"{base}/s",
            "CLOCHE_RUN_DIR": f"{base}/r",
            "NO_COLOR": "1",
        }

        def cloche(*arguments: str) -> subprocess.CompletedProcess[str]:
            command = [sys.executable, "-m", "cloche", "store", *arguments]
            return subprocess.run(command, env=env, capture_output=True, text=True, check=False)

        assert "not enforced" in cloche("show").stdout
        try:
            made = cloche("make", "--size", "1GiB")
            assert (made.returncode, made.stdout) == (0, f"{base}/s.btrfs\n"), made.stderr
            assert "loop,nosuid,nodev" in made.stderr
            assert "disk limits  btrfs" in cloche("show").stdout
            again = cloche("make", "--size", "1GiB")
            assert (again.returncode, "cloche store mount" in again.stderr) == (2, True)
        finally:
            gone = cloche("remove", "--yes")
        assert gone.returncode == 0, gone.stderr
        assert not os.path.ismount(f"{base}/s")
        assert not Path(f"{base}/s.btrfs").exists()
