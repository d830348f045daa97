"""What registries say, read with care: challenges, waits, indexes, manifests, configurations."""

from __future__ import annotations

import contextlib
import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloche.core.errors import InvalidInput
from cloche.sandbox.images.registry import errors, manifests
from cloche.sandbox.images.registry.challenge import WAIT_MAX_S, Challenge, challenges, wait_asked_s
from cloche.sandbox.images.registry.errors import RegistryError
from cloche.sandbox.images.registry.manifests import Platform
from cloche.testing.registries import MANIFEST_TYPE, OCI_INDEX_TYPE, make_image, make_index

DIGEST = "sha256:" + "0a" * 32


def test_challenges_are_read_with_quotes_and_commas() -> None:
    assert challenges(
        ['Bearer realm="https://a.example/t",service="x, y",scope="a\\"b"', "Basic realm=plain", "", "=?"]
    ) == (
        Challenge("bearer", {"realm": "https://a.example/t", "service": "x, y", "scope": 'a"b'}),
        Challenge("basic", {"realm": "plain"}),
    )
    assert challenges(["Basic"]) == (Challenge("basic"),)


@given(st.text(max_size=60))
def test_no_header_makes_the_readers_fail(text: str) -> None:
    challenges([text])
    wait_s = wait_asked_s(text)
    assert wait_s is None or 0 <= wait_s <= WAIT_MAX_S


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("0", 0.0),
        ("37", 37.0),
        ("99999999999999999999", WAIT_MAX_S),
        ("Tue, 01 Dec 2026 03:01:00 GMT", 60.0),
        ("Tue, 01 Dec 2026 02:00:00 GMT", 0.0),
        ("-5", None),
        ("soon", None),
        ("²", None),
        (None, None),
    ],
)
def test_a_wait_is_seconds_or_a_date(header: str | None, expected: float | None) -> None:
    assert wait_asked_s(header, now=datetime(2026, 12, 1, 3, 0, tzinfo=UTC)) == expected


@pytest.mark.parametrize(
    ("wanted", "offered", "chosen"),
    [
        ("linux/amd64", ["linux/arm64", "linux/amd64"], 1),
        ("linux/arm64", ["linux/arm64/v8"], 0),
        ("linux/arm64/v8", ["linux/arm64"], 0),
        ("linux/arm/v7", ["linux/arm/v6", "linux/arm/v7"], 1),
        ("linux/arm/v7", ["linux/arm", "linux/arm/v7"], 1),
        ("linux/arm", ["linux/arm/v6", "linux/arm"], 1),
        ("linux/amd64", ["windows/amd64", "linux/arm64"], None),
        ("linux/arm/v5", ["linux/arm/v6"], None),
    ],
)
def test_the_entry_for_the_platform_is_chosen(wanted: str, offered: list[str], chosen: int | None) -> None:
    images = {text: make_image(text.encode()) for text in offered}
    index = make_index(images)
    assert manifests.is_index(index, OCI_INDEX_TYPE, "it")
    if chosen is None:
        with pytest.raises(RegistryError) as caught:
            manifests.choose(index, Platform.parse(wanted), "it")
        assert caught.value.code == errors.PLATFORM
        assert offered[0] in str(caught.value.hint)
    else:
        found = manifests.choose(index, Platform.parse(wanted), "it")
        assert found.digest == images[offered[chosen]].digest


@pytest.mark.parametrize("text", ["linux", "linux/", "a/b/c/d", "Linux/amd64", "linux/amd 64", ""])
def test_what_is_no_platform_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        Platform.parse(text)


def manifest(**change: object) -> bytes:
    value = json.loads(make_image(b"x", media_type=MANIFEST_TYPE).manifest)
    return json.dumps({**value, **change}).encode()


def row(**change: object) -> dict[str, object]:
    return {"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": DIGEST, "size": 5, **change}


@pytest.mark.parametrize(
    "layers",
    [
        [],
        5,
        [[]],
        [row(size=-1)],
        [row(size=True)],
        [row(size="5")],
        [row(digest="md5:00")],
        [row(digest=DIGEST + "/..")],
        [row(mediaType="application/vnd.in-toto+json")],
        [row(mediaType="application/vnd.docker.image.rootfs.foreign.diff.tar.gzip")],
        [row(mediaType="application/vnd.oci.image.layer.v1.tar+gzip+encrypted")],
        [row()] * 501,
    ],
)
def test_layers_that_cannot_be_had_are_refused(layers: object) -> None:
    assert manifests.read_manifest(manifest(layers=[row()]), "it").layers[0].size_bytes == 5
    with pytest.raises(RegistryError) as caught:
        manifests.read_manifest(manifest(layers=layers), "it")
    assert caught.value.code == errors.NOT_UNDERSTOOD


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "schemaVersion",
                        "mediaType",
                        "layers",
                        "config",
                        "manifests",
                        "digest",
                        "size",
                        "platform",
                        "rootfs",
                        "diff_ids",
                        "Env",
                        "os",
                        "architecture",
                    ]
                ),
                inner,
                max_size=5,
            )
        ),
        max_leaves=20,
    )
)
def test_whatever_a_registry_says_it_is_read_or_refused(value: object) -> None:
    data = json.dumps(value).encode()
    for read in (
        lambda: manifests.is_index(data, MANIFEST_TYPE, "it"),
        lambda: manifests.choose(data, Platform.parse("linux/amd64"), "it"),
        lambda: manifests.read_manifest(data, "it"),
        lambda: manifests.read_configuration(data, 1, "it"),
    ):
        with contextlib.suppress(RegistryError):
            read()
