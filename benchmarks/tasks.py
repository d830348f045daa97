"""Reading tasks: parse, check and digest thousands of generated tasks, each once.

Run it as a program; it prints one JSON object with seconds of wall and of CPU, and tasks a second. The aim is
4,000 tasks in 4 s. Results go to ``benchmarks/results/tasks.json``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from cloche.tasks import find_tasks, refusals
from measure import RESULTS, machine

CONFIG = """\
schema_version = "1.4"
artifacts = ["/app/out", {{ source = "/app/log", destination = "logs/{number}", exclude = ["*.tmp"] }}]

[task]
name = "made/task-{number}"
description = "Task number {number}"
keywords = ["made", "small"]

[metadata]
difficulty = "easy"
number = {number}

[environment]
build_timeout_sec = 600.0
cpus = 1
memory_mb = 512
network_mode = "no-network"

[environment.healthcheck]
command = "test -e /app"
interval_sec = 1.0

[agent]
timeout_sec = 600.0

[verifier]
timeout_sec = 60.0
env = {{ NUMBER = "{number}" }}
"""
STEP = """
[[steps]]
name = "step-{step}"
min_reward = 0.5
[steps.agent]
timeout_sec = 60.0
"""


def make(folder: Path, count: int) -> None:
    """Make ``count`` tasks, every fourth of them in two steps."""
    for number in range(count):
        stepped = number % 4 == 0
        files = {
            "task.toml": CONFIG.format(number=number)
            + ("".join(STEP.format(step=step) for step in (1, 2)) if stepped else ""),
            "environment/Dockerfile": f"FROM debian:12\nRUN mkdir /app && echo {number} > /app/n\n",
            "environment/data.csv": f"{number},1,2,3\n" * 200,
            "tests/test.sh": "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n",
            "tests/cases.json": json.dumps(list(range(number, number + 200))),
            "solution/solve.sh": "#!/bin/sh\ntouch /app/done\n",
        }
        if stepped:
            files |= {
                f"steps/step-{step}/instruction.md": f"Do part {step} of {number}.\n" for step in (1, 2)
            }
        else:
            files["instruction.md"] = f"Do what number {number} asks for.\n" * 20
        for name, text in files.items():
            target = folder / f"task-{number:05}" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", "--tasks", type=int, default=4000)
    parser.add_argument("-k", "--rounds", type=int, default=3)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="cloche-bench-tasks-"))
    try:
        make(folder, options.tasks)
        seconds, cpu = [], []
        for _ in range(options.rounds):
            began, worked = time.perf_counter(), time.process_time()
            found = find_tasks([folder])
            refused = sum(bool(refusals(task, {})) for task in found)  # type: ignore[arg-type]
            seconds.append(time.perf_counter() - began)
            cpu.append(time.process_time() - worked)
            if len(found) != options.tasks or refused:
                raise SystemExit(f"{len(found)} tasks were read and {refused} refused")
        middle = statistics.median(seconds)
        result = {
            "machine": machine(),
            "tasks": options.tasks,
            "seconds": [round(each, 3) for each in seconds],
            "cpu_seconds": [round(each, 3) for each in cpu],
            "median_s": round(middle, 3),
            "tasks_per_s": round(options.tasks / middle),
        }
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "tasks.json").write_text(json.dumps(result, indent=2) + "\n")
        print(json.dumps(result))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
