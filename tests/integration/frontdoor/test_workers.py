"""Workers that break, lie, fall silent, come and go."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from lab.fixtures.frontdoor_suite import REQUEST, FrontdoorSuite, running_suite, until
from lab.fixtures.held_models import HELD
from lab.fixtures.paced_worker import PacedWorker, Running, image_of, serve
from pentimento.dataplane.demand_report import DemandReport
from pentimento.dataplane.requests import Phase
from pentimento.domain.adapters import Adapter, AdapterKind
from pentimento.domain.errors import FailedPrecondition, NotFound, Unavailable
from pentimento.domain.execution import AttemptResult
from pentimento.domain.fleet import ReplicaReport
from pentimento.domain.image_request import Completed


@pytest.fixture
async def second(folder: Path) -> AsyncIterator[PacedWorker]:
    paced = PacedWorker("w2")
    server = await serve(paced, f"unix:{folder / 'w2'}")
    yield paced
    await server.stop()


@pytest.fixture
async def pair(folder: Path, worker: PacedWorker, second: PacedWorker) -> AsyncIterator[FrontdoorSuite]:
    addresses = (f"unix:{folder / 'w1'}", f"unix:{folder / 'w2'}")
    async with running_suite(folder, worker_addresses=addresses) as suite:
        await suite.wait_for_workers(2)
        yield suite


async def test_a_broken_attempt_is_run_elsewhere_with_the_same_seed(
    pair: FrontdoorSuite, worker: PacedWorker, second: PacedWorker
) -> None:
    worker.fail_with = second.fail_with = Unavailable("BROKEN", "the device was lost")

    completed = await pair.paint()

    assert completed.image == image_of(completed.provenance.spec)
    assert worker.executed + second.executed == [completed.provenance.spec] * 3
    assert {order.route.route_id for order in worker.orders + second.orders} == {completed.provenance.route.route_id}


async def test_a_request_that_loses_every_worker_fails_and_the_next_one_does_not(
    suite: FrontdoorSuite, worker: PacedWorker
) -> None:
    async def lose_three() -> None:
        for _ in range(3):
            worker.fail_with = Unavailable("BROKEN", "the device was lost")
            await worker.wait_until(lambda: worker.fail_with is None)

    losing = asyncio.ensure_future(lose_three())
    with pytest.raises(Unavailable) as caught:
        await suite.paint()
    await losing

    assert caught.value.reason == "WORKER_LOST"
    assert (await suite.paint()).image


async def test_a_model_that_changed_under_the_plan_is_dispatched_by_what_the_worker_says(
    suite: FrontdoorSuite, worker: PacedWorker
) -> None:
    await suite.paint()
    worker.held = replace(worker.held, worker_generation=2)

    completed = await suite.paint()

    assert completed.provenance.worker_generation == 2


async def test_who_waits_is_painted_with_the_weights_that_the_model_has_by_then(
    suite: FrontdoorSuite, worker: PacedWorker
) -> None:
    """The image that was running at the change keeps its route, which the journal has."""
    state = suite.frontdoor.interpreter.dataplane.state
    worker.hold.clear()
    running = (await suite.client.submit(REQUEST)).request_id
    await worker.wait_until(lambda: worker.running)
    waiting = (await suite.client.submit(replace(REQUEST, seed=2))).request_id
    await until(lambda: state.requests[waiting].phase is Phase.QUEUED)

    worker.running.clear()
    worker.held = replace(worker.held, model_digest="sha256:new", worker_generation=2)
    worker.change()
    await until(lambda: state.workers["w1"].worker_generation == 2)
    worker.hold.set()
    (painted,) = [event async for event in suite.client.attach(waiting) if isinstance(event, Completed)]

    assert painted.provenance.model_digest == painted.provenance.route.model_digest == "sha256:new"
    assert state.requests[running].model_digest == HELD.model_digest
    (demand,) = (
        DemandReport(suite.frontdoor.interpreter.dataplane, suite.frontdoor.shadows.counts)
        .added_to(ReplicaReport("f", 1))
        .demand
    )
    assert sum(start.request_count for start in demand.starts) == 2


async def test_a_mismatch_is_queued_again_without_counting(suite: FrontdoorSuite, worker: PacedWorker) -> None:
    worker.fail_with = FailedPrecondition("MODEL_DIGEST_MISMATCH", "another model")

    completed = await suite.paint()

    assert completed.provenance.attempt_number == 2
    assert (await suite.operator.status()).retried_count == 0


async def test_a_picture_that_is_not_its_digest_is_never_delivered(
    suite: FrontdoorSuite, worker: PacedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = worker._result

    def lie(running: Running) -> AttemptResult:
        return replace(honest(running), image=b"something else")

    monkeypatch.setattr(worker, "_result", lie)

    with pytest.raises(Exception, match="does not match its digest"):
        await suite.paint()


async def test_a_model_is_not_unknown_before_every_worker_that_the_operator_named_has_told(
    folder: Path, worker: PacedWorker
) -> None:
    """Clients do not retry NOT_FOUND."""
    addresses = (f"unix:{folder / 'w1'}", f"unix:{folder / 'w2'}")
    async with running_suite(folder, worker_addresses=addresses) as suite:
        with pytest.raises(Unavailable, match="no worker has loaded 'another' yet"):
            await suite.paint(replace(REQUEST, model="another"))

        suite.frontdoor.fleet.links.follow({addresses[0]: True})
        with pytest.raises(NotFound):
            await suite.paint(replace(REQUEST, model="another"))


@pytest.mark.slow
async def test_a_silent_worker_is_lost_and_its_late_result_fenced_off(
    folder: Path, worker: PacedWorker, second: PacedWorker
) -> None:
    """As under SIGSTOP: its sockets stay open, and it continues later."""
    addresses = (f"unix:{folder / 'w1'}", f"unix:{folder / 'w2'}")
    async with running_suite(folder, worker_addresses=addresses[:1], worker_silence_s=1.2) as suite:
        worker.hold.clear()
        painting = asyncio.ensure_future(suite.paint())
        await worker.wait_until(lambda: worker.running)
        suite.frontdoor.fleet.links.follow(dict.fromkeys(addresses, True))

        worker.speaks = False
        completed = await painting

        assert completed.provenance.worker_id == "w2"
        assert completed.provenance.attempt_number >= 2
        worker.speaks = True
        worker.hold.set()
        await worker.wait_until(lambda: not worker.running)
        status = await suite.client.get_request(completed.request_id)
        assert status.completed == completed


@pytest.mark.slow
async def test_what_a_silent_worker_still_runs_is_stopped_when_it_is_back(folder: Path, worker: PacedWorker) -> None:
    async with running_suite(folder, worker_silence_s=1.2) as suite:
        worker.hold.clear()
        painting = asyncio.ensure_future(suite.paint())
        await worker.wait_until(lambda: worker.running)

        worker.speaks = False
        await suite.wait_for_workers(0)
        worker.hold.set()
        worker.speaks = True

        assert (await painting).provenance.attempt_number >= 2


async def test_a_worker_hears_how_long_its_client_waits(suite: FrontdoorSuite, worker: PacedWorker) -> None:
    await suite.paint(replace(REQUEST, deadline_ms=600_000))

    assert 300_000 < worker.orders[0].deadline_remaining_ms <= 600_000


async def test_of_two_workers_of_one_name_the_older_one_is_known_with_its_loras_once_it_is_alone(
    suite: FrontdoorSuite, folder: Path, worker: PacedWorker
) -> None:
    mosaic = Adapter("mosaic", AdapterKind.LORA, "sha256:mosaic", HELD.family)
    worker.known_adapters = (mosaic,)
    worker.change()
    state = suite.frontdoor.interpreter.dataplane.state
    await until(lambda: mosaic.digest in state.workers["w1"].holdings.loras)
    newer = PacedWorker("w1")
    newer.held = replace(newer.held, worker_generation=2)
    server = await serve(newer, f"unix:{folder / 'other'}")
    suite.frontdoor.fleet.links.follow({f"unix:{folder / 'w1'}": True, f"unix:{folder / 'other'}": True})
    await until(lambda: state.workers["w1"].worker_generation == 2)

    await server.stop()
    await until(lambda: state.workers["w1"].worker_generation == 1)

    assert mosaic.digest in state.workers["w1"].holdings.loras
