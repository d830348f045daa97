"""Tasks whose phases differ in what they may reach, against servers of the test's own."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from cloche.testing.experiments import IMAGE, Lab, MakeTask
from cloche.testing.networks import FIRST, SECOND, World, forwarding

PROBE = f"for place in {FIRST} {SECOND}; do nc -w 2 $place 80 </dev/null >/dev/null && echo $place; done"
AGENT = f'[agent]\nnetwork_mode = "allowlist"\nallowed_hosts = ["{FIRST}:80"]\n'


@pytest.fixture(autouse=True)
async def world() -> AsyncIterator[World]:
    with forwarding():
        async with World() as made:
            yield made


ENVIRONMENT = f'docker_image = "{IMAGE}"\n[environment.healthcheck]\ncommand = "({PROBE}) > /tmp/begin; true"'


@pytest.mark.parametrize("steps", [False, True], ids=["whole", "steps"])
async def test_each_phase_has_its_own_network_and_the_record_says_so(
    lab: Lab, make_task: MakeTask, steps: bool
) -> None:
    names = ("one", "two") if steps else ("",)
    path = make_task(
        environment=ENVIRONMENT,
        solve=f"#!/bin/sh\n({PROBE}) > /root/agent\ntouch /root/done\n",
        test=f"#!/bin/sh\n({PROBE}) > /logs/verifier/seen\ncp /root/agent /tmp/begin /logs/verifier/\n"
        "echo 1 > /logs/verifier/reward.txt\n",
        files={f"steps/{name}/instruction.md": "Do it.\n" for name in names if name},
    )
    text = (path / "task.toml").read_text()
    text = text.replace("[agent]\n", AGENT)
    text = text.replace("[verifier]\n", '[verifier]\nnetwork_mode = "public"\n')
    text += "".join(f'[[steps]]\nname = "{name}"\n' for name in names if name)
    (path / "task.toml").write_text(text)
    ending = await lab.run([path])
    assert ending.outcomes[0].solved, ending.outcomes[0].failure
    record = json.loads((lab.trial(ending) / "attempt.json").read_text())
    for name in names:
        folder = lab.trial(ending) / "steps" / name if name else lab.trial(ending)
        seen = {part: (folder / "verifier" / part).read_text().split() for part in ("begin", "agent", "seen")}
        assert seen == {"begin": [], "agent": [FIRST], "seen": [FIRST, SECOND]}
        prefix = f"{name}/" if name else ""
        networks = record["setting"]["networks"]
        assert networks[f"{prefix}environment"]["mode"] == "none"
        assert networks[f"{prefix}agent"] == {"mode": "allowlist", "allowed_hosts": [f"{FIRST}:80"]}
        assert networks[f"{prefix}verifier"]["mode"] == "public"


async def test_an_allowlist_holds_for_all_phases_and_a_verifier_of_its_own_has_its_own(
    lab: Lab, make_task: MakeTask
) -> None:
    path = make_task(
        solve=f"#!/bin/sh\n({PROBE}) > /logs/artifacts/agent\n",
        test=f"#!/bin/sh\n({PROBE}) > /logs/verifier/seen\necho 1 > /logs/verifier/reward.txt\n",
        toml=f'[verifier.environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["{SECOND}"]\n',
    )
    text = (path / "task.toml").read_text()
    mode = f'network_mode = "allowlist"\nallowed_hosts = ["{FIRST}/32"]'
    (path / "task.toml").write_text(text.replace('network_mode = "no-network"', mode))
    ending = await lab.run([path])
    assert ending.outcomes[0].solved, ending.outcomes[0].failure
    folder = lab.trial(ending)
    assert (folder / "artifacts/logs/artifacts/agent").read_text().split() == [FIRST]
    assert (folder / "verifier/seen").read_text().split() == [SECOND]


SERVICE = f"""
services:
  main:
    image: {IMAGE}
    depends_on: [shelf]
  shelf:
    image: {IMAGE}
    environment: {{ WORD: heather }}
    command: sh -c 'until [ -e /tmp/go ]; do touch /tmp/go; done; nc -ll -p 5000 -e echo $WORD'
    healthcheck:
      test: test -e /tmp/go
      interval: 50ms
"""


async def test_a_service_is_reached_by_its_name_by_agent_and_verifier_and_gone_with_them(
    lab: Lab, make_task: MakeTask
) -> None:
    ask = "until nc -w 2 shelf 5000 </dev/null; do usleep 20000; done"
    path = make_task(
        solve=f"#!/bin/sh\n({ask}) > /logs/artifacts/agent\n",
        test=f"#!/bin/sh\n({ask}) > /logs/verifier/seen\n({PROBE}) >> /logs/verifier/seen\n"
        "echo 1 > /logs/verifier/reward.txt\n",
        files={"environment/docker-compose.yaml": SERVICE.replace("$WORD", "$$WORD")},
    )
    ending = await lab.run([path])
    assert ending.outcomes[0].solved, ending.outcomes[0].failure
    folder = lab.trial(ending)
    assert (folder / "artifacts/logs/artifacts/agent").read_text() == "heather\n"
    assert (folder / "verifier/seen").read_text() == "heather\n"  # and nobody else: it has no network
    record = json.loads((folder / "attempt.json").read_text())
    assert list(record["setting"]["services"]) == ["shelf"]
    assert await lab.driver.list() == []


async def test_a_service_that_does_not_become_healthy_is_an_infrastructure_failure(
    lab: Lab, make_task: MakeTask
) -> None:
    broken = SERVICE.replace("test -e /tmp/go\n", "test -e /nowhere\n").replace("$WORD", "$$WORD")
    ending = await lab.run([make_task(files={"environment/docker-compose.yaml": broken})])
    failure = ending.outcomes[0].failure
    assert failure is not None
    assert failure.code == "infra/healthcheck"
    assert await lab.driver.list() == []
