"""The loop agent talks to a real language model, small and local, and is counted to the token.

Nothing is asked of the model's skill. Its words are real, and so are its server, its tokens and the server's
counters. It knows no tool calls, so each answer is held to a schema and handed on as a call.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import subprocess
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from cloche.testing.experiments import PROGRAM, Installation, MakeTask

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SERVE = Path(__file__).parent / "peers" / "serve_model.py"
PARALLEL = 2
ACTIONS = 2
START_MAX_S = 120.0

_COMMAND = {"type": "string", "pattern": "^(ls|cat|echo|touch|wc) [a-z/. ]{1,24}$"}
_SUMMARY = {"type": "string", "pattern": "^[A-Z][a-z ]{4,40}[.]$"}


@dataclass(slots=True)
class Adapter:
    """Stands between the agent and a model that knows no tool calls.

    The first ``ACTIONS`` answers of a conversation are held to be a command, and are handed on as a call of
    the tool ``bash``; the next one to be a summary, which ends the work. Usage is passed on as the model's
    server gave it, and noted.
    """

    upstream: str
    session: aiohttp.ClientSession
    usages: list[dict[str, Any]] = field(default_factory=list)

    async def complete(self, request: web.Request) -> web.Response:
        """Answer one request; one that did not ask for a stream and one that did get the same body."""
        asked = await request.json()
        assert "bash" in [tool["function"]["name"] for tool in asked["tools"]]
        acting = sum(message["role"] == "assistant" for message in asked["messages"]) < ACTIONS
        name, rule = ("command", _COMMAND) if acting else ("summary", _SUMMARY)
        schema = {"type": "object", "properties": {name: rule}, "required": [name]}
        body = {
            "model": asked["model"],
            "messages": [_plain(message) for message in asked["messages"]],
            "response_format": {"type": "json_schema", "json_schema": {"name": name, "schema": schema}},
            "max_tokens": 128,
            "temperature": 0,
        }
        async with self.session.post(f"{self.upstream}/v1/chat/completions", json=body) as response:
            answer = await response.json()
        if response.status != 200:
            return web.json_response(answer, status=response.status)
        self.usages.append(answer["usage"])
        (choice,) = answer["choices"]
        said = json.loads(choice["message"]["content"])
        if acting:
            function = {"name": "bash", "arguments": json.dumps({"command": said["command"]})}
            calls = [{"id": "call_0", "type": "function", "function": function}]
            choice |= {"message": {"role": "assistant", "tool_calls": calls}, "finish_reason": "tool_calls"}
        else:
            choice["message"]["content"] = said["summary"]
        return web.json_response(answer)

    def served(self, name: str) -> int:
        """Return the sum of a figure over all answers."""
        return sum(usage[name] for usage in self.usages)

    @property
    def cached(self) -> int:
        """How many of the prompt tokens the server had in its cache."""
        return sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in self.usages)


def _plain(message: dict[str, Any]) -> dict[str, str]:
    """Return a message for a model that knows only what users and assistants say."""
    if message["role"] == "tool":
        return {"role": "user", "content": f"Output:\n{message['content']}"}
    if message.get("tool_calls"):
        (call,) = message["tool_calls"]
        return {"role": "assistant", "content": call["function"]["arguments"]}
    return {"role": message["role"], "content": message["content"]}


@contextlib.asynccontextmanager
async def model_server(python: Path, log: Path) -> AsyncIterator[str]:
    """Run the model's server in a process of its own and give its address; it has ended afterwards."""
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            python,
            SERVE,
            str(PARALLEL),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={"PATH": os.environ["PATH"], "HF_HUB_OFFLINE": "1"},
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_MAX_S):
            address = (await process.stdout.readline()).decode().strip()
        assert address.startswith("http://127.0.0.1:"), f"it did not come up: {log}"
        yield address
        process.stdin.close()
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@contextlib.asynccontextmanager
async def adapter(upstream: str) -> AsyncIterator[tuple[Adapter, str]]:
    """Serve an adapter and give it with its address."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
        between = Adapter(upstream, session)
        application = web.Application(client_max_size=16 << 20)
        application.router.add_post("/v1/chat/completions", between.complete)
        runner = web.AppRunner(application)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            yield between, f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        finally:
            await runner.cleanup()


async def counters(address: str) -> dict[str, int]:
    """Return what llama.cpp's server has counted by itself, over all requests."""
    async with aiohttp.ClientSession() as session, session.get(f"{address}/metrics") as response:
        assert response.status == 200
        rows = re.findall(r"^llamacpp:(\w+_total) (\d+)$", await response.text(), re.MULTILINE)
    return {name: int(value) for name, value in rows}


