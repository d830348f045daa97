"""The scripted model server as a program; see the package. Must never outlive the command it was given.

With a command, its environment gets MODEL_BASE_URL and MODEL_API_KEY, and its exit status is the program's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from cloche.core.errors import ClocheError
from cloche.testing.model_server import ScriptedModelServer, load_scripts


def _parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    own, command = list(arguments), []
    if "--" in own:
        split = own.index("--")
        own, command = own[:split], own[split + 1 :]
    parser = argparse.ArgumentParser(
        prog="python -m cloche.testing.model_server",
        description="Serve scripted models in OpenAI's chat format.",
        epilog="With `-- COMMAND…`, run it with MODEL_BASE_URL set and exit with its status.",
    )
    parser.add_argument(
        "--scripts", type=Path, required=True, help="folder with a folder of *.toml per model"
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--ledger", type=Path, help="write what was served to this file at the end, as JSON")
    return parser.parse_args(own), command


async def _run_command(command: Sequence[str], base_url: str) -> int:
    """Run it to its end. What asks us to stop is passed on: a Ctrl-C reaches it from the terminal anyway."""
    stop = _stop_event(signal.SIGTERM)
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, lambda: None)
    environment = {**os.environ, "MODEL_BASE_URL": base_url, "MODEL_API_KEY": "unused"}
    process = await asyncio.create_subprocess_exec(*command, env=environment)

    async def pass_on() -> None:
        await stop.wait()
        process.terminate()

    passing_on = asyncio.create_task(pass_on())
    status = await process.wait()
    passing_on.cancel()
    return status if status >= 0 else 128 - status


def _stop_event(*numbers: signal.Signals) -> asyncio.Event:
    """Return an event that is set by any of these signals."""
    stop = asyncio.Event()
    for number in numbers:
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


async def serve(options: argparse.Namespace, command: Sequence[str]) -> int:
    """Serve until the command ends or a signal comes; return the exit status. Raises ClocheError, OSError."""
    scripts = load_scripts(options.scripts)
    async with ScriptedModelServer(scripts, host=options.host, port=options.port) as server:
        stop = asyncio.Event() if command else _stop_event(signal.SIGINT, signal.SIGTERM)
        # standard output is the command's where there is one
        stream = sys.stderr if command else sys.stdout
        stream.write(f"scripted models at {server.base_url}\n")
        stream.flush()
        if command:
            status = await _run_command(command, server.base_url)
        else:
            await stop.wait()
            status = 0
        ledger = server.ledger.as_dict()
    if options.ledger is not None:
        options.ledger.write_text(json.dumps(ledger, indent=2) + "\n")
    return status


def main(arguments: Sequence[str]) -> int:
    """Run the program and return its exit status: 2 for bad scripts, 127 for no such command."""
    options, command = _parse(arguments)
    try:
        return asyncio.run(serve(options, command))
    except ClocheError as error:
        where = f"\n  {error.where}" if error.where else ""
        sys.stderr.write(f"error: {error.message}{where}\n")
        return error.exit_code
    except OSError as error:
        sys.stderr.write(f"error: {error}\n")
        return 127 if isinstance(error, FileNotFoundError) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
