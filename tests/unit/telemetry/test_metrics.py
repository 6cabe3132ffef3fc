"""Names and labels that metrics may have, and their listener."""

import ast
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pentimento.telemetry import counter, histogram, start_metrics_server
from pentimento.telemetry.metrics import MAX_SCRAPES, MetricsServer, ScrapeHandler

ROOT = Path(__file__).parents[3]


def names_read(path: Path) -> set[str]:
    """Return what the file reads, by itself or as an attribute."""
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute | ast.Name)]
    reads = [node for node in nodes if isinstance(node.ctx, ast.Load)]
    return {node.attr if isinstance(node, ast.Attribute) else node.id for node in reads}


def names_assigned(path: Path) -> set[str]:
    targets = [node.targets[0] for node in ast.parse(path.read_text()).body if isinstance(node, ast.Assign)]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def test_every_metric_of_a_service_is_used_by_it() -> None:
    for page in (ROOT / "services").glob("*/metrics.py"):
        used = set().union(*map(names_read, page.parent.rglob("*.py")))
        assert names_assigned(page) - used == set(), page


def test_metric_names_outside_the_scheme_and_personal_labels_are_refused() -> None:
    for name in ("requests_total", "pentimento_requests", "pentimento_Requests_total", "pentimento_x_ms"):
        with pytest.raises(ValueError, match=name):
            histogram(name, "…")
    for label in ("prompt", "user", "tenant", "token", "request_id"):
        with pytest.raises(ValueError, match=label):
            counter("pentimento_unit_refused_total", "…", ("model", label))


def test_a_metric_is_served_over_http() -> None:
    counter("pentimento_unit_served_total", "counts this test").inc()
    server = start_metrics_server("127.0.0.1:0")
    assert server is not None
    try:
        with urllib.request.urlopen(f"http://{server.address}/metrics") as answer:
            text = answer.read().decode()
    finally:
        server.close()

    assert "pentimento_unit_served_total 1.0" in text
    assert "process_resident_memory_bytes" in text


def test_nothing_listens_without_an_address() -> None:
    assert start_metrics_server("") is None


@pytest.fixture
def metrics_port() -> Iterator[tuple[str, int]]:
    server = start_metrics_server("127.0.0.1:0")
    assert server is not None
    host, _, port = server.address.rpartition(":")
    yield host, int(port)
    server.close()


def test_a_connection_that_says_nothing_is_closed_without_a_word(
    metrics_port: tuple[str, int], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ScrapeHandler, "timeout", 0.05)

    with socket.create_connection(metrics_port) as silent:
        assert silent.recv(1) == b""

    assert capfd.readouterr().err == ""


@pytest.mark.slow
def test_connections_beyond_bound_are_closed_and_earlier_ones_answered(metrics_port: tuple[str, int]) -> None:
    with ExitStack() as opened:
        held = [opened.enter_context(socket.create_connection(metrics_port)) for _ in range(MAX_SCRAPES)]
        with socket.create_connection(metrics_port) as beyond:
            assert beyond.recv(1) == b""
        held[0].sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert held[0].recv(15) == b"HTTP/1.0 200 OK"


def test_where_no_connection_can_be_taken_the_next_try_is_later(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("pentimento.telemetry.metrics.sleep", waits.append)
    with MetricsServer("127.0.0.1", 0) as server:
        # No connection waits: accept fails, as it does without free descriptors.
        server.socket.setblocking(False)

        with pytest.raises(OSError, match="unavailable"):
            server.get_request()

    assert waits == [0.05]
