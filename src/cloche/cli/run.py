"""``cloche run``: from options to a plan, from a plan to a table. Must import what is slow only when used."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from cloche.cli.common import Duration
from cloche.core.errors import ClocheError, InvalidInput

if TYPE_CHECKING:
    from cloche.core.experiment.policy import Policy
    from cloche.experiment.limits import TimeoutRules
    from cloche.experiment.plan import ModelChoice, Plan
    from cloche.experiment.session import Ending
    from cloche.experiment.show import Show
    from cloche.report.summary import Summary
    from cloche.sandbox.driver import Driver


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What was asked for on the command line."""

    paths: tuple[str, ...]
    agents: tuple[str, ...]
    models: tuple[str, ...]
    base_url: str | None
    api_key_env: str
    concurrency: int | None
    repeats: int
    out: str | None
    retries: int
    retry_wait: float
    budgets: tuple[str, ...]
    maxfail: int | None
    timeout_multiplier: float
    limits: dict[str, float | None]
    prices: tuple[str, ...]
    quiet: bool
    json: bool
    driver: str | None = None


LIMITS = {
    "start": "making image and sandbox ready",
    "setup": "preparing the agent",
    "agent": "the agent",
    "verifier": "the verifier",
}


def _limit_options(command: Any) -> Any:
    """Add the options about the time limits of single phases."""
    for phase, what in reversed(LIMITS.items()):
        for kind, text in (
            ("multiplier", f"Times the limit of {what}, instead of --timeout-multiplier."),
            ("timeout-max", f"At most so much for {what}."),
            ("timeout", f"Limit of {what}, instead of the task's."),
        ):
            parameter = click.FloatRange(min=0, min_open=True) if kind == "multiplier" else Duration()
            command = click.option(f"--{phase}-{kind}", type=parameter, help=text)(command)
    return command


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "-a", "--agent", "agents", multiple=True, required=True, help="oracle, nop or loop; repeatable."
)
@click.option("-m", "--model", "models", multiple=True, help="Model; repeatable.  [env: MODEL_NAME]")
@click.option(
    "--base-url", envvar="MODEL_BASE_URL", help="OpenAI-compatible endpoint.  [env: MODEL_BASE_URL]"
)
@click.option(
    "--api-key-env",
    default="MODEL_API_KEY",
    show_default=True,
    metavar="NAME",
    help="Variable that holds the endpoint's key.",
)
@click.option(
    "-n", "--concurrency", type=click.IntRange(min=1), help="Trials at once (default: two per CPU)."
)
@click.option(
    "-k", "--repeats", type=click.IntRange(min=1), default=1, show_default=True, help="Trials of each cell."
)
@click.option("-o", "--out", metavar="DIR", help="Folder of the record (default: runs/<date-time>).")
@click.option(
    "--retries",
    type=click.IntRange(min=0),
    show_default="5",
    help="Further attempts after an infrastructure failure.",
)
@click.option(
    "--retry-wait",
    type=Duration(),
    default="30s",
    show_default=True,
    help="Wait before the first of them; doubles up to 5 min.",
)
@click.option(
    "--budget",
    "budgets",
    multiple=True,
    metavar="LIMIT",
    help="Start nothing more once so much is used: 50usd, 2Mtokens, 3h; repeatable.",
)
@click.option(
    "--maxfail", type=click.IntRange(min=1), metavar="N", help="Start nothing more once N have no verdict."
)
@click.option(
    "--timeout-multiplier",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="Times the time limits of every task.",
)
@_limit_options
@click.option("--driver", help="What makes the sandboxes: local or service (default: as configured).")
@click.option(
    "--price",
    "prices",
    multiple=True,
    metavar="MODEL=IN/OUT",
    help="US$ per million tokens in and out; repeatable.",
)
@click.option("--quiet", is_flag=True, help="Nothing but the table.")
@click.option("--json", "json_", is_flag=True, help="Launch, progress and done records on stdout.")
def run(json_: bool, **options: Any) -> int:
    """Run agents on tasks, each trial in a fresh sandbox.

    PATH is a task's folder or a folder of such folders. The same command on the same folder (-o) runs
    only what has no verdict yet.

    Exit codes: 0 every trial has a verdict, 2 usage, 3 some trial has none, 4 a budget is used up, 5 this
    machine cannot do it, 130 interrupted.
    """
    names = [name for name in options if name.partition("_")[0] in LIMITS]
    limits = {name: options.pop(name) for name in names}
    return _run(_configured(Options(json=json_, limits=limits, **options)))


