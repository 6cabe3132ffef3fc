"""Measure the time to the first preview as a share of the whole image's.

    python -m benchmarks.first_preview

Images of 50 steps from noise over HTTP, as the playground requests them (a preview every tenth of the steps), on an
otherwise idle suite. The same images with a preview after every step and with none alternate with them: the cost of
previews. Times are the client's, from the request to the event.
"""

import json
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import httpx

from lab.runs.measure import at_most, informative, measured, parse_options, publish
from pentimento.supervisor.local import LocalSuite, local_suite

PROMPT = "a red circle left of a blue square"
STEPS = 50
PLAYGROUND_INTERVAL = STEPS // 10
LIMIT = 0.15
GUARD_S = 120.0


@dataclass(frozen=True)
class WatchedImage:
    """Store seconds to the first preview (NaN without one) and to the image."""

    preview_s: float
    picture_s: float

    @property
    def share(self) -> float:
        """Return the share of the whole time until the first preview."""
        return self.preview_s / self.picture_s


def events(lines: Iterator[str]) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield name and values of server-sent events."""
    name = ""
    for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


def watch(client: httpx.Client, seed: int, interval: int) -> WatchedImage:
    """Request one image. Raises RuntimeError if the stream ends without it."""
    body = {"prompt": PROMPT, "num_inference_steps": STEPS, "seed": seed, "cache": "off"}
    began_s, preview_s = time.perf_counter(), float("nan")
    asked = {**body, "preview_every_steps": interval}
    with client.stream("POST", "/console/data/generate", json=asked) as answer:
        for name, values in events(answer.iter_lines()):
            now_s = time.perf_counter() - began_s
            if name == "progress" and values["preview"] and math.isnan(preview_s):
                preview_s = now_s
            elif name == "completed":
                return WatchedImage(preview_s, now_s)
    raise RuntimeError("the stream ended without an image")


def opened(suite: LocalSuite) -> httpx.Client:
    return httpx.Client(base_url=f"http://{suite.endpoint.http}", timeout=GUARD_S)


def main() -> int:
    options = parse_options("first_preview", __doc__)
    count = 4 if options.quick else 40
    intervals = (PLAYGROUND_INTERVAL, 1, 0)
    seen: dict[int, list[WatchedImage]] = {interval: [] for interval in intervals}
    with local_suite(["--http", "127.0.0.1:0"]) as suite, opened(suite) as client:
        watch(client, 0, 1)
        for seed in range(count):
            for interval in intervals:
                seen[interval].append(watch(client, seed, interval))
    usual, each, none = (seen[interval] for interval in intervals)
    figures = [
        measured("first preview ÷ picture, median", shares(usual), statistics.median, at_most(LIMIT)),
        measured("the same, a preview every step", shares(each), statistics.median, informative()),
        measured("first preview", [one.preview_s for one in usual], statistics.median, informative("s")),
        measured("picture", [one.picture_s for one in usual], statistics.median, informative("s")),
        measured("picture with previews ÷ without", beside(usual, none), statistics.median, informative("x")),
        measured("the same, a preview every step ÷ without", beside(each, none), statistics.median, informative("x")),
    ]
    notes = {"pictures": count, "steps": STEPS, "interval_steps": PLAYGROUND_INTERVAL, "seeds": count}
    return publish(options, figures, notes=notes)


def shares(seen: Sequence[WatchedImage]) -> list[float]:
    return [one.share for one in seen]


def beside(seen: Sequence[WatchedImage], plain: Sequence[WatchedImage]) -> list[float]:
    """Return each image's time over that of the same image without previews."""
    return [one.picture_s / other.picture_s for one, other in zip(seen, plain, strict=True)]


if __name__ == "__main__":
    raise SystemExit(main())
