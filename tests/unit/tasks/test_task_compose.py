"""Compose files: what one service says is taken over, all else is named with its line; YAML never hangs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloche.sandbox.driver import Capability
from cloche.tasks import load_task, refusals
from cloche.tasks.compose import Composed, read_compose
from cloche.tasks.model import TaskNetwork
from cloche.tasks.refuse import needs, resolve_env
from cloche.tasks.yaml import Node, YamlError, parse

MakeTask = Callable[..., Path]


def plain(node: Node) -> Any:
    if isinstance(node.value, dict):
        return {key: plain(inner) for key, inner in node.value.items()}
    if isinstance(node.value, list):
        return [plain(inner) for inner in node.value]
    return node.value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("a: 1\nb: two # c\n", {"a": "1", "b": "two"}),
        ("a:\n  - x\n  - y\n", {"a": ["x", "y"]}),
        ("a:\n- x\n- y: 1\n  z: 2\nb: 3", {"a": ["x", {"y": "1", "z": "2"}], "b": "3"}),
        ("a: ['it''s', \"t\\tab\", {b: c, d: [e]}]", {"a": ["it's", "t\tab", {"b": "c", "d": ["e"]}]}),
        ("a: [x,\n  y]\n", {"a": ["x", "y"]}),
        ("a: |\n  one\n   two\n\n  three\nb: >-\n  x\n  y\n", {"a": "one\n two\n\nthree\n", "b": "x y"}),
        ("a: ~\nb:\nc: ''\n", {"a": None, "b": None, "c": ""}),
        ('"a b": "#no"\n', {"a b": "#no"}),
        ("a: http://x:80/#y\n", {"a": "http://x:80/#y"}),
        ("---\n- - a\n  - b\n-\n  c: d\n", [["a", "b"], {"c": "d"}]),
    ],
)
def test_yaml_that_is_read(text: str, value: Any) -> None:
    assert plain(parse(text)) == value


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: b: c", 1),
        ("a:\n\tb: 1", 2),
        ("a: &x 1\n", 1),
        ("a: *x\n", 1),
        ("a: !!str x\n", 1),
        ("a: 1\na: 2\n", 2),
        ("a: [1\n", 1),
        ("a: 'x\n", 1),
        ("a: 1\n  b: 2\n", 2),
        ("a: 1\n---\nb: 2\n", 2),
        ("<<: {a: b}\n", 1),
        ("a: [" * 60, 1),
        ("a: " + "x" * 5000, 1),
        ("a: [\n" + "  x,\n" * 5000, 1),
        ("\n".join("  " * depth + "a:" for depth in range(60)), 42),
    ],
)
def test_yaml_that_is_refused_has_its_line(text: str, line: int) -> None:
    with pytest.raises(YamlError) as caught:
        parse(text)
    assert caught.value.line == line


def outcome(text: str) -> tuple[Node, int]:
    """Return what is read, or nothing and the line where it was refused."""
    try:
        node = parse(text)
    except YamlError as error:
        return Node(None, error.line), error.line
    return node, node.line


@given(st.text(alphabet=st.sampled_from(list("ab:-[]{},#'\"|>&*!~ \n\t\\$")), max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    node, line = outcome(text)
    assert 1 <= line <= text.count("\n") + 1
    assert isinstance(read_compose(node), Composed)


@given(st.text(max_size=60))
def test_any_characters_are_read_or_refused(text: str) -> None:
    assert outcome(text)[1] >= 1


COMPOSE = """\
version: "3.8"
services:
  main:
    build:
      context: ${CONTEXT_DIR}
      args:
        WHO: me
    image: ${MAIN_IMAGE_NAME}
    command: ["sh", "-c", "sleep infinity"]
    environment:
      - TEST_DIR=${TEST_DIR}
      - KEY=${HOST_KEY:-none}
      - PRICE=5$$
    user: "1000"
    working_dir: /srv
    deploy:
      resources:
        limits:
          cpus: ${CPUS}
          memory: 512M
    network_mode: none
    volumes:
      - ${HOST_VERIFIER_LOGS_PATH}:${ENV_VERIFIER_LOGS_PATH}
