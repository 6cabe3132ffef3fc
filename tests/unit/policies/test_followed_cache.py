"""Test the values that a cache takes from a plan, and the ones that the operator fixes."""

import pytest

from pentimento.domain.fleet import CachePlan, Plan
from pentimento.domain.generation import PlanVersion
from pentimento.policies.followed_cache import CacheChoice, CacheInForce, cache_in_force, kind_of_run

VERSION = PlanVersion(5, 12)


def plan(**cache: object) -> Plan:
    return Plan(VERSION, cache=CachePlan(**cache))  # type: ignore[arg-type]


def test_without_a_plan_the_operators_choice_is_in_force() -> None:
    assert cache_in_force(CacheChoice(), None) == CacheInForce(None, 0, "aged")
    assert cache_in_force(CacheChoice(0.8, -1, "lru"), None) == CacheInForce(0.8, -1, "lru")


def test_plan_sets_values_without_operator_choice() -> None:
    now = cache_in_force(CacheChoice(), plan(alpha=0.95, bias=-2, eviction="lcbfu"))

    assert (now.alpha, now.bias, now.eviction) == (0.95, -2, "lcbfu")
    assert now.told == "plan 5.12: alpha 0.95, cache bias -2"


def test_operator_choice_overrides_plan_with_reason() -> None:
    now = cache_in_force(CacheChoice(0.8, 0, "none"), plan(alpha=0.95, bias=3, eviction="lcbfu"))

    assert (now.alpha, now.bias, now.eviction) == (0.8, 0, "none")
    assert now.told == "plan 5.12: alpha 0.8 is the operator's, cache bias +0 is the operator's"


def test_plan_without_cache_values_is_not_mentioned() -> None:
    now = cache_in_force(CacheChoice(alpha=0.8), plan())

    assert (now.alpha, now.eviction, now.told) == (0.8, "aged", "")


@pytest.mark.parametrize(
    ("cache", "start", "light", "refusal"),
    [
        ({}, "image", True, ""),
        ({"admits": ("noise",)}, "noise", False, ""),
        ({"admits": ("noise",)}, "image", False, "plan 5.12 keeps nothing that starts from image"),
        ({"admits": ()}, "noise", False, "plan 5.12 keeps nothing that starts from noise"),
        ({"admits_light": False}, "noise", True, "plan 5.12 keeps nothing of a cascade's earlier stages"),
        ({"admits_light": False}, "noise", False, ""),
    ],
)
def test_only_entries_admitted_by_plan_enter(cache: dict[str, object], start: str, light: bool, refusal: str) -> None:
    assert cache_in_force(CacheChoice(), plan(**cache)).refusal(start, light=light) == refusal


def test_without_a_plan_everything_may_enter() -> None:
    assert CacheInForce(admits=(), admits_light=False).refusal("noise", light=True) == ""


@pytest.mark.parametrize("followed", [None, plan(), plan(admits=("noise",), admits_light=False)])
def test_operator_that_drops_light_stages_keeps_last_stages(followed: Plan | None) -> None:
    now = cache_in_force(CacheChoice(keeps_light=False), followed)

    assert now.refusal("noise", light=True) == "this cache keeps nothing of a cascade's earlier stages"
    assert now.refusal("noise", light=False) == ""


def test_kind_of_run_without_start_follows_first_step() -> None:
    assert [kind_of_run("", 0), kind_of_run("", 5), kind_of_run("image", 5)] == ["noise", "latent", "image"]
