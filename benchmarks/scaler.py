"""Hold the controller's external scaler to KEDA's contract, with a client outside of this suite.

The client is a process with stubs that protoc makes from the contract's text. Real processes answer it over mutual TLS:
a controller, and a frontdoor without any worker. It asks for the specification, metrics and activity of every service;
each wrong piece of metadata must be named in an INVALID_ARGUMENT. Then requests come to the frontdoor, one at a time at
random moments: the seconds from a request's call to the push of StreamIsActive that would start the first worker are
measured, with a dwell of zero so that the pool is inactive again before the next request.

    python -m benchmarks.scaler
"""

import contextlib
import itertools
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.suites.instant import free_port
from benchmarks.suites.keda_calls import LIMIT_S, KedaClient, make_stubs
from lab.fixtures.certificates import Authority, Pair
from lab.runs.machine import ROOT
from lab.runs.measure import Figure, Notes, at_least, at_most, counted, measured, parse_options, publish
from pentimento.domain.errors import PentimentoError
from pentimento.domain.image_request import ImageRequest
from pentimento.sdk import Client, RetryPolicy

MODEL, OTHER = "heavy", "light"
WORKERS = {"scalerAddress": "controller:50053", "service": "unet_worker", "models": MODEL, "dwellSeconds": "0"}
OTHERS = ("embedder", "controlnet_svc", "discriminator", "vectordb_gateway", "frontdoor", "edge")
SPECS = [{"metricName": "wanted_replicas", "targetSize": 1, "targetSizeFloat": 1.0}]
# Changes of the metadata, each with the field that the answer must name and one of the limits.
WRONG: tuple[tuple[dict[str, str], str, str], ...] = (
    ({"service": "painter"}, "scalerMetadata.service", "must be one of controlnet_svc"),
    ({"service": ""}, "scalerMetadata.service", "must be one of controlnet_svc"),
    ({"models": "heavy,unknown"}, "scalerMetadata.models", "must be of heavy, light"),
    ({"dwellSeconds": "soon"}, "scalerMetadata.dwellSeconds", "must be a number of 0 to 86400"),
    ({"dwellSeconds": "-1"}, "scalerMetadata.dwellSeconds", "must be a number of 0 to 86400"),
    ({"startSeconds": "inf"}, "scalerMetadata.startSeconds", "must be a number of 0 to 3600"),
    ({"callsPerReplica": "4"}, "scalerMetadata.callsPerReplica", "is for other services"),
    ({"dwelSeconds": "5"}, "scalerMetadata.dwelSeconds", "the metadata are service, models"),
)
ONCE = RetryPolicy(tries=1)


@dataclass(frozen=True)
class ScalerUnderTest:
    """Hold the folder of a controller and a frontdoor, and what a client needs."""

    folder: Path
    stubs: Path
    scaler: str
    authority: Authority

    def client(self, pair: Pair | None) -> KedaClient:
        return KedaClient(self.stubs, self.scaler, self.authority.certificate, pair)


