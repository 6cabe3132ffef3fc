"""Test that the latencies behind the alerts of requests name a trace."""

from collections.abc import Iterator

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from lab.fixtures.otlp_receiver import span_receiver
from pentimento.telemetry.tracing import start_tracing
from tests.integration.edge.conftest import EdgeUnderTest

TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture(autouse=True)
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with span_receiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.address)
        stop = start_tracing("edge", "edge-1")
        yield
        stop()


@pytest.mark.parametrize(("flags", "named"), [("01", True), ("00", False)], ids=["recorded", "not recorded"])
async def test_latency_of_a_request_names_its_trace_if_it_is_recorded(
    edge: EdgeUnderTest, flags: str, named: bool
) -> None:
    trace = TRACE[:-2] + flags
    headers = {"traceparent": f"00-{trace}-b7ad6b7169203331-{flags}"}
    answer = await edge.http.post("/v1/images/generations", json={"prompt": "x"}, headers=headers)
    metrics = await edge.http.get("/metrics", headers={"Accept": "application/openmetrics-text"})

    assert answer.status_code == 200
    found = {
        family.name
        for family in text_string_to_metric_families(metrics.text)
        for sample in family.samples
        if sample.exemplar is not None and sample.exemplar.labels.get("trace_id") == trace
    }
    histograms = {"pentimento_frontdoor_request_seconds", "pentimento_edge_request_seconds"}
    assert histograms & found == (histograms if named else set())
