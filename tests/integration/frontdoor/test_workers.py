"""Test workers that fail, send wrong answers, fall silent, join and leave."""

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


async def test_failed_attempt_runs_elsewhere_with_same_seed(
    pair: FrontdoorSuite, worker: PacedWorker, second: PacedWorker
) -> None:
    worker.fail_with = second.fail_with = Unavailable("BROKEN", "the device was lost")

    completed = await pair.paint()

    assert completed.image == image_of(completed.provenance.spec)
    assert worker.executed + second.executed == [completed.provenance.spec] * 3
    assert {order.route.route_id for order in worker.orders + second.orders} == {completed.provenance.route.route_id}


async def test_request_that_loses_every_worker_fails_and_next_completes(
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


async def test_changed_model_is_dispatched_by_workers_report(suite: FrontdoorSuite, worker: PacedWorker) -> None:
    await suite.paint()
    worker.held = replace(worker.held, worker_generation=2)

    completed = await suite.paint()

    assert completed.provenance.worker_generation == 2


async def test_waiting_request_runs_with_current_weights(suite: FrontdoorSuite, worker: PacedWorker) -> None:
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
    (generated,) = [event async for event in suite.client.attach(waiting) if isinstance(event, Completed)]

    assert generated.provenance.model_digest == generated.provenance.route.model_digest == "sha256:new"
    assert state.requests[running].model_digest == HELD.model_digest
    (demand,) = (
        DemandReport(suite.frontdoor.interpreter.dataplane, suite.frontdoor.shadows.counts)
        .added_to(ReplicaReport("f", 1))
        .demand
    )
    assert sum(start.request_count for start in demand.starts) == 2


async def test_mismatch_is_requeued_without_counting_an_attempt(suite: FrontdoorSuite, worker: PacedWorker) -> None:
    worker.fail_with = FailedPrecondition("MODEL_DIGEST_MISMATCH", "another model")

    completed = await suite.paint()

    assert completed.provenance.attempt_number == 2
    assert (await suite.operator.status()).retried_count == 0


async def test_image_with_wrong_digest_is_not_delivered(
    suite: FrontdoorSuite, worker: PacedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = worker._result

    def lie(running: Running) -> AttemptResult:
        return replace(honest(running), image=b"something else")

    monkeypatch.setattr(worker, "_result", lie)

    with pytest.raises(Exception, match="does not match its digest"):
        await suite.paint()


async def test_model_is_unknown_only_after_all_named_workers_reported(folder: Path, worker: PacedWorker) -> None:
    """Clients do not retry NOT_FOUND."""
    addresses = (f"unix:{folder / 'w1'}", f"unix:{folder / 'w2'}")
    async with running_suite(folder, worker_addresses=addresses) as suite:
        with pytest.raises(Unavailable, match="no worker has loaded 'another' yet"):
            await suite.paint(replace(REQUEST, model="another"))

        suite.frontdoor.fleet.links.follow({addresses[0]: True})
        with pytest.raises(NotFound):
            await suite.paint(replace(REQUEST, model="another"))


@pytest.mark.slow
async def test_silent_worker_is_lost_and_its_late_result_rejected(
    folder: Path, worker: PacedWorker, second: PacedWorker
) -> None:
    """As under SIGSTOP: its sockets stay open, and it continues later."""
    addresses = (f"unix:{folder / 'w1'}", f"unix:{folder / 'w2'}")
    async with running_suite(folder, worker_addresses=addresses[:1], worker_silence_s=1.2) as suite:
        worker.hold.clear()
        generating = asyncio.ensure_future(suite.paint())
        await worker.wait_until(lambda: worker.running)
        suite.frontdoor.fleet.links.follow(dict.fromkeys(addresses, True))

        worker.speaks = False
        completed = await generating

        assert completed.provenance.worker_id == "w2"
        assert completed.provenance.attempt_number >= 2
        worker.speaks = True
        worker.hold.set()
        await worker.wait_until(lambda: not worker.running)
        status = await suite.client.get_request(completed.request_id)
        assert status.completed == completed


@pytest.mark.slow
async def test_attempt_of_silent_worker_is_stopped_on_its_return(folder: Path, worker: PacedWorker) -> None:
    async with running_suite(folder, worker_silence_s=1.2) as suite:
        worker.hold.clear()
        generating = asyncio.ensure_future(suite.paint())
        await worker.wait_until(lambda: worker.running)

        worker.speaks = False
        await suite.wait_for_workers(0)
        worker.hold.set()
        worker.speaks = True

        assert (await generating).provenance.attempt_number >= 2


async def test_worker_receives_clients_deadline(suite: FrontdoorSuite, worker: PacedWorker) -> None:
    await suite.paint(replace(REQUEST, deadline_ms=600_000))

    assert 300_000 < worker.orders[0].deadline_remaining_ms <= 600_000


async def test_older_worker_of_same_name_is_known_with_its_loras_once_alone(
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
