"""Ctrl-C and SIGTERM during a run: once drains, twice cancels, three times kills; SIGTERM cancels.

Must never leave a sandbox alive: even when killing, all of the experiment's sandboxes are deleted first.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from functools import partial

from cloche.core.errors import ClocheError, EnvironmentUnusable
from cloche.core.failures import classify, first_cause
from cloche.core.outcome import TrialOutcome
from cloche.core.schedule import Stop, after_interrupt, after_terminate
from cloche.core.verdict import INTERRUPTED
from cloche.experiment.runner import Watch
from cloche.experiment.session import Ending, Session

KILL_TIMEOUT_S = 20.0

WORDS = {
    Stop.DRAINING: "draining: running trials finish, nothing new starts; Ctrl-C again cancels them",
    Stop.CANCELLING: "cancelling: running trials end now, their sandboxes are deleted; Ctrl-C again kills",
    Stop.KILLING: "killing: deleting the sandboxes, not waiting for anything else",
}


class Killed(ClocheError):
    """The run was killed."""

    code = "user/interrupted"
    exit_code = INTERRUPTED


class RunFailed(EnvironmentUnusable):
    """The run cannot go on."""


async def run_under_signals(
    session: Session,
    watch: Watch,
    known: Callable[[TrialOutcome], None],
    say: Callable[[str], None],
) -> Ending:
    """Run a session; raises Killed when it was killed, after its sandboxes have been deleted.

    Work of the session may then still be under way: the caller must end the process.
    """
    loop = asyncio.get_running_loop()
    killed = asyncio.Event()

    def stop(step: Callable[[Stop], Stop]) -> None:
        wanted = step(session.stop)
        if wanted is not session.stop:
            say(WORDS[wanted])
        session.halt(wanted)
        if wanted is Stop.KILLING:
            killed.set()

    signals = {signal.SIGINT: after_interrupt, signal.SIGTERM: after_terminate}
    for number, step in signals.items():
        loop.add_signal_handler(number, partial(stop, step))
    run = asyncio.create_task(session.run(watch, known))
    kill = asyncio.create_task(killed.wait())
    try:
        await asyncio.wait({run, kill}, return_when=asyncio.FIRST_COMPLETED)
        if not run.done():
            await _kill(session, say)
            raise Killed
        return _result(run)
    finally:
        kill.cancel()
        for number in signals:
            loop.remove_signal_handler(number)


def _result(run: asyncio.Task[Ending]) -> Ending:
    try:
        return run.result()
    except Exception as error:  # boundary: run
        cause = first_cause(error)
        if isinstance(cause, ClocheError):
            raise cause from error
        found = classify(cause)
        raise RunFailed(f"the run cannot go on: {found.message}", code=found.code) from error


async def _kill(session: Session, say: Callable[[str], None]) -> None:
    try:
        async with asyncio.timeout(KILL_TIMEOUT_S):
            await session.delete_all()
    except Exception as error:  # noqa: BLE001  # boundary: kill
        reason = classify(error)
        say(f"not every sandbox could be deleted: {reason.message} [{reason.code}]")
        say("hint: cloche sandbox reap")
