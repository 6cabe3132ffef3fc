"""Count requests with spans that join across all processes, and measure the cost of recording.

    python -m benchmarks.traces

A suite with a cascade, ControlNets and the cache records everything: a span for each call and stage, each denoising
step, and gen_ai's attributes, all sent to a receiver in this process. Half of its requests run through the cascade,
half with a ControlNet. A request is joined where the only span without a parent is that of its HTTP call, and every
process that it needs has a span; the spans are counted after the suite has ended.

For the cost, two more suites of one model, with and without the same recording, make the same images in turns, in a
drawn order. The kernel counts the processor seconds of all their processes; the receiver runs in another one. Two
suites without recording differ by a percent, so pairs of suites are started several times, and a pair counts once.
"""

import base64
import io
import secrets
import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import httpx
import psutil
from PIL import Image

from lab.fixtures.otlp_receiver import ReceivedSpan, span_receiver
from lab.runs.intervals import ratio_of_sums
from lab.runs.measure import at_most, counted, drawn_orders, informative, measured, parse_options, publish
from pentimento.domain.image_request import CacheMode, ImageRequest
from pentimento.sdk import Client
from pentimento.supervisor.local import LocalSuite, local_suite

PROMPT = "a red circle left of a blue square, number {}"
EVERYTHING = {"PENTIMENTO_COMMON_TRACE_DETAILS": "steps,prompts"}
# On a busy machine requests run without an optional part, and then lack its span.
PATIENT = {"PENTIMENTO_COMMON_PART_WAIT_FACTOR": "100"}
CASCADE = ("--cascade", "tiny-light,tiny-heavy", "--confidence-threshold", "1.0", "--controlnets", "tiny")
EDGES = "tiny-controlnet-edges"
OVER_HTTP = {"edge", "frontdoor", "embedder", "vectordb_gateway", "unet_worker", "discriminator"}
CONTROLLED = {"frontdoor", "unet_worker", "controlnet_svc"}
WARM_UP = 4
Pair = tuple[float, float]


def main() -> int:
    options = parse_options("traces", __doc__)
    count, images, pairs = (4, 4, 2) if options.quick else (100, 80, 10)
    with span_receiver() as receiver:
        recording = EVERYTHING | {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.address}
        with local_suite([*CASCADE, "--http", "127.0.0.1:0"], environment=recording | PATIENT) as suite:
            asked = ask_for_traces(suite, count)
        apart = [trace for trace, needed in asked.items() if not joined(receiver.spans(trace), needed)]
        spans = [len(receiver.spans(trace)) for trace in asked]
        everything, control = [], []
        for _ in range(pairs):
            with local_suite() as plain, local_suite(environment=recording) as traced:
                whole, other = processor_seconds(traced, plain, images)
            everything.append(sum_of_pairs(whole))
            control.append(sum_of_pairs(other))
    figures = [
        counted("requests whose spans do not join", len(apart), len(asked), at_most(0, "requests")),
        measured("spans of a request, steps included", spans, statistics.median, informative()),
        measured("processor seconds of an image, recorded ÷ not", everything, ratio_of_sums, at_most(1.02, "x")),
        measured("the same without the worker's", control, ratio_of_sums, informative("x")),
    ]
    return publish(options, figures, notes={"requests": len(asked), "images": images, "pairs": pairs})


def sum_of_pairs(pairs: Sequence[Pair]) -> Pair:
    return sum(traced for traced, _ in pairs), sum(plain for _, plain in pairs)


def ask_for_traces(suite: LocalSuite, count: int) -> dict[str, set[str]]:
    """Make requests over both ways in turns, each with a trace of its client; return the services that each needs."""
    asked: dict[str, set[str]] = {}
    edges = Image.new("L", (64, 64))
    drawing = io.BytesIO()
    edges.save(drawing, "PNG")
    with httpx.Client(base_url=f"http://{suite.endpoint.http}", timeout=120.0) as http:
        for number in range(count):
            trace = secrets.token_hex(16)
            headers = {"traceparent": f"00-{trace}-{secrets.token_hex(8)}-01"}
            body: dict[str, object] = {"prompt": PROMPT.format(number), "num_inference_steps": 4, "seed": number}
            asked[trace] = set(OVER_HTTP)
            if number % 2:
                asked[trace] = {"edge", *CONTROLLED}
                image = base64.b64encode(drawing.getvalue()).decode()
                body |= {
                    "model": "tiny-heavy",
                    "cache": "off",
                    "controlnets": [{"name": EDGES, "conditioning_image": image}],
                }
            http.post("/v1/images/generations", json=body, headers=headers).raise_for_status()
    return asked


def joined(spans: Sequence[ReceivedSpan], needed: set[str]) -> bool:
    """Return whether the client's call is the only span without a parent among the spans, which needed all services."""
    known = {span.span_id for span in spans}
    first = [span.service for span in spans if span.parent_id not in known]
    return first == ["edge"] and {span.service for span in spans} >= needed


def processor_seconds(traced: LocalSuite, plain: LocalSuite, count: int) -> tuple[list[Pair], list[Pair]]:
    """Return each image's processor seconds in both suites: of all processes, and of all but the workers."""
    sides = {"traced": traced, "plain": plain}
    whole: list[Pair] = []
    control: list[Pair] = []
    with ExitStack() as stack:
        clients = {name: stack.enter_context(Client(suite.endpoint.public)) for name, suite in sides.items()}
        for number, order in enumerate(drawn_orders(sides, count + WARM_UP)):
            used = {}
            for name in order:
                before = seconds_by_part(sides[name])
                request = ImageRequest(PROMPT.format(number), seed=number, cache=CacheMode.OFF)
                clients[name].generate(request)
                used[name] = {part: now - before[part] for part, now in seconds_by_part(sides[name]).items()}
            if number >= WARM_UP:
                whole.append((sum(used["traced"].values()), sum(used["plain"].values())))
                control.append((used["traced"]["control"], used["plain"]["control"]))
    return whole, control


def seconds_by_part(suite: LocalSuite) -> Mapping[str, float]:
    """Return the processor seconds so far of the suite's workers, and of its other processes."""
    seconds = {"workers": 0.0, "control": 0.0}
    for process in psutil.Process(suite.supervisor.pid).children(recursive=True):
        times = process.cpu_times()
        part = "workers" if "services.unet_worker" in process.cmdline() else "control"
        seconds[part] += times.user + times.system
    return seconds


if __name__ == "__main__":
    raise SystemExit(main())
