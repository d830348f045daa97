"""Parse a job's folder with Harbor's own models and say what does not come back as it was.

A program for the environment of the ``harbor`` package: ``python read_with_harbor.py JOB``. Prints one JSON
object. ``files``: from the path of each file below JOB of Harbor's shape to the list of its differences,
empty if Harbor, having read the file, would write the same keys with the same values. ``figures``: where the
job's statistics are not those that Harbor computes from the trials' results. Never imports cloche.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harbor.metrics.mean import Mean
from harbor.models.job.config import JobConfig
from harbor.models.job.lock import JobLock, TrialLock
from harbor.models.job.result import JobResult, JobStats
from harbor.models.trajectories import Trajectory
from harbor.models.trial.artifact_manifest import ArtifactManifest
from harbor.models.trial.config import TrialConfig
from harbor.models.trial.result import TrialResult

Again = Callable[[str], Any]


def _again(model: Any, **options: Any) -> Again:
    """Return a function from a file's text to what Harbor writes of what it has read."""
    return lambda text: json.loads(model.model_validate_json(text).model_dump_json(**options))


def _manifest_again(text: str) -> Any:
    return ArtifactManifest(entries=json.loads(text)).to_json_data()


# what Harbor leaves out when it writes: job.py and trial/trial.py of the package
OF_JOB: dict[str, Again] = {
    "config.json": _again(JobConfig),
    "lock.json": _again(JobLock, exclude_none=True),
    "result.json": _again(JobResult, exclude={"trial_results"}),
}
OF_TRIAL: dict[str, Again] = {
    "config.json": _again(TrialConfig),
    "lock.json": _again(TrialLock, exclude_none=True),
    "result.json": _again(TrialResult),
}
# of a trial, and of each step of a task in steps
OF_STEP: dict[str, Again] = {
    "agent/trajectory.json": _again(Trajectory, exclude_none=True),
    "artifacts/manifest.json": _manifest_again,
}


def differences(ours: Any, again: Any, where: str = "$") -> list[str]:
    """Return where two JSON values differ, also in the type of a number."""
    if isinstance(ours, dict) and isinstance(again, dict):
        found = [f"{where}.{key}: Harbor drops it" for key in ours.keys() - again.keys()]
        found += [f"{where}.{key}: Harbor adds {again[key]!r}" for key in again.keys() - ours.keys()]
        for key in ours.keys() & again.keys():
            found += differences(ours[key], again[key], f"{where}.{key}")
        return sorted(found)
    if isinstance(ours, list) and isinstance(again, list) and len(ours) == len(again):
        pairs = enumerate(zip(ours, again, strict=True))
        return [line for index, pair in pairs for line in differences(*pair, f"{where}[{index}]")]
    if type(ours) is type(again) and ours == again:
        return []
    return [f"{where}: {ours!r} comes back as {again!r}"]


def check(path: Path, again: Again) -> list[str]:
    """Return the differences of one file, or the one line that Harbor cannot read it."""
    text = path.read_text(encoding="utf-8")
    try:
        return differences(json.loads(text), again(text))
    except ValueError as error:  # pydantic's ValidationError is one
        return [f"Harbor cannot read it: {error}"]


def figures(job: Path) -> list[str]:
    """Return where the job's counts and means differ from Harbor's; tokens are ours, of every attempt."""
    results = [
        TrialResult.model_validate_json(path.read_text()) for path in sorted(job.glob("*/result.json"))
    ]
    computed = JobStats.from_trial_results(results, n_total_trials=len(results))
    rewards = defaultdict(list)
    for result in results:
        if result.reward_valid:
            model = result.agent_info.model_info
            name = model.name if model else None
            key = JobStats.format_agent_evals_key(result.agent_info.name, name, result.source or "adhoc")
            rewards[key].append(result.verifier_result.rewards)
    for key, found in rewards.items():
        computed.evals[key].metrics.append(Mean().compute(found))
    ours = json.loads((job / "result.json").read_text())["stats"]
    theirs = json.loads(computed.model_dump_json())
    for stats in (ours, theirs):
        for evaluated in stats["evals"].values():
            del evaluated["pass_at_k"]
            for lists in (*evaluated["reward_stats"].values(), evaluated["exception_stats"]):
                lists |= {name: sorted(trials) for name, trials in lists.items()}
    wanted = ["n_completed_trials", "n_errored_trials", "n_pending_trials", "n_cancelled_trials", "evals"]
    return [line for name in wanted for line in differences(ours[name], theirs[name], f"$.stats.{name}")]


def files(job: Path) -> dict[str, list[str]]:
    """Return the differences of every file of Harbor's shape, earlier attempts' too."""
    report = {name: check(job / name, again) for name, again in OF_JOB.items()}
    folders = [path.parent for path in sorted(job.rglob("attempt.json"))]
    folders += [path for path in sorted(job.iterdir()) if (path / "config.json").is_file()]
    for folder in dict.fromkeys(folders):
        wanted = {folder / name: again for name, again in OF_TRIAL.items()}
        for place in (folder, *sorted(folder.glob("steps/*"))):
            wanted |= {place / name: again for name, again in OF_STEP.items()}
        report |= {
            str(path.relative_to(job)): check(path, again) for path, again in wanted.items() if path.exists()
        }
    return report


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    json.dump({"files": files(folder), "figures": figures(folder)}, sys.stdout)