@contextlib.contextmanager
def served() -> Iterator[ScalerUnderTest]:
    """Start the processes without a worker, and end them."""
    with tempfile.TemporaryDirectory(prefix="scaler-") as made, contextlib.ExitStack() as stack:
        folder = Path(made)
        stubs = make_stubs(folder / "stubs")
        authority = Authority(folder, "authority")
        port = free_port()
        controller = [
            *("services.controller", "--listen", f"unix:{folder}/c", "--scaler-listen", f"127.0.0.1:{port}"),
            *("--tls-dir", str(authority.issue("controller").directory), "--mutual-tls"),
            *("--scaled-models", f"{MODEL},{OTHER}", "--slo-s", "10", "--plan-interval-s", "1"),
        ]
        frontdoor = [
            *("services.frontdoor", "--listen", f"unix:{folder}/f", "--controller-address", f"unix:{folder}/c"),
            *("--ledger-url", f"sqlite:///{folder}/journal.sqlite", "--objects-url", f"file://{folder}/objects"),
            *("--cascade", MODEL, "--worker-wait-s", "0"),
        ]
        for command in (controller, frontdoor):
            log = (folder / f"{command[0]}.log").open("w")
            process = subprocess.Popen([sys.executable, "-m", *command], cwd=ROOT, stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield ScalerUnderTest(folder, stubs, f"127.0.0.1:{port}", authority)


def until_known(client: KedaClient) -> None:
    """Wait until the controller knows its fleet, with the frontdoor. Each look names another target, since a target's
    count begins with what runs at its first look."""
    end_s = time.monotonic() + LIMIT_S
    for dwell_s in itertools.count(1):
        answer = client.call("IsActive", {"service": "frontdoor", "dwellSeconds": str(dwell_s)})
        if answer.get("result"):
            return
        assert time.monotonic() < end_s, answer
        time.sleep(0.2)


def contract_checks(client: KedaClient) -> Iterator[tuple[str, bool]]:
    """Yield what the contract promises, and whether it held."""
    for service in ("unet_worker", *OTHERS):
        metadata = WORKERS if service == "unet_worker" else {"service": service}
        yield f"{service}: specification", client.call("GetMetricSpec", metadata) == {"metricSpecs": SPECS}
        yield f"{service}: streamed specification", client.follow("StreamMetricSpec", metadata)["metricSpecs"] == SPECS
        # A target begins with the number that runs: one frontdoor.
        count = int(service == "frontdoor")
        value = {"metricName": "wanted_replicas", "metricValue": count, "metricValueFloat": float(count)}
        for metric in ("wanted_replicas", ""):
            answer = client.call("GetMetrics", metadata, metric)
            yield f"{service}: metric {metric!r}", answer == {"metricValues": [value]}
        yield f"{service}: activity", client.call("IsActive", metadata) == {"result": count > 0}


def wrong_metadata(client: KedaClient) -> Iterator[tuple[str, bool]]:
    """Yield each wrong call, and whether the answer names its field and limit."""
    for (changes, field, limit), rpc in itertools.product(WRONG, ("IsActive", "GetMetrics")):
        answer = client.call(rpc, WORKERS | changes)
        message = answer.get("message", "")
        named = answer.get("code") == "INVALID_ARGUMENT" and field in message and limit in message
        yield f"{rpc} {changes}: {answer}", named
    answer = client.call("GetMetrics", WORKERS, "queue")
    yield f"metric: {answer}", answer.get("code") == "INVALID_ARGUMENT" and "metricName: must be" in answer["message"]


def refused_certificates(one: ScalerUnderTest) -> Iterator[tuple[str, bool]]:
    """Yield clients without a certificate of the authority, and whether they were kept out."""
    strangers = Authority(one.folder, "strangers")
    for name, pair in (("none", None), ("a stranger's", strangers.issue("stranger"))):
        client = one.client(pair)
        answer = client.call("GetMetricSpec", WORKERS)
        client.end()
        yield f"certificate: {name}: {answer}", answer.get("code") == "UNAVAILABLE"


def push_seconds(one: ScalerUnderTest, client: KedaClient, count: int) -> list[float]:
    """Return the seconds from each request's call to the push that it causes."""
    first = client.follow("StreamIsActive", WORKERS)
    assert first["result"] is False, first
    seconds = []
    draws = random.Random(1)
    for _ in range(count):
        time.sleep(draws.uniform(0.0, 1.0))
        began_s = time.monotonic()
        # The request gives up by itself: then nothing waits, and the pool is inactive again.
        caller = threading.Thread(target=ask, args=(one.folder,))
        caller.start()
        push = client.pushes.get(timeout=LIMIT_S)
        seconds.append(push["at_s"] - began_s)
        assert push["result"] is True, push
        caller.join()
        back = client.pushes.get(timeout=LIMIT_S)
        assert back["result"] is False, back
    return seconds


def ask(folder: Path) -> None:
    with Client(f"unix:{folder}/f", retries=ONCE) as client, contextlib.suppress(PentimentoError):
        client.generate(ImageRequest("a red circle", model=MODEL, deadline_ms=2_000))


def failures(checks: Iterator[tuple[str, bool]]) -> tuple[int, int]:
    """Return the failed checks and all, and print the failed ones."""
    found = list(checks)
    wrong = [name for name, held in found if not held]
    print("\n".join(f"failed: {name}" for name in wrong))
    return len(wrong), len(found)


def main() -> int:
    options = parse_options("scaler", __doc__)
    count = 5 if options.quick else 60
    with served() as one:
        client = one.client(one.authority.issue("keda"))
        until_known(client)
        contract, wrong, refused = (
            failures(checks) for checks in (contract_checks(client), wrong_metadata(client), refused_certificates(one))
        )
        seconds = push_seconds(one, client, count)
        client.end()
    figures: list[Figure] = [
        measured("seconds from a request to the push, slowest", seconds, max, at_most(1.0, "s")),
        counted("promises of the contract that do not hold", *contract, at_most(0)),
        counted("wrong calls without a typed error that names the field", *wrong, at_most(0)),
        counted("clients without a certificate that are answered", *refused, at_most(0)),
        Figure("services asked for", len(OTHERS) + 1, at_least(7)),
    ]
    notes: Notes = {"requests": count, "report_interval_s": round(2.5 / 3, 2), "transport": "mutual TLS, TCP"}
    return publish(options, figures, notes=notes)


if __name__ == "__main__":
    raise SystemExit(main())
