"""Which images a Dockerfile starts from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloche.core.errors import InvalidInput
from cloche.sandbox.images.dockerfile import base_images, instructions


def bases(text: str, **build_args: str) -> list[str]:
    return [item.name for item in base_images(text, build_args, where="Dockerfile")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("FROM debian:12\n", ["debian:12"]),
        ("from debian:12 as a\nfrom A\n", ["debian:12"]),
        ("FROM scratch\nCOPY x /\n", []),
        ("FROM --platform=linux/amd64 debian:12\n", ["debian:12"]),
        ("FROM a:1 AS x\nFROM b:1\nCOPY --from=x /a /\nCOPY --from=0 /a /\n", ["a:1", "b:1"]),
        ("FROM a:1\nCOPY --chown=1:1 --from=tools:2 /x /x\n", ["a:1", "tools:2"]),
        ("FROM a:1\nRUN --mount=type=bind,from=c:3,target=/x ls\n", ["a:1", "c:3"]),
        ("# FROM no:1\nFROM \\\n  # a comment between\n  a:1 \\\n  AS b\n", ["a:1"]),
        ("FROM a:1\nRUN echo \\\n  FROM no:1\n", ["a:1"]),
        ("FROM a:1\nRUN <<EOF\nFROM no:1\nEOF\nFROM b:1\n", ["a:1", "b:1"]),
        ("# escape=`\nFROM `\n a:1\n", ["a:1"]),
        ("FROM 'a:1'\n", ["a:1"]),
    ],
)
def test_the_images_it_needs(text: str, expected: list[str]) -> None:
    assert bases(text) == expected


def test_arguments_before_the_first_from_have_defaults_and_can_be_given() -> None:
    text = (
        'ARG TAG=12\nARG OTHER\nARG BASE="debian:$TAG"\nFROM ${BASE}\nFROM ${OTHER:-x:1}\nFROM ${TAG:+y:2}\n'
    )
    assert bases(text) == ["debian:12", "x:1", "y:2"]
    assert bases(text, TAG="13", OTHER="z:3") == ["debian:13", "z:3", "y:2"]
    written = [item.written for item in base_images(text, {}, where="Dockerfile")]
    assert written == ["${BASE}", "${OTHER:-x:1}", "${TAG:+y:2}"]


def test_an_argument_given_but_not_declared_is_not_used() -> None:
    with pytest.raises(InvalidInput, match="BASE, which has no value"):
        bases("FROM $BASE\n", BASE="a:1")


def test_a_variable_without_a_value_is_named_with_its_line() -> None:
    with pytest.raises(InvalidInput, match="BASE") as caught:
        bases("# one\nARG BASE\nFROM debian:${BASE}\n")
    assert caught.value.where == "Dockerfile:3"
    assert "--build-arg BASE=" in str(caught.value.hint)


@pytest.mark.parametrize("text", ["", "RUN ls\n", "FROM\n", "FROM a b c d\n", "FROM a b\n"])
def test_what_has_no_readable_from_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        bases(text)


def test_lines_are_counted_over_comments_and_continuations() -> None:
    found = list(instructions("# c\n\nFROM a\nRUN a \\\n b\n\nENV x=y\n"))
    assert [(item.name, item.line) for item in found] == [("FROM", 3), ("RUN", 4), ("ENV", 7)]
    assert found[1].rest.split() == ["a", "b"]


@given(st.text(alphabet="FROM arg$={}\\\n#:-+<>'\"", max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        found = base_images(text, {}, where="Dockerfile")
    except InvalidInput:
        return
    assert all(item.line >= 1 for item in found)
