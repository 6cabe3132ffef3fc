"""Counts of calls, and the metrics made from them."""

from pentimento.rpc.call_limits import CallCollector
from pentimento.telemetry.metrics import LATENCY_BUCKETS_S

METHOD = "/a.B/C"


def samples(collector: CallCollector) -> dict[tuple[str, tuple[str, ...]], float]:
    """Return values by name and label values."""
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for metric in collector.collect()
        for sample in metric.samples
    }


def test_calls_are_counted_by_code_and_latency() -> None:
    collector = CallCollector()
    meter = collector.meter(METHOD)
    for code, seconds in (("OK", 0.003), ("OK", 0.2), ("NOT_FOUND", 200.0)):
        meter.begin()
        meter.end(code, seconds)
    meter.begin()

    found = samples(collector)

    assert {key: value for key, value in found.items() if "bucket" not in key[0]} == {
        ("pentimento_rpc_requests_total", (METHOD, "OK")): 2,
        ("pentimento_rpc_requests_total", (METHOD, "NOT_FOUND")): 1,
        ("pentimento_rpc_latency_seconds_count", (METHOD,)): 3,
        ("pentimento_rpc_latency_seconds_sum", (METHOD,)): 200.203,
        ("pentimento_rpc_in_flight_count", (METHOD,)): 1,
    }
    buckets = {key[1][1]: value for key, value in found.items() if "bucket" in key[0]}
    expected = {str(bound): (bound >= 0.003) + (bound >= 0.2) for bound in LATENCY_BUCKETS_S}
    assert buckets == expected | {"+Inf": 3}


def test_latency_equal_to_a_bound_is_in_its_bucket() -> None:
    collector = CallCollector()
    collector.meter(METHOD).end("OK", LATENCY_BUCKETS_S[0])

    assert samples(collector)["pentimento_rpc_latency_seconds_bucket", (METHOD, str(LATENCY_BUCKETS_S[0]))] == 1


def test_labels_and_help_describe_the_counts() -> None:
    collector = CallCollector()
    collector.meter(METHOD).end("OK", 0.1)

    labels = {
        metric.name: {label for sample in metric.samples for label in sample.labels} for metric in collector.collect()
    }

    assert labels == {
        "pentimento_rpc_requests": {"method", "code"},
        "pentimento_rpc_latency_seconds": {"method", "le"},
        "pentimento_rpc_in_flight_count": {"method"},
    }


def test_servers_of_a_process_share_a_method_s_meter() -> None:
    collector = CallCollector()

    assert collector.meter(METHOD) is collector.meter(METHOD)
    assert collector.meter("/other") is not collector.meter(METHOD)


def test_last_traced_call_of_a_bucket_is_its_exemplar() -> None:
    collector = CallCollector()
    meter = collector.meter(METHOD)
    for seconds, trace_id in ((0.003, "a" * 32), (0.004, "b" * 32), (0.2, ""), (200.0, "c" * 32)):
        meter.end("OK", seconds, trace_id)

    latency = next(metric for metric in collector.collect() if metric.name == "pentimento_rpc_latency_seconds")
    named = {
        sample.labels["le"]: (sample.exemplar.labels["trace_id"], sample.exemplar.value)
        for sample in latency.samples
        if sample.exemplar is not None
    }
    assert named == {"0.005": ("b" * 32, 0.004), "+Inf": ("c" * 32, 200.0)}
