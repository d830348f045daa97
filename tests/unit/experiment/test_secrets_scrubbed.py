"""Values of the host's environment leave the record: from texts, and from every file below a folder."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from cloche.agents.base import ModelEndpoint
from cloche.experiment.plan import ModelChoice, make_plan
from cloche.experiment.secrets import Scrubber, secret_values
from cloche.tasks import load_task

MakeTask = Callable[..., Path]
CANARY = "sk-canary-0123456789"


def test_a_text_loses_its_secrets() -> None:
    scrub = Scrubber({"KEY": CANARY, "LONGER": CANARY + "-x"})
    assert scrub.text(f"a {CANARY} b {CANARY}-x") == "a ${KEY} b ${LONGER}"
    assert scrub
    assert not Scrubber({})
    assert not Scrubber({"WORD": "short"})


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_a_file_loses_them_wherever_they_stand(before: bytes, after: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "deep").mkdir()
        path = folder / "deep" / "log"
        path.write_bytes(before + CANARY.encode() + after)
        assert Scrubber({"KEY": CANARY}).tree(folder) == 1
        assert CANARY.encode() not in path.read_bytes()
        assert path.read_bytes().startswith(before[:10])


def test_a_secret_across_two_blocks_is_found(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(b"x" * ((1 << 20) - 5) + CANARY.encode() + b"y" * 100)
    assert Scrubber({"KEY": CANARY}).tree(tmp_path) == 1
    assert CANARY.encode() not in path.read_bytes()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text(CANARY)
    folder = tmp_path / "trial"
    folder.mkdir()
    (folder / "link").symlink_to(outside)
    assert Scrubber({"KEY": CANARY}).tree(folder) == 0
    assert outside.read_text() == CANARY


def test_what_a_plan_takes_from_the_host(make_task: MakeTask) -> None:
    toml = (
        '[environment]\ndocker_image = "x:1"\n'
        '[environment.env]\nA = "${TOKEN}"\nB = "${OTHER:-none}"\nC = "plain"\n'
        '[verifier.env]\nD = "${JUDGE}"\n'
    )
    environ = {"TOKEN": "t" * 9, "JUDGE": "j" * 9, "MODEL_API_KEY": "k" * 9, "HOME": "/somewhere"}
    endpoint = ModelEndpoint(base_url="http://x/v1", model="m", api_key_env="MODEL_API_KEY")
    plan = make_plan([load_task(make_task(toml=toml))], ["loop"], [ModelChoice(endpoint)], environ=environ)
    assert secret_values(plan, environ) == {
        "JUDGE": "j" * 9,
        "MODEL_API_KEY": "k" * 9,
        "TOKEN": "t" * 9,
    }
