"""Which registry a name means, whether TLS may be left out, and whose credentials count."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from cloche.core.errors import InvalidInput
from cloche.sandbox.images.registry.credentials import Credentials, credentials_for
from cloche.sandbox.images.registry.reference import RegistrySettings, find_registry

DIGEST = "sha256:" + "0a" * 32
NONE = RegistrySettings()
DEFAULT = RegistrySettings(default="host.example:5000")
HUB = RegistrySettings(default="docker.io")


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("host.example/team/tool", NONE, "host.example/team/tool:latest"),
        ("host.example/team/tool:1", NONE, "host.example/team/tool:1"),
        ("host.example:5000/tool:1", DEFAULT, "host.example:5000/tool:1"),
        (f"host.example/tool:1@{DIGEST}", NONE, f"host.example/tool@{DIGEST}"),
        ("127.0.0.1:5000/tool", NONE, "127.0.0.1:5000/tool:latest"),
        ("localhost:5000/tool", NONE, "localhost:5000/tool:latest"),
        ("docker.io/tool:1", NONE, "docker.io/library/tool:1"),
        ("docker.io/team/tool:1", NONE, "docker.io/team/tool:1"),
        ("tool:1", DEFAULT, "host.example:5000/tool:1"),
        ("tool:1", HUB, "docker.io/library/tool:1"),
    ],
)
def test_a_name_says_its_registry(name: str, settings: RegistrySettings, expected: str) -> None:
    assert str(find_registry(name, settings)) == expected


@pytest.mark.parametrize("name", ["tool", "team/tool:1", f"tool@{DIGEST}", "localhost/tool:1"])
def test_a_name_without_host_belongs_to_no_registry(name: str) -> None:
    assert find_registry(name, NONE) is None
    assert find_registry("localhost/tool:1", DEFAULT) is None


@pytest.mark.parametrize(
    ("name", "insecure", "base"),
    [
        ("host.example/tool", [], "https://host.example"),
        ("host.example:80/tool", [], "https://host.example:80"),
        ("host.example:5000/tool", ["host.example:5000"], "http://host.example:5000"),
        ("host.example:5001/tool", ["host.example:5000"], "https://host.example:5001"),
        ("127.0.0.1:5000/tool", [], "http://127.0.0.1:5000"),
        ("127.9.9.9:5000/tool", [], "http://127.9.9.9:5000"),
        ("localhost:5000/tool", [], "http://localhost:5000"),
        ("localhost.example/tool", [], "https://localhost.example"),
        ("127.0.0.1.example/tool", [], "https://127.0.0.1.example"),
        ("10.0.0.1:5000/tool", [], "https://10.0.0.1:5000"),
    ],
)
def test_only_loopback_and_what_is_named_may_do_without_tls(
    name: str, insecure: list[str], base: str
) -> None:
    settings = RegistrySettings(insecure=frozenset(insecure))
    reference = find_registry(name, settings)
    assert reference is not None
    assert str(reference.base(settings)) == base


def test_the_environment_says_how_registries_are_used() -> None:
    assert RegistrySettings.from_environment({}) == NONE
    read = RegistrySettings.from_environment(
        {
            "CLOCHE_REGISTRY": "host.example:5000",
            "CLOCHE_REGISTRY_INSECURE": "a.example, b.example:80,",
            "CLOCHE_REGISTRY_AUTH": "/auth",
            "DOCKER_CONFIG": "/docker",
        }
    )
    assert (read.default, read.auth_file) == ("host.example:5000", Path("/auth"))
    assert read.insecure == {"a.example", "b.example:80"}
    assert RegistrySettings.from_environment({"DOCKER_CONFIG": "/docker"}).auth_file == Path(
        "/docker/config.json"
    )


@pytest.mark.parametrize("value", ["https://host.example", "host.example/team", "host", "a b.example", "/"])
def test_a_default_registry_that_is_no_host_is_refused(value: str) -> None:
    with pytest.raises(InvalidInput, match="CLOCHE_REGISTRY"):
        RegistrySettings.from_environment({"CLOCHE_REGISTRY": value})


def write(tmp_path: Path, auths: dict[str, object]) -> Path:
    file = tmp_path / "auth.json"
    file.write_text(json.dumps({"auths": auths, "credHelpers": {"other.example": "never-run"}}))
    return file


def auth(text: str) -> dict[str, str]:
    return {"auth": base64.b64encode(text.encode()).decode()}


def test_the_entry_of_the_longest_path_counts(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        {
            "host.example": auth("all:1"),
            "host.example/team": auth("team:2:3"),
            "host.example/te": auth("x:y"),
        },
    )
    assert credentials_for(file, "host.example", "team/tool") == Credentials("team", "2:3")
    assert credentials_for(file, "host.example", "other/tool") == Credentials("all", "1")
    assert credentials_for(file, "host.example:5000", "team/tool") is None
    assert credentials_for(None, "host.example", "team/tool") is None


@pytest.mark.parametrize(
    ("key", "entry", "expected"),
    [
        ("https://index.docker.io/v1/", auth("a:b"), Credentials("a", "b")),
        ("index.docker.io", {"username": "a", "password": "b"}, Credentials("a", "b")),
        ("index.docker.io", {**auth("a:"), "identitytoken": "t"}, Credentials("a", "", "t")),
        ("index.docker.io", {}, None),
    ],
)
def test_each_way_of_writing_credentials_is_read(
    tmp_path: Path, key: str, entry: dict[str, str], expected: Credentials | None
) -> None:
    reference = find_registry("docker.io/tool", NONE)
    assert reference is not None
    file = write(tmp_path, {key: entry})
    assert credentials_for(file, reference.credentials_host, reference.repository) == expected


def test_credentials_are_never_part_of_a_text() -> None:
    secret = Credentials("somebody", "something", "token")
    for word in ("somebody", "something", "token"):
        assert word not in f"{secret} {secret!r}".replace("identity_token", "")
