import asyncio
from dataclasses import replace

import pytest

from pentimento.domain.errors import NotFound, Unavailable
from pentimento.testing.held_models import HELD
from services.frontdoor.workers.catalogue import Catalogue


def test_before_any_worker_was_heard_every_model_is_awaited() -> None:
    with pytest.raises(Unavailable) as caught:
        Catalogue("").find("tiny")

    assert caught.value.retry_after_ms is not None


def test_an_unknown_name_is_not_found_and_echoed_no_further_than_needed() -> None:
    catalogue = Catalogue("")
    catalogue.learn(HELD)

    with pytest.raises(NotFound, match="model: must be one of tiny, got") as caught:
        catalogue.find("x" * 100_000)

    assert len(caught.value.message) < 200


@pytest.mark.parametrize(("default", "found"), [("", "another"), ("tiny", "tiny")])
def test_no_name_means_the_deployments_default_or_the_first(default: str, found: str) -> None:
    catalogue = Catalogue(default)
    catalogue.learn(HELD)
    catalogue.learn(replace(HELD, model="another"))

    assert catalogue.find("").model == found


def test_the_newest_report_of_a_model_counts() -> None:
    catalogue = Catalogue("")
    catalogue.learn(HELD)
    catalogue.learn(replace(HELD, model_digest="sha256:newer"))

    assert catalogue.find("tiny").model_digest == "sha256:newer"


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