def _configured(options: Options) -> Options:
    """Fill in from the configuration what no flag has said."""
    from cloche.client.config import load

    flags = {"run.retries": options.retries, "run.concurrency": options.concurrency, "driver": options.driver}
    loaded = load(flags)
    run = loaded.config.run
    return replace(options, retries=run.retries, concurrency=run.concurrency, driver=loaded.driver())


def _run(options: Options) -> int:
    from cloche.experiment.plan import make_plan
    from cloche.tasks import find_tasks

    plan = make_plan(
        find_tasks(options.paths),
        options.agents,
        _models(options),
        repeats=options.repeats,
        policy=_policy(options),
        limits=_limits(options),
    )
    _show_problems(plan)
    if len(plan.refused) == len(plan.trials):
        raise InvalidInput("nothing is left to run", hint="every task was refused; the reasons stand above")
    return _execute(plan, _folder(options.out), options)


def _policy(options: Options) -> Policy:
    from cloche.core.experiment.policy import Policy
    from cloche.core.retry import RetryPolicy
    from cloche.experiment.budget import parse_budget

    return Policy(
        concurrency=options.concurrency or 2 * (os.cpu_count() or 1),
        retry=RetryPolicy(retries=options.retries, first_wait_s=options.retry_wait),
        budget=parse_budget(options.budgets),
        max_unverdicted=options.maxfail,
    )


def _limits(options: Options) -> TimeoutRules:
    from cloche.experiment.limits import PhaseRule, TimeoutRules

    def rule(phase: str) -> PhaseRule:
        return PhaseRule(
            override_s=options.limits.get(f"{phase}_timeout"),
            max_s=options.limits.get(f"{phase}_timeout_max"),
            multiplier=options.limits.get(f"{phase}_multiplier"),
        )

    return TimeoutRules(multiplier=options.timeout_multiplier, **{phase: rule(phase) for phase in LIMITS})


def _models(options: Options) -> list[ModelChoice]:
    from cloche.agents.base import ModelEndpoint, get_agent
    from cloche.experiment.plan import ModelChoice, Price

    if not all(name.strip() for name in options.models):
        raise InvalidInput("-m is empty", hint="give the model's name as its endpoint knows it")
    names = options.models or tuple(filter(None, [os.environ.get("MODEL_NAME")]))
    prices = {name: Price(*pair) for name, pair in map(parse_price, options.prices)}
    unknown = sorted(set(prices) - set(names))
    if unknown:
        raise InvalidInput(f"--price names {unknown[0]!r}, which is no model of this run")
    if not names or options.base_url is None:
        if options.models and any(get_agent(name).needs_model for name in options.agents):
            raise InvalidInput("-m needs an endpoint", hint="give --base-url URL, or set MODEL_BASE_URL")
        return []
    url = _checked_url(options.base_url)
    return [
        ModelChoice(
            ModelEndpoint(base_url=url, model=name, api_key_env=options.api_key_env), prices.get(name)
        )
        for name in dict.fromkeys(names)
    ]


def _checked_url(url: str) -> str:
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise InvalidInput(
            f"{url!r} is not the address of an endpoint", hint="such as http://127.0.0.1:8000/v1"
        )
    if parts.username is not None or parts.query:
        raise InvalidInput(
            "the endpoint's address holds a user, a password or a query",
            hint="put the key into an environment variable and name it with --api-key-env",
        )
    return url


def parse_price(text: str) -> tuple[str, tuple[float, float]]:
    """Read ``MODEL=IN/OUT``; raises InvalidInput for anything else, and for what is no price."""
    import math

    name, equals, pair = text.rpartition("=")
    try:
        prices = [float(part) for part in pair.split("/")]
    except ValueError:
        prices = []
    if not equals or not name or len(prices) != 2 or not all(math.isfinite(p) and p >= 0 for p in prices):
        raise InvalidInput(f"{text!r} is no price", hint="write MODEL=IN/OUT, such as gpt-oss=0.15/0.60")
    return name, (prices[0], prices[1])


