"""Test logs and metrics of calls: complete, and without prompts or tokens."""

import json
import logging
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from pentimento.domain import errors
from pentimento.domain.tenants import Role
from pentimento.rpc import RpcServerSettings, new_token, token_entry
from pentimento.telemetry import LogFormat, LogLevel, configure_logging
from tests.contract.rpc.scripted import EMBED_TEXT, Scripted, channel_to, embed, serving
from tests.support.waiting import until

CANARY_PROMPT = "canary-prompt-5f1e"


@pytest.fixture
def process_logging(capfd: pytest.CaptureFixture[str]) -> Iterator[Callable[[LogFormat], None]]:
    """Configure logging as a process does, at its lowest level, and restore pytest's handlers afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield lambda log_format: configure_logging("scripted", "scripted-1", LogLevel.DEBUG, log_format)
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


async def refused(target: Scripted, token: str | None, *texts: str) -> grpc.aio.AioRpcError:
    async with channel_to(target, token=token) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await embed(channel, *texts)
    return caught.value


@pytest.mark.parametrize("log_format", list(LogFormat))
async def test_no_prompt_and_no_token_in_logs_metrics_or_errors(
    socket_path: Path,
    tmp_path: Path,
    process_logging: Callable[[LogFormat], None],
    capfd: pytest.CaptureFixture[str],
    log_format: LogFormat,
) -> None:
    process_logging(log_format)
    token, wrong = new_token(), new_token()
    file = tmp_path / "tokens.toml"
    file.write_text(token_entry(token, "canary-tenant", frozenset({Role.SERVICE})))
    settings = RpcServerSettings(listen=(f"unix:{socket_path}",), token_file=file, metrics_listen="127.0.0.1:0")

    async def quote(request: object) -> str:
        raise ValueError(f"cannot embed {request}")

    async with serving(settings) as target:
        target.embedder.embed = quote
        failures = [
            await refused(target, token, CANARY_PROMPT),
            await refused(target, wrong, CANARY_PROMPT),
            await refused(target, token, CANARY_PROMPT * 3000),
        ]
        metrics = read_metrics(target)

    told = capfd.readouterr().err
    everything = told + metrics + "".join(f"{one.details()} {one.trailing_metadata()}" for one in failures)
    assert "ValueError" in told
    assert [word for word in (CANARY_PROMPT, token, wrong, "canary-tenant") if word in everything] == []


async def test_calls_are_counted_by_method_and_code(socket_path: Path) -> None:
    settings = RpcServerSettings(listen=(f"unix:{socket_path}",), metrics_listen="127.0.0.1:0")

    async def refuse(request: object) -> str:
        raise errors.NotFound("NO_MODEL", "no such model")

    async with serving(settings) as target:
        before = samples(read_metrics(target))
        async with channel_to(target) as channel:
            await embed(channel)
        target.embedder.embed = refuse
        await refused(target, None)
        # The answer is sent before the server ends the call. Calls of servers with a closed loop stay in flight in the
        # process-wide count, so only this server is asked.
        await until(lambda: target.server._pipeline.activity == (2, 0))
        after = samples(read_metrics(target))

    for code in ("OK", "NOT_FOUND"):
        name = f'pentimento_rpc_requests_total{{code="{code}",method="{EMBED_TEXT}"}}'
        assert after[name] - before.get(name, 0) == 1
    seconds = f'pentimento_rpc_latency_seconds_count{{method="{EMBED_TEXT}"}}'
    assert after[seconds] - before.get(seconds, 0) == 2


async def test_a_failure_is_logged_with_the_callers_request_id(
    target: Scripted,
    channel: grpc.aio.Channel,
    process_logging: Callable[[LogFormat], None],
    capfd: pytest.CaptureFixture[str],
) -> None:
    async def fail(request: object) -> str:
        raise ValueError

    target.embedder.embed = fail
    process_logging(LogFormat.JSON)

    with pytest.raises(grpc.aio.AioRpcError):
        await embed(channel, metadata=(("x-request-id", "req-7"),))

    # Only the entries of calls: gRPC writes plain text there too, and asyncio complains about earlier tests.
    told = [line for line in capfd.readouterr().err.splitlines() if line.startswith("{")]
    entries = [one for one in map(json.loads, told) if "method" in one]
    assert [(one["request_id"], one["method"]) for one in entries if one["level"] == "error"] == [("req-7", EMBED_TEXT)]


def read_metrics(target: Scripted) -> str:
    with urllib.request.urlopen(f"http://{target.server.metrics_address}/metrics") as answer:
        return str(answer.read().decode())


def samples(text: str) -> dict[str, float]:
    lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}
