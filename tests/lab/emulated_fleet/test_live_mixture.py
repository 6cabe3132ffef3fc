"""Test MoDM's monitor on a real suite of emulated devices: a load that swings, over a cache that hits."""

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from lab.runs.load import LoadSettings, play
from lab.workloads import Arrival, Workload
from pentimento.clients.controller import ControllerClient
from pentimento.domain.errors import PentimentoError
from pentimento.domain.fleet import Fleet
from pentimento.rpc import open_channel
from pentimento.rpc.settings import client_settings
from pentimento.sdk import AsyncClient
from pentimento.supervisor.local import LocalSuite, local_suite

FLEET = """\
batching = "requests"
default_model = "large"
cache = true

[[models]]
name = "large"
steps = 10
latency_s = { 1 = 0.8 }
load_s = 0.05

[[models]]
name = "small"
steps = 10
latency_s = { 1 = 0.25 }
load_s = 0.05

[[devices]]
name = "d"
count = 6
models = ["large", "small"]
max_batch = 1

[reuse.images]
similarity = [0.999]
saved_share = [0.2]
"""
SETTINGS = """
[controller]
plan_interval_s = 1.0
policy_options = ["dwell_s=1", "damping_period_s=2"]

[frontdoor]
part_wait_factor = 300.0
"""
WORDS = (
    ("small", "medium", "large"),
    ("red", "orange", "yellow", "green", "cyan", "blue", "purple", "pink"),
    ("circle", "square", "triangle", "star", "heart", "ring", "cross", "diamond", "moon", "arrow"),
)
PROMPTS = tuple("a {} {} {} on a white background".format(*words) for words in itertools.product(*WORDS))
# Seconds and requests a second. In the busy time and after it one in five requests misses.
CALM_S, BUSY_S, CALM_RATE, BUSY_RATE = 10, 25, 4, 12
FIRST, EVERY = CALM_S * CALM_RATE, 5
# No hit is of a prompt that may still be unanswered.
REPEATED = FIRST // 2


@pytest.fixture
def suite(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[LocalSuite]:
    (tmp_path / "fleet.toml").write_text(FLEET)
    (tmp_path / "settings.toml").write_text(SETTINGS)
    flags = ["--emulate", str(tmp_path / "fleet.toml"), "--policy", "modm", "--config", str(tmp_path / "settings.toml")]
    with local_suite([*flags, "--modm-mode", request.param]) as running:
        yield running


def swinging() -> Workload:
    """Return new prompts while it is calm, so that the cache fills; then a busy time, most of it hits; then calm."""
    fresh = iter(PROMPTS[REPEATED:])
    times = [number / CALM_RATE for number in range(FIRST)]
    times += [CALM_S + number / BUSY_RATE for number in range(BUSY_S * BUSY_RATE)]
    times += [CALM_S + BUSY_S + number / CALM_RATE for number in range(FIRST)]
    prompts = [*PROMPTS[:REPEATED], *(next(fresh) for _ in range(FIRST - REPEATED))]
    for number in range(FIRST, len(times)):
        prompts.append(next(fresh) if number % EVERY == 0 else PROMPTS[number % REPEATED])
    arrivals = (
        Arrival(at_s, "", prompt, "standard", deadline_s=60.0, steps=0, seed=seed)
        for seed, (at_s, prompt) in enumerate(zip(times, prompts, strict=True))
    )
    return Workload("swinging", tuple(arrivals), {})


@pytest.mark.parametrize(("suite", "calm"), [("quality", {5, 6}), ("throughput", {2, 3, 4})], indirect=["suite"])
async def test_large_workers_follow_swinging_load(suite: LocalSuite, calm: set[int]) -> None:
    """In the busy time, 2.4 misses a second need 2.1 large devices, and 7.7 full runs a second of hits allow at most 4
    (Eq. 6-10). In the calm time, six run everything in quality mode; in throughput mode half of the devices run misses
    (Eq. 11)."""
    looks: list[tuple[float, Fleet]] = []

    async def look() -> None:
        began = asyncio.get_running_loop().time()
        async with open_channel(suite.endpoint.controller, client_settings()) as channel:
            while True:
                with suppress(PentimentoError):  # a busy machine answers the next one
                    looks.append((asyncio.get_running_loop().time() - began, await ControllerClient(channel).fleet()))
                await asyncio.sleep(0.3)

    async with AsyncClient(suite.endpoint.public) as client:
        watching = asyncio.create_task(look())
        records = await play(swinging(), {"": client}, LoadSettings(lead_s=0.0))
        watching.cancel()

    assert "modm" in {fleet.plan.allocator for _, fleet in looks}, [fleet.plan.notes for _, fleet in looks[-1:]]
    large = [(at_s, fleet.steered.planned_count) for at_s, fleet in looks if fleet.steered is not None]
    assert any(fleet.steered.damped_count != fleet.steered.target_count for _, fleet in looks if fleet.steered)
    busy = [count for at_s, count in large if CALM_S + 5 < at_s < CALM_S + BUSY_S]
    assert min(busy) >= 2
    assert min(count for at_s, count in large if CALM_S < at_s < CALM_S + BUSY_S + 5) <= 4
    assert large[-1][1] in calm
    assert {record.outcome.answered for record in records} == {True}
    hits = [record for record in records if record.start_step]
    assert len(hits) >= 0.5 * len(records)
    assert "small" in {record.model for record in hits}
