"""A channel adds token, request id and deadline to every call."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from pentimento.domain.errors import InvalidArgument
from pentimento.rpc import context, watched_file
from pentimento.rpc.channel import Authorization, KitCall, KitChannel, authorization_of, open_channel
from pentimento.rpc.settings import RpcChannelSettings
from pentimento.settings import SettingsError
from pentimento.telemetry.tracing import request_id
from tests.support.logged import said_by


@pytest.fixture(autouse=True)
def outside_of_a_call() -> Iterator[None]:
    """Reset the context of a call, so that no test depends on another."""
    before, asked = context.deadline.set(None), request_id.set("")
    yield
    context.deadline.reset(before)
    request_id.reset(asked)


def sent(
    token: Authorization, default_s: float | None, remaining_s: float | None = None, **options: Any
) -> dict[str, Any]:
    """Return the request and options of the underlying call, made within a call that has `remaining_s` left."""
    seen: dict[str, Any] = {}

    def call(request: object, **given: Any) -> None:
        seen.update(given, request=request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pentimento.rpc.channel.remaining_s", lambda: remaining_s)
        KitCall(call, token, default_s)("request", **options)
    return seen | {"metadata": list(seen["metadata"])}


def test_call_deadline_is_the_shortest_known() -> None:
    for default_s, given_s, remaining_s, timeout_s in (
        (10.0, None, None, 10.0),
        (10.0, 99.0, None, 99.0),
        (10.0, 99.0, 5.0, 5.0),
        (10.0, 2.0, 5.0, 2.0),
        (10.0, None, 5.0, 5.0),
        (None, None, None, None),
        (None, None, 5.0, 5.0),
        (None, 2.0, 5.0, 2.0),
        (10.0, None, 20.0, 10.0),
    ):
        call = sent(authorization_of(None), default_s, remaining_s, timeout=given_s)
        assert (call["timeout"], call["metadata"]) == (timeout_s, []), (default_s, given_s, remaining_s)


def test_token_that_no_header_carries_is_refused(tmp_path: Path) -> None:
    for token in ("ü", "a\nb", "\udcff"):
        with pytest.raises(InvalidArgument, match="token: must be of printable ASCII characters"):
            open_channel("127.0.0.1:1", RpcChannelSettings(), token)
    for content in (b"", b" \n", "schlüssel".encode(), b"two\nlines", b"\x00", b"\xff"):
        (tmp_path / "token").write_bytes(content)
        with pytest.raises(SettingsError, match="token: "):
            authorization_of(None, tmp_path / "token")
    assert authorization_of(None, None)() is None


def test_call_carries_its_metadata_token_and_request_id() -> None:
    request_id.set("req-1")

    found = sent(authorization_of("secret"), None, metadata=(("own", "value"),), wait_for_ready=True)

    assert found["metadata"] == [("own", "value"), ("authorization", "Bearer secret"), ("x-request-id", "req-1")]
    assert (found["request"], found["wait_for_ready"]) == ("request", True)


@pytest.mark.parametrize("content", ["", None, "two\nlines"], ids=["empty", "gone", "wrong"])
def test_the_token_before_is_shown_while_the_file_is_replaced(
    content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """`cat new > file` leaves it empty for a moment."""
    monkeypatch.setattr(watched_file, "CHECK_INTERVAL_S", 0.0)
    file = tmp_path / "token"
    file.write_text(" first\n")
    token = authorization_of(None, file)
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    told = [token(), token()]
    file.write_text("the second")

    assert [*told, token()] == ["Bearer first", "Bearer first", "Bearer the second"]
    assert [record.levelname for record in said_by("pentimento.rpc.watched_file", caplog)] == ["ERROR"]


class NotedChannel:
    """A channel that records its calls."""

    def __init__(self) -> None:
        self.noted: list[tuple[object, ...]] = []

    def get_state(self, try_to_connect: bool) -> grpc.ChannelConnectivity:
        self.noted.append(("state", try_to_connect))
        return grpc.ChannelConnectivity.IDLE

    async def wait_for_state_change(self, last: grpc.ChannelConnectivity) -> None:
        self.noted.append(("change", last))

    async def channel_ready(self) -> None:
        self.noted.append(("ready",))

    async def close(self, grace: float | None) -> None:
        self.noted.append(("close", grace))


async def test_connection_calls_go_to_underlying_channel() -> None:
    below = NotedChannel()
    idle = grpc.ChannelConnectivity.IDLE
    async with KitChannel(lambda _: below, authorization_of(None), 10.0) as channel:  # type: ignore[arg-type,return-value]
        states = channel.get_state(), channel.get_state(try_to_connect=True)
        await channel.wait_for_state_change(idle)
        await channel.channel_ready()
    await channel.close(2.0)

    assert states == (idle, idle)
    assert below.noted == [
        ("state", False),
        ("state", True),
        ("change", idle),
        ("ready",),
        ("close", None),
        ("close", 2.0),
    ]


@pytest.mark.parametrize(
    ("form", "timeout_s"),
    [("unary_unary", 10.0), ("stream_unary", 10.0), ("unary_stream", None), ("stream_stream", None)],
)
def test_call_of_each_form_is_made_and_unary_answer_has_timeout(form: str, timeout_s: float | None) -> None:
    made: list[object] = []
    below = SimpleNamespace(
        **{form: lambda *method, **named: made.append((method, named)) or (lambda _, **given: given)}
    )
    channel = KitChannel(lambda _: below, authorization_of(None), 10.0)  # type: ignore[arg-type,return-value]

    call = getattr(channel, form)("/a.B/C", bytes, _registered_method=True)

    assert [call("request")["timeout"] for _ in range(2)] == [timeout_s] * 2
    assert made == [(("/a.B/C", bytes), {"_registered_method": True})]
