"""What a trial costs beside its sandbox: CPU of the runner and of the spawner, in real runs of cloche.

    python benchmarks/engine.py [--trials N] [--concurrency N]

Tasks are generated: a static busybox image, the agent that does nothing, a verifier of one line. The same
run is made with few and with many trials, and the difference is divided by the trials between: start-up is
not a trial's cost. Results go to ``benchmarks/results/engine.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measure import RESULTS, forget_dead_cgroups, machine
from peers import make_rootfs

TASK = """schema_version = "1.4"
[agent]
timeout_sec = 60
[verifier]
timeout_sec = 60
[environment]
docker_image = "busybox:1"
memory_mb = 512
network_mode = "no-network"
"""


def make_tasks(folder: Path, count: int) -> Path:
    """Write ``count`` trivial tasks."""
    for number in range(count):
        task = folder / f"trivial-{number:04}"
        (task / "tests").mkdir(parents=True)
        (task / "environment").mkdir()
        (task / "task.toml").write_text(TASK)
        (task / "instruction.md").write_text(f"Do nothing, {number}.\n")
        (task / "tests" / "test.sh").write_text("#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n")
    return folder


def spawner_cpu_s(run_dir: Path) -> float:
    """Return the CPU seconds that the spawner itself has used; its children, the sandboxes, are not in it."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            argv = (folder / "cmdline").read_bytes().split(b"\0")
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
        except FileNotFoundError:
            continue  # it ended while we looked
        if b"cloche-spawner" in argv[0] and f"--run-dir={run_dir}".encode() in argv:
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    raise RuntimeError("the spawner is not running")


def run(cloche: list[str], tasks: Path, out: Path, concurrency: int, env: dict[str, str]) -> dict[str, float]:
    """Run all tasks once and return wall seconds and CPU seconds of runner and spawner."""
    before_spawner = spawner_cpu_s(Path(env["CLOCHE_RUN_DIR"]))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.perf_counter()
    argv = [*cloche, "run", str(tasks), "-a", "nop", "-n", str(concurrency), "-o", str(out), "--quiet"]
    subprocess.run(argv, env=env, check=True, stdout=subprocess.DEVNULL)
    wall_s = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    runner_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "wall_s": wall_s,
        "runner_s": runner_s,
        "spawner_s": spawner_cpu_s(Path(env["CLOCHE_RUN_DIR"])) - before_spawner,
    }


def main() -> int:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--concurrency", type=int, default=8)
    options = parser.parse_args()
    few = max(1, options.trials // 8)
    work = Path(tempfile.mkdtemp(prefix="cloche-bench-", dir="/var/tmp"))
    cloche = [sys.executable, "-m", "cloche"]
    env = {**os.environ, "CLOCHE_STATE_DIR": str(work / "state"), "CLOCHE_RUN_DIR": str(work / "run")}
    try:
        rootfs = make_rootfs(work / "rootfs")
        subprocess.run(
            [*cloche, "image", "import", str(rootfs), "busybox:1"],
            env=env,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        forget_dead_cgroups()
        keep = [*cloche, "sandbox", "create", "busybox:1", "--name", "keeps-the-spawner"]
        subprocess.run(keep, env=env, check=True, stdout=subprocess.DEVNULL)
        small = run(cloche, make_tasks(work / "few", few), work / "out-few", options.concurrency, env)
        large = run(
            cloche, make_tasks(work / "many", options.trials), work / "out-many", options.concurrency, env
        )
    finally:
        subprocess.run([*cloche, "sandbox", "rm", "--all"], env=env, check=False, stdout=subprocess.DEVNULL)
        shutil.rmtree(work, ignore_errors=True)
    between = options.trials - few
    per_trial = {key: (large[key] - small[key]) / between for key in large}
    result = {
        "machine": machine(),
        "trials": options.trials,
        "concurrency": options.concurrency,
        "runner_cpu_ms_per_trial": round(per_trial["runner_s"] * 1e3, 2),
        "spawner_cpu_ms_per_trial": round(per_trial["spawner_s"] * 1e3, 2),
        "engine_cpu_ms_per_trial": round((per_trial["runner_s"] + per_trial["spawner_s"]) * 1e3, 2),
        "trials_per_s": round(between / (large["wall_s"] - small["wall_s"]), 1),
    }
    print(json.dumps(result, indent=1))
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "engine.json").write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
