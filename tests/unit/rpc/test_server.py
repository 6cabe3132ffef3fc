"""A server's names and addresses, and how it starts and stops without a call."""

import asyncio
import re
import socket
from pathlib import Path

import pytest

from pentimento.rpc import RpcServer, RpcServerSettings
from pentimento.settings import SettingsError
from tests.support.logged import said_by


def test_replica_name_comes_from_settings_or_service_with_eight_digits() -> None:
    named = RpcServer(RpcServerSettings(instance_id="mine"), "embedder")
    other = RpcServer(RpcServerSettings(), "embedder")

    hosted = RpcServer(RpcServerSettings(instance_id="heavy-{hostname}"), "unet_worker")

    assert hosted.instance_id == f"heavy-{socket.gethostname()}"
    assert named.instance_id == "mine"
    assert re.fullmatch("embedder-[0-9a-f]{8}", other.instance_id)
    assert (named.settings.instance_id, named.service) == ("mine", "embedder")


async def test_every_address_is_bound_at_the_port_it_got_and_given_back(tmp_path: Path) -> None:
    server = RpcServer(
        RpcServerSettings(
            listen=("127.0.0.1:0", f"unix:{tmp_path / 's'}", "localhost:0"), metrics_listen="127.0.0.1:0"
        ),
        "s",
    )
    before = server.bound_addresses, server.metrics_address

    await server.start()
    bound, metrics, was_there = server.bound_addresses, server.metrics_address, (tmp_path / "s").exists()
    await server.stop()

    assert before == ((), "")
    assert [re.sub(r":\d+$", ":port", address) for address in bound] == [
        "127.0.0.1:port",
        f"unix:{tmp_path / 's'}",
        "localhost:port",
    ]
    assert not any(address.endswith(":0") for address in bound)
    assert was_there and not (tmp_path / "s").exists()
    assert (server.bound_addresses, server.metrics_address) == ((), "")
    for address in (bound[0], metrics):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])))


async def test_stop_late_or_repeated_leaves_successors_socket_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = RpcServerSettings(listen=(f"unix:{tmp_path / 's'}",))
    first, second = RpcServer(settings, "first"), RpcServer(settings, "second")
    await first.start()
    release = first._release
    # The second one starts while the first one's last calls end.
    monkeypatch.setattr(first, "_release", lambda: None)
    await first.stop()
    await second.start()

    release()
    await first.stop()
    there = (tmp_path / "s").exists()
    await second.stop()

    assert there


async def test_missing_socket_does_not_prevent_stop(tmp_path: Path) -> None:
    server = RpcServer(RpcServerSettings(listen=(f"unix:{tmp_path / 's'}",)), "s")
    await server.start()
    (tmp_path / "s").unlink()

    await server.stop()

    assert server.bound_addresses == ()


@pytest.mark.parametrize("taken", ["listen", "metrics_listen"])
async def test_failed_start_releases_its_addresses(tmp_path: Path, taken: str) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        listen = (f"unix:{tmp_path / 's'}", *([address] if taken == "listen" else []))
        metrics = address if taken == "metrics_listen" else ""
        server = RpcServer(RpcServerSettings(listen=listen, metrics_listen=metrics), "s")

        with pytest.raises(SettingsError, match=f"--{taken.replace('_', '-')} {address}"):
            await server.start()

    assert (server.bound_addresses, (tmp_path / "s").exists()) == ((), False)


@pytest.fixture
def stops(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Record how long each stop would wait for calls."""
    waited: list[float] = []

    async def stop(_server: RpcServer, grace_s: float = 0.0) -> None:
        waited.append(grace_s)

    monkeypatch.setattr(RpcServer, "stop", stop)
    return waited


async def test_a_drain_leaves_the_rest_of_its_time_to_running_calls(stops: list[float]) -> None:
    server = RpcServer(RpcServerSettings(drain_timeout_s=1000.0), "s")
    server.set_serving()
    told: list[bool] = []

    async def drain() -> None:
        told.append(server._health.serving)

    await server._drain(drain)

    assert told == [False]
    assert 0.0 < stops[0] <= 1000.0
    late = RpcServer(RpcServerSettings(drain_timeout_s=0.0), "s")
    await late._drain(asyncio.Event().wait)  # type: ignore[arg-type]
    assert stops[1:] == [0.0]


async def test_stop_does_not_wait_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    server = RpcServer(RpcServerSettings(), "s")
    waited: list[tuple[float, float]] = []

    async def close(grace_s: float, stream_grace_s: float) -> None:
        waited.append((grace_s, stream_grace_s))

    monkeypatch.setattr(server._pipeline, "close", close)

    await server.stop()
    await server.stop(7.0)

    assert waited == [(0.0, 0.5), (7.0, 0.5)]


async def test_a_file_that_is_named_like_an_address_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    server = RpcServer(RpcServerSettings(listen=("127.0.0.1:0",)), "s")
    await server.start()
    named = Path(server.bound_addresses[0])
    named.write_text("precious")

    await server.stop()

    assert named.read_text() == "precious"


async def test_open_door_to_other_machines_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    local = RpcServer(RpcServerSettings(listen=("127.0.0.1:0", f"unix:{tmp_path / 's'}")), "s")
    await local.start()
    await local.stop()
    server = RpcServer(RpcServerSettings(listen=("127.0.0.1:0", "0.0.0.0:0")), "s")
    await server.start()
    addresses = server.bound_addresses
    await server.stop()

    (warned,) = (record for record in said_by("pentimento.rpc.server", caplog) if record.levelname == "WARNING")
    assert warned.__dict__["addresses"] == addresses[1]
