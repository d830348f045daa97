"""One spelling for each image name, and hints for those that are not there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloche.core.errors import InvalidInput
from cloche.sandbox.images import names


@pytest.mark.parametrize(
    ("given_name", "expected"),
    [
        ("debian", "debian:latest"),
        ("debian:12", "debian:12"),
        ("docker.io/library/debian:12", "debian:12"),
        ("docker.io/team/tool", "team/tool:latest"),
        ("index.docker.io/team/tool:1", "team/tool:1"),
        ("localhost/x:tag", "x:tag"),
        ("registry.example:5000/a/b:1.0_rc", "registry.example:5000/a/b:1.0_rc"),
        ("ghcr.example/team/tool", "ghcr.example/team/tool:latest"),
        ("a__b-c.d/e--f:T", "a__b-c.d/e--f:T"),
    ],
)
def test_a_name_has_one_spelling(given_name: str, expected: str) -> None:
    assert names.normalise(given_name) == expected
    assert names.normalise(expected) == expected


@pytest.mark.parametrize(
    "bad", ["", "Debian:12", "a b", "../etc", "/etc", "a//b", "a:", ":12", "a:b:c", "-a", "a/../b", "x" * 200]
)
def test_what_is_no_name_is_refused(bad: str) -> None:
    with pytest.raises(InvalidInput):
        names.normalise(bad)


PINNED = "sha256:" + "0a" * 32


@pytest.mark.parametrize(
    ("given_name", "expected"),
    [
        (f"tool@{PINNED}", f"tool@{PINNED}"),
        (f"tool:1@{PINNED}", f"tool@{PINNED}"),
        (f"docker.io/library/tool:1@{PINNED}", f"tool@{PINNED}"),
        (f"host.example:5000/a/b@{PINNED}", f"host.example:5000/a/b@{PINNED}"),
    ],
)
def test_a_pinned_name_says_the_digest_and_no_tag(given_name: str, expected: str) -> None:
    assert names.normalise(given_name) == names.normalise(expected) == expected
    assert names.pinned_digest(given_name) == PINNED
    assert names.pinned_digest("tool:1") is None


@pytest.mark.parametrize("bad", ["tool@sha256:0a", "tool@", f"@{PINNED}", f"tool@{PINNED}0", "tool@md5:00"])
def test_a_digest_that_is_none_is_refused(bad: str) -> None:
    with pytest.raises(InvalidInput, match="not an image name"):
        names.normalise(bad)


@given(st.text(alphabet="abz09./:-_@ A", max_size=40))
def test_a_name_that_is_taken_is_safe_and_stable(text: str) -> None:
    try:
        name = names.normalise(text)
    except InvalidInput:
        return
    assert names.normalise(name) == name
    assert ".." not in name.split("/")
    assert not name.startswith("/")


@pytest.mark.parametrize(
    ("text", "digits"),
    [
        ("sha256:" + "ab" * 32, "ab" * 32),
        ("aaf7fb19c90e", "aaf7fb19c90e"),
        ("debian:12", None),
        ("abc", None),
        ("123456789012", None),  # a number may be a name
    ],
)
def test_digests_are_told_from_names(text: str, digits: str | None) -> None:
    assert names.as_digest(text) == digits


@pytest.mark.parametrize(
    ("name", "suite"),
    [
        ("debian:12", "bookworm"),
        ("debian:12-slim", "bookworm"),
        ("debian:bookworm", "bookworm"),
        ("docker.io/library/debian:trixie-slim", "trixie"),
        ("debian:13", "trixie"),
        ("debian:11", None),
        ("debian", None),
        ("ubuntu:12", None),
        ("team/debian:12", None),
    ],
)
def test_debian_releases_are_known_by_number_and_name(name: str, suite: str | None) -> None:
    assert names.debian_suite(name) == suite


def test_all_names_of_a_release_are_aliases() -> None:
    assert set(names.aliases("debian:bookworm")) == {
        "debian:12",
        "debian:bookworm",
        "debian:12-slim",
        "debian:bookworm-slim",
    }
    assert names.aliases("tool") == ("tool:latest",)


def test_the_hint_says_how_to_make_it_or_what_is_near() -> None:
    assert "cloche image bootstrap debian:12" in names.hint_for("debian:12", [])
    assert "tools:1" in names.hint_for("tool:1", ["tools:1", "zebra:9"])
    assert "cloche image import" in names.hint_for("tool:1", [])
    assert "zebra:9" in names.hint_for("unlike-anything:1", ["zebra:9"])
