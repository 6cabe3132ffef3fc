"""Test bursts without tokens: more calls than gRPC queues together get answers, and none ends as CANCELLED."""

import socket
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection

from lab.fixtures.frontdoor_suite import running_suite, until
from lab.fixtures.raw_http2 import framed
from pentimento.rpc import transport

LIST_MODELS = "/pentimento.api.image.v1.ImageService/ListModels"
# Per connection; five of them have twice as many calls as gRPC queues.
CALLS, WAITING = 200, 500
SETTLED_S = 1.0


class Burst:
    """Hold a connection that has sent its calls, and their answers."""

    def __init__(self, address: str) -> None:
        self._client = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self._client.initiate_connection()
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        for _ in range(CALLS):
            self._call()
        self._socket.sendall(self._client.data_to_send())
        self._socket.setblocking(False)
        self.statuses: list[str] = []

    def _call(self) -> None:
        stream = self._client.get_next_available_stream_id()
        headers = [(":method", "POST"), (":scheme", "http"), (":path", LIST_MODELS), (":authority", "x")]
        self._client.send_headers(stream, [*headers, ("content-type", "application/grpc"), ("te", "trailers")])
        self._client.send_data(stream, framed(b""), end_stream=True)

    def all_ended(self) -> bool:
        """Read the received bytes."""
        try:
            data = self._socket.recv(1 << 20)
        except BlockingIOError:
            return False
        for event in self._client.receive_data(data):
            trailers = dict(getattr(event, "headers", None) or ())
            if "grpc-status" in trailers:
                self.statuses.append(trailers["grpc-status"])
            elif type(event).__name__ == "StreamReset":
                self.statuses.append("reset")
            elif type(event).__name__ == "DataReceived":
                self._client.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        self._socket.sendall(self._client.data_to_send())
        return len(self.statuses) == CALLS

    def close(self) -> None:
        self._socket.close()


@pytest.mark.slow
async def test_every_call_of_a_burst_is_answered(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MAX_PENDING_CALLS", WAITING)
    async with running_suite(folder, tls={}, worker_addresses=(), worker_wait_s=0.0) as suite:
        with ExitStack() as stack:
            bursts = [Burst(suite.frontdoor.server.bound_addresses[1]) for _ in range(5)]
            for burst in bursts:
                stack.callback(burst.close)
            # gRPC's own threads read on meanwhile, while the event loop has no turn.
            time.sleep(SETTLED_S)  # noqa: ASYNC251
            await until(lambda: all([burst.all_ended() or len(burst.statuses) == CALLS for burst in bursts]))

    assert {status for burst in bursts for status in burst.statuses} == {"0"}
