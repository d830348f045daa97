"""pytest fixtures for tests of whole experiments: tasks on a tiny image, run here or by the program.

Import them in a ``conftest.py`` beside those of ``cloche.testing.sandboxes``. Must never need the network.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cloche.agents.base import ModelEndpoint
from cloche.core.retry import RetryPolicy
from cloche.experiment.images import store_images
from cloche.experiment.limits import TimeoutRules
from cloche.experiment.plan import ModelChoice, Plan, Price, make_plan
from cloche.experiment.runner import Watch
from cloche.experiment.session import Ending, Session
from cloche.sandbox.drivers.local import LocalDriver
from cloche.sandbox.images import ImageStore
from cloche.sandbox.settings import Settings
from cloche.sandbox.spec import ImageConfig
from cloche.tasks import find_tasks
from cloche.testing.sandboxes import make_busybox_root

IMAGE = "busybox:1"
PROGRAM = (sys.executable, "-m", "cloche")
GRADE_DONE = "#!/bin/sh\n[ -e /root/done ] && r=1 || r=0\necho $r > /logs/verifier/reward.txt\n"
SOLVE = "#!/bin/sh\ntouch /root/done\n"
_RUN_TIMEOUT_S = 100.0

MakeTask = Callable[..., Path]


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """An installation with the image ``busybox:1``, as settings and as an environment for programs."""

    settings: Settings
    store: ImageStore

    def environ(self, **more: str) -> dict[str, str]:
        """Return the environment of a program that uses it."""
        return {
            **os.environ,
            "CLOCHE_STATE_DIR": str(self.settings.state_dir),
            "CLOCHE_RUN_DIR": str(self.settings.run_dir),
            "PYTHONPATH": os.pathsep.join(sys.path),
            "PYTHONUNBUFFERED": "1",
            "COLUMNS": "100",
            "NO_COLOR": "1",
            **more,
        }

    def start(self, *arguments: str, **more: str) -> subprocess.Popen[str]:
        """Start ``cloche`` with these arguments in a process group of its own."""
        return subprocess.Popen(
            [*PROGRAM, *arguments],
            env=self.environ(**more),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str, **more: str) -> Finished:
        """Run ``cloche`` to its end."""
        return finish(self.start(*arguments, **more))


@dataclass(frozen=True, slots=True)
class Finished:
    """How a program ended and what it wrote."""

    status: int
    out: str
    err: str


def finish(process: subprocess.Popen[str], *signals: signal.Signals) -> Finished:
    """Send signals to a program and wait for its end; it is killed when it does not come."""
    for number in signals:
        process.send_signal(number)
    try:
        out, err = process.communicate(timeout=_RUN_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"it did not end; it had written:\n{out}\n{err}") from None
    return Finished(process.returncode, out, err)


@pytest.fixture(scope="session")
def installation(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """The session's installation with a tiny image in its store."""
    store = ImageStore(settings)
    if store.find(IMAGE) is None:
        root = tmp_path_factory.mktemp("busybox") / "root"
        make_busybox_root(root)
        path = "/bin:/usr/bin"
        store.import_dir(root, IMAGE, config=ImageConfig(env={"PATH": path}, workdir="/root"))
    return Installation(settings=settings, store=store)


@pytest.fixture
def make_task(tmp_path: Path) -> MakeTask:
    """Return a function that makes a task: what a test changes about a good one.

    ``solve`` and ``test`` are the scripts of the solution and the verifier, ``agent_s`` and
    ``verifier_s`` their limits, ``toml`` is added to ``task.toml`` and ``top`` stands at its beginning;
    ``files`` adds files or, with ``None``, leaves them out.
    """

    def make(
        name: str = "sample",
        *,
        solve: str = SOLVE,
        test: str = GRADE_DONE,
        agent_s: float = 60.0,
        verifier_s: float = 30.0,
        environment: str = f'docker_image = "{IMAGE}"',
        toml: str = "",
        top: str = "",
        files: Mapping[str, str | None] | None = None,
    ) -> Path:
        folder = tmp_path / "tasks" / name
        config = (
            f'schema_version = "1.4"\n{top}\n[agent]\ntimeout_sec = {agent_s}\n'
            f"[verifier]\ntimeout_sec = {verifier_s}\n"
            f'[environment]\nmemory_mb = 256\nnetwork_mode = "no-network"\n{environment}\n{toml}\n'
        )
        wanted: dict[str, str | None] = {
            "task.toml": config,
            "instruction.md": f"Do the task {name}.\n",
            "tests/test.sh": test,
            "solution/solve.sh": solve,
            **(files or {}),
        }
        for path, text in wanted.items():
            if text is not None:
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_text(text)
        return folder

    return make


@dataclass
class Lab:
    """Runs plans in this process."""

    installation: Installation
    driver: LocalDriver
    folder: Path
    news: list[str] = field(default_factory=list)

    async def run(
        self,
        paths: Sequence[Path],
        agents: Sequence[str] = ("oracle",),
        *,
        base_url: str = "",
        models: Sequence[str] = (),
        api_key_env: str | None = None,
        prices: Mapping[str, Price] | None = None,
        environ: Mapping[str, str] | None = None,
        retries: int = 1,
        concurrency: int = 4,
        repeats: int = 1,
        limits: TimeoutRules | None = None,
    ) -> Ending:
        """Run tasks and return the ending."""
        choices = [
            ModelChoice(
                ModelEndpoint(base_url=base_url, model=name, api_key_env=api_key_env, stall_timeout_s=20.0),
                (prices or {}).get(name),
            )
            for name in models
        ]
        plan: Plan = make_plan(
            find_tasks(paths),
            agents,
            choices,
            concurrency=concurrency,
            repeats=repeats,
            limits=limits,
            retry=RetryPolicy(retries=retries, first_wait_s=0.0),
            environ=environ or {},
        )
        prepare = store_images(self.installation.store)
        session = Session(plan, self.folder, self.driver, prepare, environ=environ or {})
        watch = Watch(
            trial_done=lambda trial: self.news.append(trial.name),
            trouble=lambda error: self.news.append(str(error)),
        )
        async with asyncio.timeout(_RUN_TIMEOUT_S):
            return await session.run(watch, lambda trial: self.news.append(f"known {trial.name}"))

    def trial(self, ending: Ending, index: int = 0) -> Path:
        """Return the folder of one of the trials."""
        return self.folder / ending.outcomes[index].name


@pytest.fixture
def lab(installation: Installation, driver: LocalDriver, tmp_path: Path) -> Lab:
    """A lab with an empty folder for its record."""
    return Lab(installation, driver, tmp_path / "out")
