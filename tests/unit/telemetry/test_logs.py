"""The form of log lines, and content that they never have."""

import asyncio
import json
import logging
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentimento.domain.errors import NotFound
from pentimento.telemetry.logs import JsonFormatter, StructuredFormatter, TextFormatter, log_unhandled
from pentimento.telemetry.tracing import accept_request_id, request_id

text_formatter = TextFormatter("embedder", "embedder-1")
json_formatter = JsonFormatter("embedder", "embedder-1")


def record(message: str, *arguments: object, **fields: object) -> logging.LogRecord:
    made = logging.LogRecord("part", logging.INFO, __file__, 1, message, arguments, None)
    made.__dict__.update(fields)
    return made


def failure(raise_it: Callable[[], None]) -> logging.LogRecord:
    try:
        raise_it()
    except Exception as error:
        return logging.LogRecord(
            "part", logging.ERROR, __file__, 1, "failed", (), (type(error), error, error.__traceback__)
        )
    raise AssertionError("nothing was raised")


def test_text_holds_time_level_instance_part_message_and_fields() -> None:
    line = text_formatter.format(record("loaded %s", "m", size_bytes=7))

    assert line.endswith("Z INFO    embedder-1 part: loaded m size_bytes=7")


def test_json_holds_the_same() -> None:
    entry = json.loads(json_formatter.format(record("loaded", size_bytes=7)))

    assert entry.pop("time").endswith("Z")
    assert entry == {
        "level": "info",
        "service": "embedder",
        "instance": "embedder-1",
        "logger": "part",
        "message": "loaded",
        "size_bytes": 7,
    }


@pytest.mark.parametrize("formatter", [text_formatter, json_formatter])
def test_log_line_has_known_request_id(formatter: StructuredFormatter) -> None:
    set_before = request_id.set("req-1")
    try:
        line = formatter.format(record("x"))
    finally:
        request_id.reset(set_before)

    assert "req-1" in line
    assert "req-1" not in formatter.format(record("x"))


CANARY = "-".join(["canary", "prompt"])


def quote_the_prompt() -> None:
    try:
        raise KeyError(CANARY)
    except KeyError as inner:
        raise RuntimeError(CANARY) from inner


@pytest.mark.parametrize("formatter", [text_formatter, json_formatter])
def test_tracebacks_keep_types_and_frames_but_no_messages(formatter: StructuredFormatter) -> None:
    line = formatter.format(failure(quote_the_prompt))

    assert ("KeyError" in line, "RuntimeError" in line, "quote_the_prompt" in line) == (True, True, True)
    assert CANARY not in line


def test_errors_of_ours_keep_their_message() -> None:
    def refuse() -> None:
        raise NotFound("NO_MODEL", "no such model")

    assert "NotFound: NO_MODEL: no such model" in text_formatter.format(failure(refuse))


@given(st.text())
def test_no_message_can_forge_a_second_line(message: str) -> None:
    assert len(text_formatter.format(record("%s", message, field=message)).splitlines()) == 1
    assert len(json_formatter.format(record("%s", message, field=message)).split("\n")) == 1


@given(st.text())
def test_an_accepted_request_id_is_harmless(offered: str) -> None:
    accepted = accept_request_id(offered)

    assert 1 <= len(accepted) <= 64
    assert accepted.isascii()
    assert not set(accepted) & set(" \n\r\t=[]{}\"'")


def test_lack_of_descriptors_is_logged_once_a_second(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pentimento.telemetry.logs._reported_s", {})
    loop = asyncio.new_event_loop()
    context = {"message": "socket.accept() out of system resource", "exception": OSError(24, "")}
    monkeypatch.setattr(loop, "time", iter([7.0, 7.9, 8.0]).__next__)

    for _ in range(3):
        log_unhandled(loop, context)
    log_unhandled(loop, {"message": "another"})
    loop.close()

    assert caplog.messages == [context["message"], context["message"], "another"]
