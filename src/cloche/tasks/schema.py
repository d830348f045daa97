"""``task.toml``, table by table: what each field of Harbor's format "1.0" to "1.4" becomes.

A field is read into the task, or refused by name because it cannot be executed, or doubted; none is
passed over. Must never touch the file system: the folder is :mod:`cloche.tasks.folder`'s business.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cloche.tasks.environment import EnvironmentFields, read_environment, read_healthcheck
from cloche.tasks.fields import Findings, Table
from cloche.tasks.model import AgentPhase, Artifact, Env, Healthcheck, RewardStrategy
from cloche.tasks.phases import VerifierFields, overlaps, read_agent, read_artifacts, read_verifier

VERSIONS = ("1.0", "1.1", "1.2", "1.3", "1.4")
STEPS_MAX = 1000
STEP_NAME_BYTES_MAX = 255

_PACKAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}/[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_STEP_NAME_TABOO = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f]')


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFields:
    """The fields of one of ``[[steps]]``."""

    name: str
    agent: AgentPhase
    verifier: VerifierFields
    healthcheck: Healthcheck | None
    artifacts: tuple[Artifact, ...]
    min_reward: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A whole ``task.toml``."""

    schema_version: str
    package: str | None
    description: str
    keywords: tuple[str, ...]
    source: str | None
    metadata: Mapping[str, Any]
    agent: AgentPhase
    verifier: VerifierFields
    environment: EnvironmentFields
    solution_env: Env
    steps: tuple[StepFields, ...]
    strategy: RewardStrategy
    artifacts: tuple[Artifact, ...]


def read_config(findings: Findings) -> Config:
    """Read the whole document; what is wrong, refused or doubtful is noted in ``findings``."""
    root = Table(findings, findings.document.data)
    environment = root.table("environment", read_environment)
    package, description, keywords = root.table("task", _package)
    verifier = root.table("verifier", read_verifier)
    artifacts = read_artifacts(root)
    steps = _steps(root, environment)
    config = Config(
        schema_version=_version(root),
        package=package,
        description=description,
        keywords=keywords,
        source=root.text("source"),
        metadata=root.raw("metadata"),
        agent=root.table("agent", read_agent),
        verifier=verifier,
        environment=environment,
        solution_env=root.table("solution", lambda table: table.env("env")),
        steps=steps,
        strategy=_strategy(root, steps),
        artifacts=artifacts,
    )
    _doubt_overlaps(root, config)
    root.finish()
    return config


def _version(root: Table) -> str:
    old = root.text("version")
    version = root.text("schema_version") or old or VERSIONS[-1]
    if version not in VERSIONS:
        key = "schema_version" if "schema_version" in root else "version"
        message = f"its schema version is `{version[:20]}`; known are {VERSIONS[0]} to {VERSIONS[-1]}"
        root.refuse(key, "plan/schema_version", message)
    return version


def _package(table: Table) -> tuple[str | None, str, tuple[str, ...]]:
    name = table.text("name")
    if name is not None and not _PACKAGE.fullmatch(name):
        table.broken("name", "task/value", "must be `organisation/name` of letters, digits, `.`, `_` and `-`")
        name = None
    if name is not None and ".." in name:
        table.broken("name", "task/value", "must not hold `..`")
        name = None
    table.text("version")
    table.tables("authors", _author)
    return name, table.text("description") or "", table.texts("keywords")


def _author(table: Table) -> None:
    for key in ("name", "email"):
        table.text(key)


def _strategy(root: Table, steps: tuple[StepFields, ...]) -> RewardStrategy:
    strategy = root.choice("multi_step_reward_strategy", tuple(item.value for item in RewardStrategy))
    if strategy and not steps:
        message = "`multi_step_reward_strategy` has no effect on a task without steps"
        root.doubt("multi_step_reward_strategy", "task/no_effect", message)
    return RewardStrategy(strategy) if strategy else RewardStrategy.MEAN


def _steps(root: Table, environment: EnvironmentFields) -> tuple[StepFields, ...]:
    steps = root.tables("steps", lambda table: _step(table, environment))
    if len(steps) > STEPS_MAX:
        root.broken("steps", "task/range", f"has more than {STEPS_MAX:,} steps")
        return ()
    seen: dict[str, str] = {}
    for step in steps:
        key = unicodedata.normalize("NFC", step.name).casefold()
        if step.name and key in seen:
            root.broken("steps", "task/value", f"has two steps called `{step.name}` (or nearly so)")
        seen[key] = step.name
    return tuple(step for step in steps if step.name)


def _step(table: Table, environment: EnvironmentFields) -> StepFields:
    return StepFields(
        name=_step_name(table),
        agent=table.table("agent", read_agent),
        verifier=table.table("verifier", read_verifier),
        healthcheck=read_healthcheck(table, environment.build_timeout_s),
        artifacts=read_artifacts(table),
        min_reward=table.thresholds("min_reward", "reward"),
    )


def _step_name(table: Table) -> str:
    name = table.text("name")
    if name is None:
        if "name" not in table:
            table.broken("name", "task/value", "is missing: a step needs a name")
        return ""
    plain = name.isprintable() and not _STEP_NAME_TABOO.search(name) and not name.endswith((".", " "))
    if not plain or not name.strip() or len(name.encode("utf-8", "replace")) > STEP_NAME_BYTES_MAX:
        table.broken("name", "task/value", "must be the name of a folder, without `/` and the like")
        return ""
    return name


def _doubt_overlaps(root: Table, config: Config) -> None:
    for kept, left in overlaps(config.artifacts):
        message = f"the artifact `{left.source}` is left out: `{kept.source}` takes its place `{left.target}`"
        root.doubt("artifacts", "task/overlap", message, "give one of them another destination")
    for step in config.steps:
        for kept, left in overlaps((*config.artifacts, *step.artifacts)):
            if left in step.artifacts:
                message = (
                    f"the artifact `{left.source}` of the step `{step.name}` is left out:"
                    f" `{kept.source}` takes its place `{left.target}`"
                )
                root.doubt("steps", "task/overlap", message, "give one of them another destination")
