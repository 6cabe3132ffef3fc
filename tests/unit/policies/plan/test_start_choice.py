"""Test the candidate models of a start, and the choice of the start."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentimento.domain.fleet import PoolPlan, RouteShare
from pentimento.policies.plan.entry import (
    FoundStart,
    Stage,
    StartCandidate,
    choose_start,
    start_candidates,
    start_lanes,
)

LARGE = PoolPlan("large", "sd35", ("w0",), routes=(RouteShare("noise", 1.0), RouteShare("spare", 1.0)))
SMALL = PoolPlan("small", "turbo", ("w1",), routes=(RouteShare("latent", 1.0), RouteShare("image", 1.0)))
TWIN = PoolPlan("twin", "turbo", ("w2",), routes=(RouteShare("spare", 1.0),))
OWN = Stage("large", "sd35")


def test_without_a_plan_the_own_model_takes_every_start() -> None:
    assert start_candidates((), OWN, 0.5) == (StartCandidate("large", "sd35", latents=True, images=True),)


def test_images_follow_plan_and_latents_stay_with_their_model() -> None:
    assert start_candidates((LARGE, SMALL), OWN, 0.5) == (
        StartCandidate("large", "sd35", latents=True, images=True, stands_in=True),
        StartCandidate("small", "turbo", latents=True, images=True),
    )


def test_own_pool_is_one_candidate_where_plan_routes_all_to_it() -> None:
    assert start_candidates((SMALL,), Stage("small", "turbo"), 0.5) == (
        StartCandidate("small", "turbo", latents=True, images=True),
    )


@pytest.mark.parametrize(("draw", "pool"), [(0.2, "small"), (0.8, "other")])
def test_pools_that_share_a_start_take_turns_by_the_requests_draw(draw: float, pool: str) -> None:
    half = (RouteShare("image", 0.5),)
    pools = (PoolPlan("small", "turbo", ("w1",), routes=half), PoolPlan("other", "sdxs", ("w2",), routes=half))

    assert [one.pool for one in start_candidates(pools, OWN, draw)] == ["large", pool]


OWN_IMAGE = FoundStart("image", 0.5, 1.0, stands_in=True)
UNKNOWN, IMAGE = FoundStart("latent", 0.5, None), FoundStart("image", 0.4, 1.0)
FOUND = {
    "no cached start": ([FoundStart("noise", 0.0, 9.0), FoundStart("noise", 0.0, 1.0)], 0),
    "the earliest to end": ([FoundStart("latent", 0.5, 4.0), IMAGE], 1),
    "a fast miss": ([FoundStart("noise", 0.0, 0.1), FoundStart("image", 0.1, 8.0)], 1),
    "an image where another has one": ([OWN_IMAGE, FoundStart("image", 0.25, 9.0)], 1),
    "an image where no other has one": ([OWN_IMAGE, FoundStart("noise", 0.0, 0.1)], 0),
    "own latents": ([FoundStart("latent", 0.5, 1.0, stands_in=True), FoundStart("image", 0.5, 2.0)], 0),
    "seconds unknown": ([UNKNOWN, IMAGE], 0),
    "seconds unknown, the other order": ([IMAGE, UNKNOWN], 1),
}


def test_choose_start_takes_the_best_candidate() -> None:
    assert {name: choose_start(found) for name, (found, _) in FOUND.items()} == {
        name: number for name, (_, number) in FOUND.items()
    }


kinds = st.sampled_from(["noise", "latent", "image"])
starts = st.builds(FoundStart, kinds, st.floats(0, 0.99), st.floats(0, 100))


@given(st.lists(starts, min_size=1, max_size=8))
def test_nothing_that_was_found_would_be_done_before_the_choice(found: list[FoundStart]) -> None:
    number = choose_start(found)

    hits = [start for start in found if start.kind != "noise"]
    if not hits:
        assert number == 0
    else:
        assert found[number].kind != "noise"
        fastest = min(start.seconds_left or 0.0 for start in hits)
        assert found[number].seconds_left == fastest
        assert all(start.kind == "noise" or start.seconds_left != fastest for start in found[:number])


@pytest.mark.parametrize(
    ("start", "lanes"), [("image", (LARGE, TWIN)), ("latent", (TWIN,)), ("noise", ())], ids=["image", "latent", "noise"]
)
def test_idle_pools_take_images_and_latents_of_their_own_model(start: str, lanes: tuple[PoolPlan, ...]) -> None:
    entered = StartCandidate("small", "turbo", latents=True, images=True)

    assert start_lanes((LARGE, SMALL, TWIN), start, entered) == lanes


def test_a_pool_without_workers_spares_nothing() -> None:
    empty = PoolPlan("twin", "turbo", (), routes=(RouteShare("spare", 1.0),))

    assert start_lanes((SMALL, empty), "image", StartCandidate("small", "turbo", images=True)) == ()
