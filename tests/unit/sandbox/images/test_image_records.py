"""Manifests, names and configurations as data."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloche.core.errors import InvalidInput
from cloche.sandbox.images.buildah import config_from_oci, reference, settings_lines
from cloche.sandbox.images.debian import Recipe
from cloche.sandbox.images.records import Layer, Manifest, NameRecord
from cloche.sandbox.spec import ImageConfig

CONFIG = ImageConfig(env={"A": "b"}, user="joe", workdir="/w", entrypoint=("a", "b"), cmd=("c",))
LAYERS = (Layer(digest="x", path="layers/x", size_bytes=3), Layer(digest="y", path="layers/y", size_bytes=4))


def test_a_manifest_survives_its_json() -> None:
    manifest = Manifest(layers=LAYERS, config=CONFIG)
    again = Manifest.from_json(json.loads(json.dumps(manifest.to_json())))
    assert again == manifest
    assert again.digest == manifest.digest
    assert manifest.size_bytes == 7


def test_the_digest_is_of_content_alone() -> None:
    manifest = Manifest(layers=LAYERS, config=CONFIG)
    moved = Manifest(layers=tuple(dataclasses.replace(x, path="elsewhere") for x in LAYERS), config=CONFIG)
    assert moved.digest == manifest.digest
    assert Manifest(layers=LAYERS[::-1], config=CONFIG).digest != manifest.digest
    for change in ({"user": "x"}, {"env": {}}, {"workdir": "/"}, {"entrypoint": ()}, {"cmd": ()}):
        assert Manifest(layers=LAYERS, config=dataclasses.replace(CONFIG, **change)).digest != manifest.digest


def test_a_name_survives_its_json() -> None:
    record = NameRecord(name="a:1", digest="sha256:0", origin="built", created_at=1.5, details={"k": [1]})
    assert NameRecord.from_json(json.loads(json.dumps(record.to_json()))) == record


def test_an_oci_configuration_is_read() -> None:
    config = config_from_oci(
        {
            "User": "joe:staff",
            "Env": ["PATH=/bin", "EQ=a=b", "EMPTY="],
            "WorkingDir": "/w",
            "Entrypoint": ["sh", "-c"],
            "Cmd": ["x"],
        }
    )
    assert config == ImageConfig(
        env={"PATH": "/bin", "EQ": "a=b", "EMPTY": ""},
        user="joe:staff",
        workdir="/w",
        entrypoint=("sh", "-c"),
        cmd=("x",),
    )
    assert config_from_oci({}) == ImageConfig()
    assert config_from_oci({"Env": None, "Cmd": None, "WorkingDir": ""}) == ImageConfig()


def test_a_base_is_described_to_buildah_without_expanding_anything() -> None:
    text = settings_lines(
        ImageConfig(env={"Q": 'a $b "c" \\d'}, user="joe", workdir="/a b", entrypoint=("x", "$y"))
    )
    assert text.splitlines() == [
        'ENV Q="a \\$b \\"c\\" \\\\d"',
        'USER "joe"',
        'WORKDIR "/a b"',
        'ENTRYPOINT ["x", "$y"]',
    ]
    assert reference("sha256:ab") == "localhost/cloche:ab"


def test_a_value_that_no_dockerfile_can_hold_is_refused() -> None:
    with pytest.raises(InvalidInput, match="line break"):
        settings_lines(ImageConfig(env={"A": "x\ny"}))


RECIPE = Recipe(
    suite="bookworm",
    packages=("jq",),
    source_lines=("deb http://mirror.example/debian bookworm main",),
    apt_options=(),
    authorities=(),
    architecture="amd64",
    tool="mmdebstrap 1",
)


@given(st.sampled_from([field.name for field in dataclasses.fields(Recipe)]), st.text(min_size=1))
def test_the_cache_key_changes_with_every_part_of_the_recipe(name: str, text: str) -> None:
    old = getattr(RECIPE, name)
    changed = dataclasses.replace(RECIPE, **{name: (*old, text) if isinstance(old, tuple) else old + text})
    assert changed.key != RECIPE.key
    assert dataclasses.replace(RECIPE).key == RECIPE.key


def test_the_environment_for_authorities_is_there_only_where_it_is_needed() -> None:
    assert set(RECIPE.config.env) == {"PATH"}
    with_authority = dataclasses.replace(RECIPE, authorities=("pem",))
    assert set(with_authority.config.env) > {"PATH", "PIP_CERT"}
    assert with_authority.details()["authorities"] != ["pem"]
