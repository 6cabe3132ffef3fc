"""Requests with LoRAs and ControlNets run on workers that have them, and delay no others."""

from dataclasses import replace

import pytest

from pentimento.dataplane import events
from pentimento.domain.fleet import Capability
from pentimento.policies.adapter_needs import AdapterHoldings, AdapterNeeds
from tests.unit.dataplane.driver import TAKES_LORAS, Driver, play

NEON = AdapterNeeds(TAKES_LORAS, frozenset({"neon"}))
CONTROLLED = AdapterNeeds(frozenset({Capability.CONTROLNET}))
LARGE = "worker large model=large"


def holding(*loras: str, resident: tuple[str, ...] = ()) -> AdapterHoldings:
    return AdapterHoldings(TAKES_LORAS, frozenset(loras), frozenset(resident))


@pytest.mark.parametrize(
    ("needs", "holdings"),
    [
        (NEON, None),
        (NEON, holding("mosaic")),
        (NEON, AdapterHoldings(loras=frozenset({"neon"}))),
        (CONTROLLED, holding("neon")),
    ],
    ids=["a worker that told of nothing", "another LoRA", "no capability", "no ControlNets"],
)
def test_worker_without_needed_adapter_gets_no_request(
    driver: Driver, needs: AdapterNeeds, holdings: AdapterHoldings | None
) -> None:
    driver.worker(holdings=holdings)

    assert driver.queue(needs=needs) == []
    able = AdapterHoldings(TAKES_LORAS | {Capability.CONTROLNET}, frozenset({"neon"}))
    driver.worker("able", holdings=able)
    assert driver.dataplane.state.requests["r1"].worker_id == "able"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        # A request that waits for its LoRA delays no other, and goes first once a worker has it.
        ("queue styled needs=neon, queue plain, worker w1", "plain to w1"),
        (
            "worker w1, queue styled needs=neon, run plain, queue later within=100, worker able has=neon",
            "styled to able",
        ),
        # Requests that wait for LoRAs keep their order and pass one another.
        (
            "queue n1 needs=neon, queue m1 needs=mosaic, queue n2 needs=neon, worker w1 has=neon credit_count=3",
            "n1 to w1, n2 to w1",
        ),
        (
            "queue n1 needs=neon, queue m1 needs=mosaic, worker w1 has=neon, worker w2 has=mosaic",
            "m1 to w2",
        ),
        # A loaded LoRA comes before one on disk.
        ("worker w1 has=neon warm=mosaic, worker w2 has=mosaic warm=neon, queue r1 needs=neon", "r1 to w2"),
        ("worker w1 has=neon warm=mosaic, worker w2 has=mosaic warm=neon, queue r1 needs=mosaic", "r1 to w1"),
        # Holdings stay until the worker reports others or restarts.
        ("worker w1 has=neon credit_count=0, queue r1 needs=neon, worker w1", "r1 to w1"),
        ("worker w1 has=neon, worker w1 generation=2, queue r1 needs=neon", ""),
        # A full worker takes no urgent request without its LoRA, nor the one after it.
        ("worker w1 reserve_count=1, run r1, queue urgent within=10 needs=neon", ""),
        ("worker w1 reserve_count=1, run r1, queue urgent within=10 needs=neon, queue plain within=10", ""),
        (
            "worker w1 reserve_count=1, run r1, queue urgent within=10 needs=neon, queue plain within=10,"
            " cancel urgent, worker w1 reserve_count=1",
            "plain to w1",
        ),
        # Reruns and spare lanes need it, too.
        ("worker w1 has=neon, run r1 needs=neon, worker w2, fail r1 WORKER_LOST", "ReleaseGrant r1"),
        ("worker w1 has=neon, run r1 needs=neon, worker w2, fail r1 WORKER_LOST, worker w3 has=neon", "r1 to w3"),
        (f"{LARGE} has=mosaic, queue r1 needs=neon spare=large", ""),
        (f"{LARGE} has=mosaic, queue r1 needs=neon spare=large, worker own has=neon", "r1 to own"),
        (
            f"{LARGE} has=mosaic, queue styled needs=neon spare=large, run own pool=large, queue next pool=large,"
            " worker larger model=large has=neon credit_count=2",
            "next to larger, styled to larger",
        ),
        # Requests that were set aside end at their deadline.
        ("worker w1, queue r1 within=10 needs=neon, wait 10", "PersistEnd r1"),
        ("worker w1, queue r1 within=10 needs=neon, wait 10, worker able has=neon", ""),
        # A plain request leaves the last worker with a LoRA to others, unless that worker is cheaper.
        ("worker w1 has=mosaic warm=neon, worker w2 has=neon+mosaic, queue plain", "plain to w2"),
        (
            "worker w1 warm=neon credit_count=2, worker w2 has=neon credit_count=2, run r1, queue plain",
            "plain to w1",
        ),
        # Only eight of equal cost are compared.
        (", ".join(f"worker w{number} has=lora{number}" for number in range(8)) + ", worker w8, queue r1", "r1 to w0"),
    ],
)
def test_request_with_lora_goes_where_it_is(driver: Driver, script: str, said: str) -> None:
    assert play(driver, script) == said


def test_uploaded_lora_prefers_worker_that_fetched_it(driver: Driver) -> None:
    fetches = frozenset({Capability.UPLOADED_LORA})
    needs = AdapterNeeds(fetches, uploaded=frozenset({"ink"}))
    driver.worker("cold", holdings=AdapterHoldings(fetches))
    driver.worker("warm", holdings=AdapterHoldings(fetches, resident=frozenset({"ink"})))

    for name in ("a", "b"):
        driver.queue(name, needs=needs)

    requests = driver.dataplane.state.requests
    assert (requests["a"].worker_id, requests["b"].worker_id) == ("warm", "cold")


@pytest.mark.parametrize(
    ("assumed_s", "measured_s", "chosen"),
    [(5.0, {}, "warm"), (0.5, {}, "cold"), (9.0, {"neon": 1.0}, "cold"), (9.0, {"neon": 5.0}, "warm")],
)
def test_load_seconds_are_weighed_against_fuller_batch(
    monkeypatch: pytest.MonkeyPatch, assumed_s: float, measured_s: dict[str, float], chosen: str
) -> None:
    """Alone an image takes 10 s, with another one 14 s each. `assumed_s` counts unless the worker measured the load."""
    monkeypatch.setattr("pentimento.dataplane.dispatch.ADAPTER_LOAD_S", assumed_s)
    driver = Driver()
    driver.profile("m", (1, 1.0), (2, 1.4))
    driver.worker("warm", holdings=holding("neon", resident=("neon",)), credit_count=2)
    driver.queue("first", work=10.0, needs=NEON)
    driver.worker("cold", holdings=replace(holding("neon"), load_s=measured_s), credit_count=2)

    driver.queue("second", work=10.0, needs=NEON)

    requests = driver.dataplane.state.requests
    assert (requests["first"].worker_id, requests["second"].worker_id) == ("warm", chosen)


def test_recovered_request_still_needs_its_lora(driver: Driver) -> None:
    recovered = events.RecoveredRequest("r1", "t", "m", 1.0, 1000.0, route_pinned=True, model_digest="d", needs=NEON)
    driver.worker("other")

    assert driver.send(events.Recovered((recovered,))) == []
    assert play(driver, "worker able has=neon") == "r1 to able"