async def run(installation: Installation, *arguments: str) -> None:
    """Run ``cloche run`` to a good end."""
    process = await asyncio.create_subprocess_exec(
        *PROGRAM,
        "run",
        *arguments,
        env=installation.environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    assert process.returncode == 0, output.decode()


async def test_a_real_model_works_is_recorded_and_is_counted_to_the_token(
    peer: Callable[[str], Path], installation: Installation, make_task: MakeTask, tmp_path: Path
) -> None:
    python = (await asyncio.to_thread(peer, "real-model")) / "bin" / "python"
    out = tmp_path / "out"
    task = make_task("words", agent_s=600.0)
    async with model_server(python, tmp_path / "model.log") as address, adapter(address) as (between, url):
        options = ["-a", "loop", "-m", "smollm2", "--base-url", url, "-k", "2", "-o", str(out), "--quiet"]
        await run(installation, str(task), *options)
        counted = await counters(address)

    # the server's own counters say what its answers said
    answers = PARALLEL * (ACTIONS + 1)
    assert len(between.usages) == answers
    prompt, cached, completion = (
        between.served("prompt_tokens"),
        between.cached,
        between.served("completion_tokens"),
    )
    assert counted["prompt_tokens_total"] + counted["prompt_tokens_cached_total"] == prompt > 0
    assert counted["prompt_tokens_cached_total"] == cached
    assert counted["tokens_predicted_total"] == completion > 0

    # and so does every place of the record
    attempts = [json.loads(path.read_bytes()) for path in out.glob("*/attempt.json")]
    assert len(attempts) == 2
    ours = {
        "input_tokens": prompt,
        "cached_tokens": cached,
        "output_tokens": completion,
        "model_calls": answers,
    }
    assert {name: sum(attempt["usage"][name] for attempt in attempts) for name in ours} == ours
    harbors = {"n_input_tokens": prompt, "n_cache_tokens": cached, "n_output_tokens": completion}
    results = [json.loads(path.read_bytes())["agent_result"] for path in out.glob("*/result.json")]
    assert {name: sum(result[name] for result in results) for name in harbors} == harbors
    stats = json.loads((out / "result.json").read_bytes())["stats"]
    assert {name: stats[name] for name in harbors} == harbors
    assert stats["n_completed_trials"] == 2
    assert stats["n_errored_trials"] == 0

    trajectories = [json.loads(path.read_bytes()) for path in out.glob("*/agent/trajectory.json")]
    totals = [trajectory["final_metrics"] for trajectory in trajectories]
    assert sum(total["total_prompt_tokens"] for total in totals) == prompt
    assert sum(total["total_completion_tokens"] for total in totals) == completion
    for trajectory in trajectories:
        acts = [step for step in trajectory["steps"] if step["source"] == "agent"]
        assert len(acts) == ACTIONS + 1
        commands = [call["arguments"]["command"] for act in acts for call in act.get("tool_calls", [])]
        assert len(commands) == ACTIONS
        assert all(re.fullmatch(_COMMAND["pattern"], command) for command in commands), "really carried out"
        assert acts[-1]["message"].endswith(".")
