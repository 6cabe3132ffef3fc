import time
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from pentimento.domain.clock import SystemClock
from pentimento.domain.fleet import Plan
from pentimento.domain.generation import PlanVersion
from pentimento.stores.ledger import Journal, open_journal
from pentimento.wire.plans import plan_to_bytes
from services.frontdoor.workers.plan_watch import PlanWatch

NOW_MS = int(time.time() * 1000)
SOUND = Plan(PlanVersion(NOW_MS, 1))
UNBELIEVABLE = Plan(PlanVersion(2**62, 1))


@pytest.fixture
async def journal(tmp_path: Path) -> AsyncIterator[Journal]:
    with closing(open_journal(f"sqlite:///{tmp_path / 'journal.sqlite'}")) as journal:
        yield journal


async def test_a_plan_of_an_epoch_that_no_controller_can_have_keeps_no_later_one_out(journal: Journal) -> None:
    watch = PlanWatch(None, journal, "frontdoor", SystemClock())
    taken: list[Plan] = []

    for plan in (UNBELIEVABLE, SOUND):
        await watch._take(plan, taken.append)

    assert taken == [SOUND]


@pytest.mark.parametrize(("saved", "loaded"), [(SOUND, SOUND), (UNBELIEVABLE, None)])
async def test_nor_does_one_that_was_saved_once(journal: Journal, saved: Plan, loaded: Plan | None) -> None:
    journal.save_plan(plan_to_bytes(saved)).result()

    assert await PlanWatch(None, journal, "frontdoor", SystemClock()).load() == loaded
