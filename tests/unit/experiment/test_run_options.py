"""Options of ``cloche run`` that are read by hand, and the image of a task."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloche.cli import run as run_module
from cloche.cli.run import Options, _folder, _models, parse_price
from cloche.core.errors import ImageError, InvalidInput
from cloche.experiment import images as images_module
from cloche.experiment.images import BUILDS_AT_ONCE, store_images
from cloche.experiment.limits import PhaseRule
from cloche.sandbox.images import BuildRequest, ImageStore
from cloche.sandbox.settings import Settings
from cloche.sandbox.spec import PreparedImage
from cloche.tasks import Task, load_task

MakeTask = Callable[..., Path]


def _options(**more: object) -> Options:
    values: dict[str, object] = {
        "paths": ("x",),
        "agents": ("loop",),
        "models": ("m",),
        "base_url": "http://127.0.0.1:1/v1",
        "api_key_env": "MODEL_API_KEY",
        "concurrency": None,
        "repeats": 1,
        "out": None,
        "retries": 1,
        "retry_wait": 1.0,
        "budgets": (),
        "maxfail": None,
        "timeout_multiplier": 1.0,
        "limits": {},
        "prices": (),
        "quiet": False,
        "json": False,
        **more,
    }
    return Options(**values)  # type: ignore[arg-type]


prices = st.floats(0, 1e6, allow_nan=False)


@given(st.text(min_size=1, max_size=40), prices, prices)
def test_a_price_is_read(name: str, first: float, second: float) -> None:
    assert parse_price(f"{name}={first!r}/{second!r}") == (name, (first, second))


@given(st.text(max_size=40))
def test_whatever_is_typed_is_a_price_or_refused(text: str) -> None:
    try:
        name, pair = parse_price(text)
    except InvalidInput:
        return
    assert name
    assert all(math.isfinite(value) and value >= 0 for value in pair)


@pytest.mark.parametrize(
    "text", ["", "m", "m=", "m=1", "m=1/2/3", "=1/2", "m=-1/2", "m=inf/1", "m=nan/1", "m=a/b"]
)
def test_what_is_no_price(text: str) -> None:
    with pytest.raises(InvalidInput, match="is no price"):
        parse_price(text)


def test_models_come_from_options_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_NAME", "from-env")
    assert [model.name for model in _models(_options(models=()))] == ["from-env"]
    assert [model.name for model in _models(_options(models=("a", "b", "a")))] == ["a", "b"]
    monkeypatch.delenv("MODEL_NAME")
    assert _models(_options(models=(), base_url=None)) == []
    assert _models(_options(models=())) == []


@pytest.mark.parametrize("name", ["", "  "])
def test_a_model_without_a_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="-m is empty"):
        _models(_options(models=("m", name)))


def test_only_agents_that_ask_a_model_need_an_endpoint() -> None:
    assert _models(_options(agents=("oracle", "nop"), base_url=None)) == []
    with pytest.raises(InvalidInput, match="-m needs an endpoint"):
        _models(_options(agents=("oracle", "loop"), base_url=None))


def test_a_price_reaches_its_model() -> None:
    (model,) = _models(_options(prices=("m=0.15/0.60",)))
    assert model.price is not None
    assert (model.price.input_usd, model.price.output_usd) == (0.15, 0.6)
    assert model.endpoint.api_key_env == "MODEL_API_KEY"


@pytest.mark.parametrize("url", ["", "x", "http://", "ftp://host/v1", "http://[::1/v1", "http://h:0/v1"])
def test_what_is_no_endpoint(url: str) -> None:
    with pytest.raises(InvalidInput, match="not the address of an endpoint"):
        _models(_options(base_url=url))


@pytest.mark.parametrize("url", ["http://joe@h/v1", "http://:pw@h/v1", "https://h/v1?key=x"])
def test_a_credential_in_an_address_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        _models(_options(base_url=url))
    assert "pw" not in str(caught.value)
    assert "key=x" not in str(caught.value)


def test_the_folder_is_named_after_the_time() -> None:
    assert _folder("here") == Path("here")
    assert re.fullmatch(r"runs/\d{4}-\d\d-\d\d-\d{6}", str(_folder(None)))


async def test_a_missing_image_is_infrastructure(tmp_path: Path, task: Task) -> None:
    store = ImageStore(Settings(state_dir=tmp_path / "s", run_dir=tmp_path / "r"))
    with pytest.raises(ImageError, match="there is no image fake:1") as caught:
        await store_images(store)(task, 10.0)
    assert caught.value.where == str(task.path)


async def test_a_pull_has_the_limit_of_its_task(
    tmp_path: Path, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str | BuildRequest, float]] = []

    async def note(_store: ImageStore, wanted: str | BuildRequest, *, timeout_s: float) -> PreparedImage:
        await asyncio.sleep(0)
        seen.append((wanted, timeout_s))
        return PreparedImage(name="x", digest="sha256:0", layers=())

    monkeypatch.setattr(images_module, "prepare", note)
    store = ImageStore(Settings(state_dir=tmp_path / "s", run_dir=tmp_path / "r"))
    await store_images(store)(task, 33.0)
    assert seen == [("fake:1", 33.0)]


async def test_few_builds_at_a_time_each_with_its_limit(
    tmp_path: Path, make_task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    going, most, now = asyncio.Event(), 0, 0
    seen: list[BuildRequest] = []

    async def slow(_store: ImageStore, wanted: str | BuildRequest) -> PreparedImage:
        nonlocal most, now
        assert isinstance(wanted, BuildRequest)
        seen.append(wanted)
        now += 1
        most = max(most, now)
        await going.wait()
        now -= 1
        return PreparedImage(name="x", digest="sha256:0", layers=())

    monkeypatch.setattr(images_module, "prepare", slow)
    task = load_task(make_task(toml="", **{"environment/Dockerfile": "FROM x\n"}))
    prepare = store_images(ImageStore(Settings(state_dir=tmp_path / "s", run_dir=tmp_path / "r")))
    builds = [asyncio.create_task(prepare(task, 33.0)) for _ in range(6)]
    for _ in range(20):
        await asyncio.sleep(0)
    assert most == BUILDS_AT_ONCE
    going.set()
    await asyncio.gather(*builds)
    assert {request.timeout_s for request in seen} == {33.0}
    assert {request.context for request in seen} == {task.path / "environment"}


def test_limits_of_phases_come_from_options(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Options] = []

    def note(options: Options) -> int:
        seen.append(options)
        return 0

    monkeypatch.setattr(run_module, "_run", note)
    arguments = [
        "x",
        "-a",
        "nop",
        "--timeout-multiplier",
        "2",
        "--agent-timeout",
        "5m",
        "--agent-timeout-max",
    ]
    run_module.run.main([*arguments, "1h", "--verifier-multiplier", "0.5"], standalone_mode=False)
    rules = run_module._limits(seen[0])
    assert rules.multiplier == 2.0
    assert rules.agent == PhaseRule(override_s=300.0, max_s=3600.0)
    assert rules.verifier == PhaseRule(multiplier=0.5)
    assert rules.start == rules.setup == PhaseRule()
