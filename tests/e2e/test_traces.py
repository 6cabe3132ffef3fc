"""Follow one trace from a client through every process that works for its image, as a collector receives it."""

import secrets
import time
from collections.abc import Callable, Iterator

import httpx
import pytest

from lab.fixtures.otlp_receiver import ReceivedSpan, SpanReceiver, span_receiver
from pentimento.domain.image_request import AskedControlNet, CacheMode, ImageRequest
from pentimento.sdk import Client
from pentimento.supervisor.local import LocalSuite, local_suite
from tests.e2e.test_adapters import EDGES, outline
from tests.support.edge_packages import missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=f"not installed: {', '.join(missing())}")

PROMPT = "a red circle on a white background"
# The discriminator foresees of every prompt that its light image would be deferred.
CASCADE = ("--cascade", "tiny-light,tiny-heavy", "--confidence-threshold", "1.0")
GENERATE = "pentimento.api.image.v1.ImageService/Generate"


@pytest.fixture(scope="module")
def receiver() -> Iterator[SpanReceiver]:
    with span_receiver() as opened:
        yield opened


@pytest.fixture(scope="module")
def traced(receiver: SpanReceiver) -> Iterator[LocalSuite]:
    flags = [*CASCADE, "--controlnets", "tiny", "--http", "127.0.0.1:0"]
    steps = {"PENTIMENTO_UNET_WORKER_TRACE_DETAILS": "steps", "OTEL_BSP_SCHEDULE_DELAY": "100"}
    with local_suite(flags, environment={"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.address, **steps}) as running:
        yield running


def once(found: Callable[[], list[ReceivedSpan]], enough: Callable[[list[ReceivedSpan]], bool]) -> list[ReceivedSpan]:
    """Return the spans when they are enough: processes send them in batches."""
    while not enough(spans := found()):
        time.sleep(0.05)
    return spans


def services_of(spans: list[ReceivedSpan]) -> set[str]:
    return {span.service for span in spans}


def test_spans_of_every_process_join_the_trace_of_an_http_client(traced: LocalSuite, receiver: SpanReceiver) -> None:
    trace_id, caller_span = secrets.token_hex(16), secrets.token_hex(8)
    body = {"prompt": PROMPT, "num_inference_steps": 4, "seed": 3}
    answer = httpx.post(
        f"http://{traced.endpoint.http}/v1/images/generations",
        json=body,
        headers={"traceparent": f"00-{trace_id}-{caller_span}-01"},
        timeout=120,
    )

    assert answer.status_code == 200
    expected = {"edge", "frontdoor", "embedder", "vectordb_gateway", "unet_worker", "discriminator"}
    spans = once(lambda: receiver.spans(trace_id), lambda found: joined(found, "edge", expected, step_count=4))
    assert services_of(spans) == expected
    assert [(span.name, span.parent_id) for span in roots(spans)] == [("POST /v1/images/generations", caller_span)]
    assert {span.name for span in spans if span.service == "frontdoor"} >= {"accept", "route", "queue", "execute"}
    assert {span.name for span in spans if span.service == "unet_worker"} >= {"denoise", "step", "decode", "store"}
    assert not any(PROMPT in str(span.attributes) for span in spans)


def test_grpc_client_without_a_trace_begins_one_that_reaches_controlnets(
    traced: LocalSuite, receiver: SpanReceiver
) -> None:
    known = {span.trace_id for span in receiver.spans()}
    request = ImageRequest(
        PROMPT,
        model="tiny-heavy",
        num_inference_steps=4,
        cache=CacheMode.OFF,
        controlnets=(AskedControlNet(EDGES, outline()),),
    )
    with Client(traced.endpoint.public) as client:
        made = client.generate(request)

    def new() -> list[ReceivedSpan]:
        return [span for span in receiver.spans() if span.trace_id not in known]

    expected = {"frontdoor", "unet_worker", "controlnet_svc"}
    spans = once(new, lambda found: joined(found, "frontdoor", expected, step_count=4))
    (root,) = roots(spans)
    assert (root.service, root.name, root.parent_id) == ("frontdoor", GENERATE, "")
    assert root.attributes["pentimento.request_id"] == made.provenance.request_id
    assert {span.trace_id for span in spans} == {root.trace_id}
    (residuals,) = (span for span in spans if span.service == "controlnet_svc")
    assert residuals.name == "pentimento.api.controlnet.v1.ControlNetService/StreamResiduals"


def joined(spans: list[ReceivedSpan], first: str, services: set[str], step_count: int) -> bool:
    """Return whether all services have complete spans: only a span of `first` has no parent."""
    steps = [span for span in spans if span.name == "step"]
    return (
        [span.service for span in roots(spans)] == [first]
        and services <= services_of(spans)
        and len(steps) == step_count
    )


def roots(spans: list[ReceivedSpan]) -> list[ReceivedSpan]:
    """Return the spans without a parent among the others."""
    known = {span.span_id for span in spans}
    return [span for span in spans if span.parent_id not in known]