def _folder(out: str | None) -> Path:
    if out is not None:
        return Path(out)
    from datetime import datetime

    stamp = datetime.now().astimezone().strftime("%Y-%m-%d-%H%M%S")
    return Path("runs") / stamp


def _show_problems(plan: Plan) -> None:
    from cloche.cli import show_error

    shown = set()
    for trial in plan.refused:
        problem = trial.problem
        if problem is not None and (key := (trial.label, str(problem))) not in shown:
            shown.add(key)
            show_error(problem)
    doubted = {trial.label for trial in plan.trials if trial.task is not None and trial.task.doubts}
    if doubted:
        names = ", ".join(sorted(doubted)[:5])
        more = ", …" if len(doubted) > 5 else ""
        click.echo(f"note: {len(doubted)} of the tasks may not mean what they say: {names}{more}", err=True)
        click.echo("hint: cloche task show PATH says what is doubted", err=True)


def _execute(plan: Plan, folder: Path, options: Options) -> int:
    import asyncio

    from cloche.experiment.signals import Killed

    try:
        ending = asyncio.run(_conduct(plan, folder, options))
    except Killed as killed:
        _leave(killed.exit_code)
    return ending.status


def _leave(status: int) -> NoReturn:
    """End the process at once: work that was cancelled is not waited for."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


async def _conduct(plan: Plan, folder: Path, options: Options) -> Ending:
    from cloche.experiment.images import store_images
    from cloche.experiment.session import Session
    from cloche.experiment.signals import Killed, run_under_signals
    from cloche.report.summary import summarise
    from cloche.sandbox.images.store import ImageStore
    from cloche.sandbox.settings import Settings

    settings = Settings()
    driver = await _driver(options.driver)
    show = _show(plan, options)
    session = Session(plan, folder, driver, store_images(ImageStore(settings)))
    try:
        show.emit("launch", {"folder": str(folder), "trials": len(plan.trials), "pid": os.getpid()})
        async with show.showing():
            ending = await run_under_signals(session, show.watch(), show.known, show.say)
    except Killed as killed:
        _leave(killed.exit_code)
    finally:
        await driver.close()
    _report(show, ending, summarise(ending.outcomes), folder, options)
    return ending


async def _driver(name: str | None) -> Driver:
    if name == "service":
        from cloche.client.config import load
        from cloche.client.driver import ServiceDriver
        from cloche.client.pool import open_backend

        return await ServiceDriver.open(await open_backend(load().service()))
    from cloche.sandbox.drivers.local import LocalDriver
    from cloche.sandbox.settings import Settings

    return LocalDriver(Settings())


def _show(plan: Plan, options: Options) -> Show:
    from rich.console import Console

    from cloche.cli import show_error
    from cloche.experiment.show import Show, Style
    from cloche.report.progress import Progress

    console = Console(stderr=True)
    style = Style.LIVE if console.is_terminal else Style.LINES
    if options.quiet:
        style = Style.QUIET
    if options.json:
        style = Style.JSON
    progress = Progress(total=len(plan.trials))
    return Show(style, progress, console, sys.stdout, show_error)


def _report(show: Show, ending: Ending, summary: Summary, folder: Path, options: Options) -> None:
    from rich.console import Console

    from cloche.report.closing import print_report

    done = {
        "folder": str(folder),
        "status": ending.status,
        "trials": summary.whole.trials,
        "graded": summary.whole.graded,
        "solved": summary.whole.solved,
        "attempts": summary.whole.attempts,
        "sandboxes_left": ending.sandboxes_left,
        "seconds": round(ending.seconds, 3),
    }
    show.emit("done", done)
    if not (options.json and options.quiet):
        print_report(
            Console(stderr=options.json),
            summary,
            folder=str(folder),
            status=ending.status,
            sandboxes_left=ending.sandboxes_left,
            seconds=ending.seconds,
        )
    if ending.unusable is not None:
        from cloche.cli import show_error
        from cloche.core.errors import EnvironmentUnusable

        error: ClocheError = EnvironmentUnusable(ending.unusable.message, code=ending.unusable.code)
        error.hint = "see what this machine can do: cloche doctor"
        show_error(error)
