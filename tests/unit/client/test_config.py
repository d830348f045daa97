"""Which source of a setting wins, what is refused and where it says so, and where a key may go."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from cloche.client.config import Loaded, keys, load, variable_of
from cloche.client.contexts import Context, Contexts
from cloche.core.errors import InvalidInput, NotFound

KEY = "sk-very-secret"


class Place:
    """A project folder and a home with what a test writes into them."""

    def __init__(self, root: Path) -> None:
        self.project = root / "project" / "deep"
        self.project.mkdir(parents=True)
        self.home = root / "home"
        self.user = self.home / ".config" / "cloche" / "config.toml"
        self.user.parent.mkdir(parents=True)
        self.file = root / "project" / "cloche.toml"
        self.contexts = Contexts(self.user.parent)

    def load(self, flags: dict[str, Any] | None = None, **environ: str) -> Loaded:
        return load(flags, environ={"HOME": str(self.home), **environ}, folder=self.project)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_nothing_said_is_this_machine(place: Place) -> None:
    loaded = place.load()
    assert not loaded.said
    assert loaded.service().url is None
    assert (loaded.config.run.retries, loaded.config.sandbox.network) == (5, "none")


def test_each_source_is_stronger_than_the_one_before(place: Place) -> None:
    place.file.write_text("[run]\nretries = 2\nconcurrency = 2\n[sandbox]\npids = 2\ncpus = 2\n")
    place.user.write_text("[run]\nretries = 3\nconcurrency = 3\n[sandbox]\npids = 3\n")
    loaded = place.load(
        {"run.retries": 5, "sandbox.memory": None}, CLOCHE_RUN_CONCURRENCY="4", CLOCHE_RUN_RETRIES="4"
    )
    config = loaded.config
    assert (config.run.retries, config.run.concurrency, config.sandbox.pids, config.sandbox.cpus) == (
        5,
        4,
        3,
        2,
    )
    sources = {key: setting.source for key, setting in loaded.said.items()}
    assert sources == {
        "run.retries": "--retries",
        "run.concurrency": "CLOCHE_RUN_CONCURRENCY",
        "sandbox.pids": f"{place.user}:5",
        "sandbox.cpus": f"{place.file}:6",
    }


@pytest.mark.fault("config-unknown-key")
@pytest.mark.parametrize(
    ("text", "line", "near"),
    [
        ("[run]\nretires = 2\n", 2, "run.retries"),
        ("\n\nurll = 'http://x'\n", 3, "url"),
        ("[sandbox]\ncpus = 1\n[sandbx]\nmemory = '1g'\n", 4, "sandbox.memory"),
    ],
)
def test_an_unknown_key_names_the_nearest(place: Place, text: str, line: int, near: str) -> None:
    place.file.write_text(text)
    with pytest.raises(InvalidInput) as caught:
        place.load()
    assert caught.value.where == f"{place.file}:{line}"
    assert caught.value.hint == f"did you mean {near}?"


@pytest.mark.fault("config-key-in-file")
@pytest.mark.parametrize("whose", ["file", "user"])
def test_a_key_in_a_file_is_refused_with_its_line(place: Place, whose: str) -> None:
    path: Path = getattr(place, whose)
    path.write_text(f'url = "http://127.0.0.1:1"\n\nkey = "{KEY}"\n')
    with pytest.raises(InvalidInput) as caught:
        place.load()
    assert caught.value.where == f"{path}:3"
    assert KEY not in f"{caught.value} {caught.value.hint}"


@pytest.mark.fault("config-key-to-foreign-address")
def test_a_key_never_goes_to_an_address_that_a_folder_names(place: Place) -> None:
    place.file.write_text('url = "http://127.0.0.1:9"\n')
    assert place.load().service().key is None
    with pytest.raises(InvalidInput, match="gets no key") as caught:
        place.load(CLOCHE_KEY=KEY).service()
    assert KEY not in str(caught.value)
    service = place.load(CLOCHE_KEY=KEY, CLOCHE_URL="http://127.0.0.1:8").service()
    assert (service.url, service.key) == ("http://127.0.0.1:8", KEY)
    place.contexts.add("mine", Context(url="http://127.0.0.1:7", key="its-own"))
    place.contexts.use("mine")
    service = place.load().service()
    assert (service.url, service.key) == ("http://127.0.0.1:7", "its-own")


@pytest.mark.fault("key-in-clear")
def test_a_key_goes_unencrypted_to_this_machine_only(place: Place) -> None:
    for url in ("http://example.org", "http://192.0.2.7:80", "http://[2001:db8::1]"):
        with pytest.raises(InvalidInput, match="unencrypted"):
            place.load(CLOCHE_URL=url, CLOCHE_KEY=KEY).service()
        assert place.load(CLOCHE_URL=url).service().url == url
        assert place.load(CLOCHE_URL=url, CLOCHE_KEY=KEY, CLOCHE_ALLOW_PLAIN_HTTP="1").service().key == KEY
    for url in ("http://localhost:1", "http://[::1]:1", "https://example.org"):
        assert place.load(CLOCHE_URL=url, CLOCHE_KEY=KEY).service().key == KEY


def test_a_stronger_source_chooses_between_address_and_context(place: Place) -> None:
    place.contexts.add("far", Context(url="https://far.example", key=KEY))
    place.file.write_text('context = "far"\n')
    assert place.load().service().url == "https://far.example"
    assert place.load(CLOCHE_URL="http://127.0.0.1:3").service().key is None
    with pytest.raises(InvalidInput, match="both"):
        place.load({"url": "http://127.0.0.1:3", "context": "far"}).service()
    with pytest.raises(NotFound, match="near"):
        place.load(CLOCHE_CONTEXT="near").service()


def test_the_driver_follows_the_service(place: Place) -> None:
    assert place.load().driver() == "local"
    assert place.load(CLOCHE_URL="http://127.0.0.1:3").driver() == "service"
    assert place.load({"driver": "local"}, CLOCHE_URL="http://127.0.0.1:3").driver() == "local"
    with pytest.raises(InvalidInput, match="no service"):
        place.load({"driver": "service"}).driver()
    with pytest.raises(InvalidInput, match="no driver"):
        place.load({"driver": "warp"}).driver()


@pytest.mark.parametrize("url", ["ftp://x", "nonsense", "http://", "http://u:p@host", "http://h/?key=1"])
def test_an_address_that_is_none_is_refused_without_showing_it(place: Place, url: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        place.load(CLOCHE_URL=url)
    assert "u:p" not in str(caught.value)


def test_a_value_of_the_wrong_kind_names_its_source(place: Place) -> None:
    with pytest.raises(InvalidInput) as caught:
        place.load(CLOCHE_RUN_RETRIES="often")
    assert caught.value.where == "CLOCHE_RUN_RETRIES"
    place.file.write_text("[sandbox]\nnetwork = 'all'\n")
    with pytest.raises(InvalidInput) as caught:
        place.load()
    assert caught.value.where == f"{place.file}:2"


def test_the_file_of_contexts_is_its_owners_alone(place: Place) -> None:
    place.contexts.add("one", Context(url="http://127.0.0.1:1", key=KEY))
    assert place.contexts.path.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in place.contexts.path.parent.iterdir()] == ["contexts.json"]
    place.contexts.path.chmod(0o640)
    with pytest.raises(InvalidInput, match="read by others"):
        place.contexts.current()
    place.contexts.path.chmod(0o600)
    place.contexts.use("one")
    place.contexts.remove("one")
    assert place.contexts.current() is None
    assert KEY not in place.contexts.path.read_text()
    with pytest.raises(NotFound):
        place.contexts.remove("one")


def test_a_key_shows_nowhere(place: Place) -> None:
    loaded = place.load(CLOCHE_KEY=KEY, CLOCHE_URL="http://127.0.0.1:1")
    assert KEY not in repr(loaded.config)
    assert KEY not in repr(loaded.service())
    assert KEY not in repr(Context(url="http://127.0.0.1:1", key=KEY))


def test_every_setting_has_a_variable_and_a_line_in_the_docs() -> None:
    page = (Path(__file__).parents[3] / "docs" / "configuration.md").read_text()
    for key in keys():
        assert f"`{key}`" in page
        assert f"`{variable_of(key)}`" in page
    assert os.environ.get("CLOCHE_KEY") is None, "a key of the tester's own would go to test servers"