"""


def test_one_service_is_taken_over(make_task: MakeTask) -> None:
    folder = make_task(files={"environment/docker-compose.yaml": COMPOSE})
    task = load_task(folder)
    environment = task.environment
    assert task.refused == ()
    assert environment.dockerfile == folder / "environment" / "Dockerfile"
    assert environment.context == folder / "environment"
    assert environment.build_args == {"WHO": "me"}
    assert (environment.user, environment.workdir) == ("1000", "/srv")
    assert (environment.cpus, environment.memory_bytes) == (None, 512 << 20)
    assert (environment.network, environment.network_stated) == (TaskNetwork.NO_NETWORK, True)
    assert resolve_env({key: environment.env[key] for key in ("KEY", "PRICE")}, {"HOST_KEY": "h"}) == {
        "KEY": "h",
        "PRICE": "5$",
    }
    assert environment.env["KEY"].where.endswith("docker-compose.yaml:12")


def test_task_toml_counts_before_the_compose_file(make_task: MakeTask) -> None:
    toml = (
        '[environment]\nworkdir = "/app"\nmemory_mb = 64\nnetwork_mode = "public"\nenv = { KEY = "toml" }\n'
    )
    task = load_task(make_task(toml, {"environment/docker-compose.yaml": COMPOSE}))
    environment = task.environment
    assert (environment.workdir, environment.memory_bytes) == ("/app", 64 << 20)
    assert environment.network is TaskNetwork.PUBLIC
    assert environment.env["KEY"].text == "toml"


def test_an_image_of_the_service_needs_no_dockerfile(make_task: MakeTask) -> None:
    text = "services:\n  main:\n    image: debian:12\n"
    files = {"environment/docker-compose.yaml": text, "environment/Dockerfile": None}
    assert load_task(make_task(files=files)).environment.docker_image == "debian:12"


SERVICES = """
services:
  main:
    build: .
    depends_on:
      api: { condition: service_healthy }
  api:
    build: { context: ., dockerfile: api.Dockerfile }
    depends_on: [db]
    command: serve --port "80 81"
  db:
    image: debian:12
    entrypoint: ["/bin/sh", "-c"]
    command: ["sleep 1"]
    environment: { MODE: fast }
    healthcheck:
      test: ["CMD", "test", "-e", "/a b"]
      interval: 1m30s
      timeout: 500ms
      retries: 2
"""


def test_services_beside_main_are_read_in_the_order_in_which_they_start(make_task: MakeTask) -> None:
    files = {"environment/docker-compose.yaml": SERVICES, "environment/api.Dockerfile": "FROM debian:12\n"}
    task = load_task(make_task(files=files))
    assert refusals(task, {}) == []
    db, api = task.environment.services
    assert (db.name, db.environment.docker_image, db.entrypoint, db.command) == (
        "db",
        "debian:12",
        ("/bin/sh", "-c"),
        ("sleep 1",),
    )
    assert db.environment.env["MODE"].text == "fast"
    check = db.environment.healthcheck
    assert check is not None
    assert (check.command, check.interval_s, check.timeout_s, check.retries) == (
        "test -e '/a b'",
        90.0,
        0.5,
        2,
    )
    assert (api.name, api.entrypoint, api.command) == ("api", None, ("serve", "--port", "80 81"))
    assert api.environment.dockerfile is not None
    assert api.environment.dockerfile.name == "api.Dockerfile"
    assert Capability.UNIT in needs(task)


@pytest.mark.fault("compose-with-services")
@pytest.mark.parametrize(
    ("text", "line", "named"),
    [
        ("services:\n  main: {}\n  redis:\n    cpus: 1\n", 3, "neither `image` nor `build` of `redis`"),
        ("services:\n  main: {}\n  A.b:\n    image: x\n", 3, "the service `A.b`, whose name"),
        ("services:\n  main: {}\n  db:\n    image: x\n    ports: ['80:80']\n", 5, "`ports` of `db`"),
        ("services:\n  main: {}\n  db:\n    image: x\n    volumes: [/:/h]\n", 5, "a volume of `db`"),
        (
            "services:\n  main: {}\n  db:\n    image: x\n    network_mode: none\n",
            3,
            "`network_mode: none` of `db`",
        ),
        ("services:\n  main: {}\n  a:\n    image: x\n    depends_on: [a]\n", 1, "wait for each other"),
        ("services:\n  main:\n    privileged: true\n", 3, "`privileged` of `main`"),
        ("services:\n  main:\n    volumes:\n      - /etc:/etc\n", 4, "a volume of `main`"),
        ("services:\n  main: {}\nvolumes: {}\n", 3, "`volumes`"),
        ("services:\n  app: {}\n", 1, "it has no service `main`"),
        ("services:\n  main:\n    network_mode: host\n", 3, "`network_mode: host` of `main`"),
        ("services:\n  main:\n    build: ../x\n", 3, "`build` of `main` outside environment/"),
        ("services:\n  main:\n    depends_on: [db]\n", 1, "`depends_on: db` of `main`"),
        ("services:\n  main:\n    mem_limit: much\n", 3, "`mem_limit` of `main` that is no size"),
        ("services:\n  main:\n    mem_limit: 1m\n", 3, "`mem_limit` of `main` below 8 MiB"),
        ("services:\n  main:\n    cpus: 0.001\n", 3, "`cpus` of `main` below 0.01"),
        ("services:\n  main:\n    user: ${WHO}\n", 3, "the variable `WHO` in `user` of `main`"),
        (
            "services:\n  main:\n    environment: [A]\n",
            3,
            "an entry of `environment` of `main` without a value",
        ),
        ("services: [\n", 1, "cannot be read"),
        ("- x\n", 1, "it holds a list, not a mapping"),
    ],
)
def test_what_one_sandbox_does_not_have_is_refused_by_name_and_line(
    make_task: MakeTask, text: str, line: int, named: str
) -> None:
    found = refusals(load_task(make_task(files={"environment/docker-compose.yaml": text})), {})
    assert {refusal.code for refusal in found} == {"plan/compose"}
    assert any(
        named in refusal.message and refusal.where.endswith(f"docker-compose.yaml:{line}")
        for refusal in found
    ), found
