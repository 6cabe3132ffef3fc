import asyncio
from dataclasses import replace

import pytest

from lab.fixtures.held_models import HELD
from pentimento.domain.demand import PoolDemand
from pentimento.domain.errors import NotFound, Unavailable
from pentimento.domain.fleet import RegisteredDigest, ReplicaReport
from services.frontdoor.workers.catalogue import Catalogue
from tests.support.logged import said_by


def test_before_any_worker_was_heard_every_model_is_awaited() -> None:
    with pytest.raises(Unavailable) as caught:
        Catalogue("").find("tiny")

    assert caught.value.retry_after_ms is not None


def test_step_of_a_model_is_that_of_its_slowest_worker() -> None:
    catalogue = Catalogue("")
    for step_s in (0.5, 7.0, 0.5):
        catalogue.learn(replace(HELD, step_s=step_s))

    assert catalogue.find("tiny").step_s == 7.0
    catalogue.learn(replace(HELD, step_s=0.1, model_digest="sha256:newer", worker_generation=2))
    assert catalogue.find("tiny").step_s == 0.1


def test_an_unknown_name_is_not_found_and_echoed_no_further_than_needed() -> None:
    catalogue = Catalogue("")
    catalogue.learn(HELD)

    with pytest.raises(NotFound, match="model: must be one of tiny, got") as caught:
        catalogue.find("x" * 100_000)

    assert len(caught.value.message) < 200


def test_while_a_worker_that_must_be_there_has_not_told_no_name_is_unknown() -> None:
    catalogue = Catalogue("", worker_wait_s=30.0, monotonic=lambda: 100.0)
    catalogue.learn(HELD)
    catalogue.await_worker("w2")

    with pytest.raises(Unavailable) as caught:
        catalogue.find("x" * 100_000)

    assert (caught.value.reason, caught.value.retry_after_ms) == ("MODEL_NOT_LOADED", 1000)
    assert len(caught.value.message) < 200


def test_once_every_worker_has_told_or_was_waited_for_a_name_may_be_unknown() -> None:
    now = [100.0]
    catalogue = Catalogue("", worker_wait_s=30.0, monotonic=lambda: now[0])
    catalogue.learn(HELD)

    catalogue.await_worker("w2")
    catalogue.await_no_longer("w2")
    with pytest.raises(NotFound):
        catalogue.find("another")

    catalogue.await_worker("w3")
    now[0] += 30.0
    with pytest.raises(NotFound):
        catalogue.find("another")


@pytest.mark.parametrize(("default", "found"), [("", "another"), ("tiny", "tiny")])
def test_no_name_means_the_deployments_default_or_the_first(default: str, found: str) -> None:
    catalogue = Catalogue(default)
    catalogue.learn(HELD)
    catalogue.learn(replace(HELD, model="another"))

    assert catalogue.find("").model == found


def test_of_two_weights_under_one_name_the_later_start_counts_and_it_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [100.0]
    catalogue = Catalogue("", monotonic=lambda: now[0])
    older, newer = (replace(HELD, model_digest=f"sha256:{word}", worker_generation=n) for n, word in enumerate("on"))

    for held in (older, newer, older, newer, older):
        catalogue.learn(held)
        now[0] += 1.0

    assert catalogue.find("tiny") == newer
    (told,) = said_by("services.frontdoor.workers.catalogue", caplog)
    assert told.levelname == "ERROR" and "different weights under one model name" in told.message
    assert (told.model, told.used, told.not_used) == ("tiny", "sha256:n", "sha256:o")  # type: ignore[attr-defined]


def test_weights_whose_workers_are_silent_give_way_to_an_older_start() -> None:
    now = [100.0]
    catalogue = Catalogue("", monotonic=lambda: now[0])
    older, newer = (replace(HELD, model_digest=f"sha256:{word}", worker_generation=n) for n, word in enumerate("on"))
    catalogue.learn(newer)

    now[0] += 9.0
    catalogue.learn(older)
    assert catalogue.find("tiny") == newer
    now[0] += 1.0
    catalogue.learn(older)

    assert catalogue.find("tiny") == older


async def test_a_model_can_be_waited_for() -> None:
    catalogue = Catalogue("")
    waiting = asyncio.ensure_future(catalogue.wait_for("tiny"))
    catalogue.learn(replace(HELD, model="another"))

    catalogue.learn(HELD)

    assert await waiting == HELD


def test_the_list_counts_ready_workers() -> None:
    catalogue = Catalogue("")
    catalogue.learn(HELD)

    (info,) = catalogue.infos(lambda held: 3)

    assert (info.name, info.max_size_px, info.ready_worker_count) == ("tiny", 64, 3)


def test_under_a_registered_name_its_digest_alone_counts_whoever_came_first() -> None:
    catalogue = Catalogue("")
    wrong, right = replace(HELD, model_digest="sha256:wrong", worker_generation=2), HELD
    catalogue.learn(wrong)

    catalogue.follow([RegisteredDigest(HELD.model, HELD.model_digest)])
    assert catalogue.known(HELD.model) is None

    for held in (right, wrong):
        catalogue.learn(held)
    assert catalogue.find(HELD.model) == right

    catalogue.follow([])
    catalogue.learn(wrong)
    assert catalogue.find(HELD.model) == wrong


async def test_call_waits_for_planned_model_and_asks_for_it() -> None:
    catalogue = Catalogue("")
    catalogue.follow((), ("tiny", "other"))
    report = ReplicaReport("f", 1)

    waiting = asyncio.ensure_future(catalogue.wait_until_loaded("tiny", 30.0))
    await asyncio.sleep(0)
    assert catalogue.added_to(report).demand == (PoolDemand("tiny", queue_length=1),)
    catalogue.learn(HELD)
    await waiting

    assert catalogue.added_to(report) == report


async def test_call_without_a_model_waits_for_the_default_one() -> None:
    catalogue = Catalogue("tiny")
    catalogue.follow((), ("tiny", "other"))

    waiting = asyncio.ensure_future(catalogue.wait_until_loaded("", 30.0))
    await asyncio.sleep(0)

    assert catalogue.added_to(ReplicaReport("f", 1)).demand == (PoolDemand("tiny", queue_length=1),)
    catalogue.learn(HELD)
    await waiting


@pytest.mark.parametrize(("name", "timeout_s"), [("tiny", 30.0), ("strange", 30.0), ("other", 0.0)])
async def test_call_waits_only_for_planned_unknown_models(name: str, timeout_s: float) -> None:
    catalogue = Catalogue("")
    catalogue.follow((), ("tiny", "other"))
    catalogue.learn(HELD)

    async with asyncio.timeout(5.0):
        await catalogue.wait_until_loaded(name, timeout_s)

    assert not catalogue.wanted.total()


async def test_calls_beyond_the_limit_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.frontdoor.workers.catalogue.MOST_WAITING", 1)
    catalogue = Catalogue("")
    catalogue.follow((), ("tiny",))
    waiting = asyncio.ensure_future(catalogue.wait_until_loaded("tiny", 30.0))
    await asyncio.sleep(0)

    async with asyncio.timeout(5.0):
        await catalogue.wait_until_loaded("tiny", 30.0)

    waiting.cancel()
