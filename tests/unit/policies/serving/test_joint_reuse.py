"""How much of the cache's tables plans have used, and when that changes."""

from dataclasses import replace

import pytest

from pentimento.domain.fleet import CachePlan, StartShare
from pentimento.policies.allocation import AllocationContext, AllocationDecision, ModelDemand
from pentimento.policies.serving.entry import LATENT
from pentimento.policies.serving.joint import JointAllocator
from pentimento.policies.serving.joint_demand import JointDemand
from pentimento.policies.serving.joint_reuse import (
    LEVELS,
    MORE,
    NOTHING,
    OWN,
    as_reused,
    known_under,
    level_of,
    quality_kept,
    settings_under,
    steps_away,
)
from pentimento.policies.serving.policy import SERVING_POLICIES
from pentimento.policies.serving.settings import ModelQuality, ServingSettings
from tests.unit.policies.serving.fleets import context, decide

QUALITIES = (ModelQuality("sd15", 1.0, reuse=0.95), ModelQuality("turbo", 0.5))
SETTINGS = ServingSettings(
    heavy="sd15", light="turbo", slo_s=10.0, demand_weight=1.0, qualities=QUALITIES, plans_reuse=True, bias_loss=0.02
)
# Six of ten leave out ten of fifty steps.
HITS = (StartShare(0, 400, "noise", 50), StartShare(10, 600, LATENT, 50, "sd15"))


def asked(rate: float, *starts: StartShare, now_s: float = 0.0) -> AllocationContext:
    return context(16, ModelDemand("sd15", rate, starts=starts), now_s=now_s)


def test_levels_are_told_by_alpha_and_bias_and_change_by_one_step() -> None:
    assert [level_of(replace(level, admits=("noise",), eviction="lcbfu")) for level in LEVELS] == list(LEVELS)
    assert level_of(CachePlan(bias=5)) == level_of(CachePlan(alpha=0.9)) == OWN
    assert [steps_away(level) for level in LEVELS] == [(OWN,), (NOTHING, MORE), (OWN,)]
    assert [steps_away(level, may_less=False) for level in LEVELS] == [(OWN,), (MORE,), ()]


def test_hits_leave_out_a_row_more_and_a_row_less_again() -> None:
    known = JointDemand(latent_saved=0.2, image_saved=0.85)

    more = known_under(known, OWN, MORE)

    assert (more.latent_saved, more.image_saved) == (pytest.approx(0.3), 0.9)
    assert known_under(more, MORE, OWN).latent_saved == pytest.approx(0.2)
    assert known_under(known, OWN, NOTHING) == known
    assert known_under(replace(known, latent_saved=0.15), MORE, OWN).latent_saved == 0.1


def test_nothing_means_that_all_start_from_noise() -> None:
    known = JointDemand(rate=1.0, latent_share=0.5, image_share=0.3)

    assert as_reused(known, NOTHING) == replace(known, latent_share=0.0, image_share=0.0)
    assert as_reused(known, MORE) == as_reused(known, OWN) == known


@pytest.mark.parametrize(("bias", "kept"), [(-3, 1.0), (0, 1.0), (1, 0.9), (2, 0.8), (20, 0.0)])
def test_rows_beyond_the_table_cost_quality_and_rows_below_it_win_none(bias: int, kept: float) -> None:
    assert quality_kept(bias, 0.1) == pytest.approx(kept)


def test_every_model_s_hits_keep_less_under_more_reuse() -> None:
    settings = ServingSettings(heavy="a", light="b", small=("c",), bias_loss=0.5, qualities=(ModelQuality("b", 0.7),))

    kept = {one.model: (one.quality, one.reuse) for one in settings_under(settings, MORE).qualities}

    assert kept == {"a": (1.0, 0.5), "b": (0.7, 0.5), "c": (0.9, 0.5)}
    assert settings_under(settings, NOTHING) is settings


def levels(rates: list[float], every_s: float = 40.0, settings: ServingSettings = SETTINGS) -> list[CachePlan]:
    """Of plans one after the other."""
    found, last = [], AllocationDecision()
    for number, rate in enumerate(rates):
        # Who reports no hits is whoever was told to use none.
        starts = HITS if last.cache != NOTHING else (StartShare(0, 1000, "noise", 50),)
        look = replace(asked(rate, *starts, now_s=number * every_s), last=last)
        last = decide(JointAllocator(settings), look)
        found.append(last.cache)
    return found


def test_where_all_can_be_painted_from_noise_nothing_is_reused_and_what_is_known_of_hits_stays_known() -> None:
    """Hits lose a twentieth: sixteen devices paint nine a second from noise, in batches."""
    found = levels([1.0, 1.0, 1.0, 18.0, 18.0, 18.0])

    assert found[:3] == [NOTHING, NOTHING, NOTHING]
    assert found[-1] != NOTHING


def test_under_load_more_is_reused_where_that_is_better_than_the_light_model() -> None:
    """Twenty-five a second are more than the heavy model carries: each hit of fifteen takes a tenth of a run less."""
    assert levels([25.0] * 3)[-1] == MORE
    assert MORE not in levels([25.0] * 3, settings=replace(SETTINGS, bias_loss=0.2))


def test_more_is_reused_at_once_and_less_after_half_a_minute() -> None:
    """Three looks at one a second, then at twenty-five, then at one again, every five seconds."""
    found = levels([1.0] * 3 + [25.0] * 30 + [1.0] * 20, every_s=5.0)

    assert found[0] == found[2] == NOTHING and found[32] == MORE and found[-1] != MORE
    changes = [number for number in range(1, len(found)) if found[number] != found[number - 1]]
    less = [number for number in changes if LEVELS.index(found[number]) < LEVELS.index(found[number - 1])]
    assert less and all(number - max(other for other in changes if other < number) >= 6 for number in less)


def test_plans_say_nothing_of_reuse_unless_they_are_to() -> None:
    assert set(levels([1.0, 25.0, 25.0, 1.0], settings=replace(SETTINGS, plans_reuse=False))) == {OWN}


def test_a_plan_s_word_on_hits_stands_beside_what_the_policy_keeps_and_evicts() -> None:
    said = SERVING_POLICIES["joint"](SETTINGS).cache_plan(MORE)

    assert said == CachePlan(("noise",), bias=1, eviction="lcbfu")
