"""What the benchmarks share: percentiles, the machine's description and where results go.

Must never judge a figure: a benchmark prints and stores what it saw.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"


@dataclass(frozen=True)
class Series:
    """Durations of one way of doing a thing, in milliseconds, and the wall time of all of them together."""

    name: str
    milliseconds: Sequence[float]
    wall_s: float
    failures: int = 0

    def percentile(self, fraction: float) -> float:
        """Return the value below which ``fraction`` of the durations lie (nearest rank)."""
        ordered = sorted(self.milliseconds)
        return ordered[min(len(ordered) - 1, int(len(ordered) * fraction))]

    @property
    def rate(self) -> float:
        """Operations per second of wall time."""
        return len(self.milliseconds) / self.wall_s

    def row(self) -> dict[str, Any]:
        """Return the figures that are printed and stored."""
        return {
            "name": self.name,
            "n": len(self.milliseconds),
            "p50_ms": round(self.percentile(0.5), 3),
            "p90_ms": round(self.percentile(0.9), 3),
            "p99_ms": round(self.percentile(0.99), 3),
            "rate_per_s": round(self.rate, 1),
            "failures": self.failures,
        }


def machine() -> dict[str, Any]:
    """Describe the machine and how busy it was: a figure without this means little."""
    version = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True, check=False
    )
    memory = Path("/proc/meminfo").read_text().split("\n", 1)[0].split()[1]
    return {
        "cpus": os.cpu_count(),
        "memory_gib": round(int(memory) / 2**20, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_1min": os.getloadavg()[0],
        "commit": version.stdout.strip(),
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def forget_dead_cgroups() -> None:
    """Let the kernel free memory cgroups that were removed while page cache was charged to them.

    They are left by any container or sandbox of the last hours and make every new one slower: two runs are
    comparable only if both start without them.
    """
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")


def show(title: str, series: Sequence[Series]) -> None:
    """Print one table."""
    print(f"\n{title}")
    print(f"  {'':<44}{'n':>6}{'p50 ms':>10}{'p90 ms':>10}{'p99 ms':>10}{'per s':>10}")
    for item in series:
        row = item.row()
        failed = f"  {item.failures} failed" if item.failures else ""
        figures = (
            f"{row['p50_ms']:>10.2f}{row['p90_ms']:>10.2f}{row['p99_ms']:>10.2f}{row['rate_per_s']:>10.1f}"
        )
        print(f"  {item.name:<44}{row['n']:>6}{figures}{failed}")


def store(name: str, tables: dict[str, Sequence[Series]], **extra: Any) -> Path:
    """Write the figures with the machine's description to ``benchmarks/results/NAME.json``."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    content = {
        "machine": machine(),
        **extra,
        "tables": {title: [s.row() for s in rows] for title, rows in tables.items()},
    }
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path
