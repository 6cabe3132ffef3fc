from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.runs import StartKind
from lab.simulator.cache import CacheSettings, SimulatedCache
from pentimento.domain.fleet import CachePlan, Plan
from pentimento.domain.generation import PlanVersion
from pentimento.policies.cache_selection import SelectionRules, Threshold
from pentimento.policies.plan.registry import CacheUse

# Row 1 is near row 0, row 2 nearer, row 3 far from all.
ANGLES = np.array([0.0, 0.60, 0.30, 2.0], np.float32)
EMBEDDINGS = np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1)
RULES = SelectionRules(images=(Threshold(0.8, 0.2), Threshold(0.95, 0.5)))


def latents(capacity: int = 100, **changes: object) -> SimulatedCache:
    return SimulatedCache(CacheUse.LATENTS, "lcbfu", CacheSettings(capacity, **changes), EMBEDDINGS)  # type: ignore[arg-type]


def images(capacity: int = 100, **changes: object) -> SimulatedCache:
    return SimulatedCache(CacheUse.IMAGES, "fifo", CacheSettings(capacity, RULES, **changes), EMBEDDINGS)  # type: ignore[arg-type]


def test_the_nearer_the_prompt_the_more_steps_are_saved() -> None:
    cache = latents()
    cache.insert("t", "m", 0, 50)

    found = [cache.lookup("t", "m", row, 50).start_step for row in (0, 2, 1, 3)]

    # Cosines 1, 0.955, 0.825 and -0.42.
    assert found == [25, 25, 10, 0]


def test_unknown_prompt_is_a_miss() -> None:
    assert latents().lookup("t", "m", 0, 50).kind is StartKind.NOISE


@pytest.mark.parametrize(
    ("tenant", "model", "steps"), [("other", "m", 50), ("t", "other", 50), ("t", "m", 30)], ids=["tenant", "model", "T"]
)
def test_latents_of_others_are_misses(tenant: str, model: str, steps: int) -> None:
    cache = latents()
    cache.insert("t", "m", 0, 50)

    assert cache.lookup(tenant, model, 0, steps).kind is StartKind.NOISE


def test_an_image_serves_any_model() -> None:
    cache = images()
    cache.insert("t", "m", 0, 50)

    answer = cache.lookup("t", "another", 2, 50)

    assert (answer.kind, answer.start_step, answer.donor) == (StartKind.IMAGE, 25, 0)


def test_a_shared_pool_serves_every_tenant() -> None:
    cache = images(shared=True)
    cache.insert("t", "m", 0, 50)

    assert cache.lookup("u", "m", 0, 50).kind is StartKind.IMAGE


def test_a_hole_is_filled_by_the_largest_k_below_it() -> None:
    cache = latents(capacity=5, rules=SelectionRules(keeps_latents_of_hits=True))
    cache.insert("t", "m", 0, 50)
    cache.use("t", "m", cache.lookup("t", "m", 1, 50))  # uses K = 10, which then outlives K = 5
    cache.insert("t", "m", 3, 50, start_step=20)  # one item more: its K = 25 drives out the least worth, K = 5

    assert cache.lookup("t", "m", 0, 50).start_step == 25
    assert len(cache) == 5


def test_hits_leave_no_later_latents_unless_the_rules_say_so() -> None:
    paper = latents()
    paper.insert("t", "m", 0, 50, start_step=10)
    every = latents(rules=SelectionRules(keeps_latents_of_hits=True))
    every.insert("t", "m", 0, 50, start_step=10)

    assert (len(paper), len(every)) == (0, 3)  # K = 15, 20, 25


def test_images_of_hits_stay_unless_the_rules_say_otherwise() -> None:
    every = images()
    every.insert("t", "m", 0, 50, start_step=10)
    misses = SimulatedCache(
        CacheUse.IMAGES, "fifo", CacheSettings(9, replace(RULES, keeps_images_of_hits=False)), EMBEDDINGS
    )
    misses.insert("t", "m", 0, 50, start_step=10)

    assert (len(every), len(misses)) == (1, 0)


def test_of_latents_and_images_whichever_saves_more_serves() -> None:
    cache = SimulatedCache(CacheUse.BOTH, "fifo", CacheSettings(100, RULES), EMBEDDINGS)
    cache.insert("t", "m", 0, 50)

    near, nearer = cache.lookup("t", "m", 1, 50), cache.lookup("t", "m", 2, 50)
    other, image_only = cache.lookup("t", "other", 2, 50), cache.lookup("t", "m", 2, 50, latents=False)

    # Cosine 0.825: x_10 as much as the image at 0.2 of 50; 0.955: x_25 as much as the image at 0.5. Latents win ties.
    assert (near.kind, near.start_step) == (StartKind.LATENT, 10)
    assert (nearer.kind, nearer.start_step) == (StartKind.LATENT, 25)
    assert (other.kind, other.start_step) == (StartKind.IMAGE, 25)
    assert (image_only.kind, image_only.start_step) == (StartKind.IMAGE, 25)


def test_start_has_same_share_of_another_models_steps() -> None:
    cache = images()
    cache.insert("t", "m", 0, 50)
    answer = cache.lookup("t", "m", 2, 50)

    assert [answer.start_step_of(steps) for steps in (50, 20, 4, 1)] == [25, 10, 2, 0]


def test_a_full_window_lets_the_oldest_image_go() -> None:
    cache = images(capacity=2)
    for row in (0, 3, 1):
        cache.insert("t", "m", row, 50)

    assert cache.lookup("t", "m", 0, 50).donor == 1


def test_retrieval_returns_near_image_unchanged() -> None:
    cache = SimulatedCache(CacheUse.RETRIEVAL, "fifo", CacheSettings(10, retrieval_similarity=0.9), EMBEDDINGS)
    cache.insert("t", "m", 0, 50)

    assert cache.lookup("t", "m", 2, 50).kind is StartKind.RETRIEVAL
    assert cache.lookup("t", "m", 1, 50).kind is StartKind.NOISE


def test_ancestors_are_counted_and_capped() -> None:
    cache = images(max_depth=1)
    cache.insert("t", "m", 0, 50)
    depth = cache.lookup("t", "m", 2, 50).depth
    cache.insert("t", "m", 2, 50, depth=depth)
    deeper = cache.lookup("t", "m", 2, 50).depth
    cache.insert("t", "m", 1, 50, depth=deeper)

    assert (depth, deeper, len(cache)) == (1, 2, 2)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 19)), max_size=60), st.integers(1, 30))
def test_the_nearest_entry_is_the_one_that_a_full_search_finds(steps: list[tuple[bool, int]], capacity: int) -> None:
    vectors = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cache = SimulatedCache(CacheUse.IMAGES, "fifo", CacheSettings(capacity, RULES), vectors)
    held: list[int] = []
    for inserts, row in steps:
        if inserts:
            cache.insert("t", "m", row, 50)
            held = [*(other for other in held if other != row), row][-capacity:]
        else:
            best = max(held, key=lambda other: float(vectors[row] @ vectors[other]), default=None)
            near = best is not None and float(vectors[row] @ vectors[best]) >= 0.8
            assert cache.lookup("t", "m", row, 50).donor == (best if near else -1)


def test_new_entry_stays_complete_because_eviction_precedes_it() -> None:
    """Row 1 may start at step ten of row 0's or row 2's entry: the newest entry still has its lower steps."""
    cache = latents(6)
    cache.insert("t", "m", 3, 50)
    cache.insert("t", "m", 0, 50)

    assert [cache.lookup("t", "m", row, 50).start_step for row in (3, 0, 1)] == [25, 25, 10]
    assert len(cache) == 6


def test_repeated_prompt_takes_no_more_room() -> None:
    cache = latents(10)
    for row in (0, 3, 3, 3):
        cache.insert("t", "m", row, 50)

    assert len(cache) == 10
    assert cache.lookup("t", "m", 0, 50).start_step == 25


def test_cache_smaller_than_a_run_keeps_some_latents() -> None:
    cache = latents(2)
    cache.insert("t", "m", 0, 50)

    assert len(cache) == 2
    assert cache.lookup("t", "m", 0, 50).start_step == 25


@pytest.mark.parametrize(("eviction", "kept"), [("", 3), ("lru", 0)])
def test_settings_may_name_another_rule_than_the_policy(eviction: str, kept: int) -> None:
    """FIFO evicts the older image although it was used, LRU the newer one."""
    cache = images(2, eviction=eviction)
    cache.insert("t", "m", 0, 50)
    cache.insert("t", "m", 3, 50)
    cache.use("t", "m", cache.lookup("t", "m", 0, 50))
    cache.insert("other", "m", 3, 50)

    found = [row for row in (0, 3) if cache.lookup("t", "m", row, 50).kind is StartKind.IMAGE]
    assert found == [kept]


def test_what_serves_keeps_the_rest_of_its_entry_where_hits_add() -> None:
    """Five of ten are evicted: row 3's, although they are newer than the entry that served."""
    rules = replace(SelectionRules(), keeps_latents_of_hits=True)
    cache = latents(10, rules=rules, eviction="aged")
    cache.insert("t", "m", 0, 50)
    cache.insert("t", "m", 3, 50)
    for _ in range(3):
        cache.use("t", "m", cache.lookup("t", "m", 0, 50))
    cache.insert("other", "m", 3, 50)

    assert [cache.lookup("t", "m", row, 50).start_step for row in (0, 3)] == [25, 0]
    assert cache.lookup("t", "m", 1, 50).start_step == 10


def test_of_the_near_entries_the_one_that_saves_most_serves() -> None:
    cache = latents()
    cache.insert("t", "m", 0, 50, start_step=0)
    cache.insert("t", "m", 2, 50, start_step=0)
    for step in (10, 15, 20, 25):
        cache._drop((("t", "m", 50), 0, step))

    answer = cache.lookup("t", "m", 0, 50)

    assert (answer.start_step, answer.donor) == (25, 2)


def plan(alpha: float | None = None, bias: int = 0) -> Plan:
    return Plan(PlanVersion(1, 1), cache=CachePlan(alpha=alpha, bias=bias))


def test_hits_follow_the_bias_of_the_plan_and_pay_for_rows_beyond_their_table() -> None:
    """Cosine 0.825 allows 10 steps, 0.955 the largest K: no row is beyond that, and yet it is charged."""
    cache = latents(bias_loss=0.1)
    cache.insert("t", "m", 0, 50)

    found = []
    for bias in (0, 1, 2, -1):
        cache.follow(plan(bias=bias))
        answers = [cache.lookup("t", "m", row, 50) for row in (1, 2)]
        found.append(([answer.start_step for answer in answers], answers[0].kept))

    assert found == [([10, 25], 1.0), ([15, 25], 0.9), ([20, 25], pytest.approx(0.8)), ([5, 20], 1.0)]


def test_nothing_is_reused_where_the_plan_asks_for_more_than_tables_promise() -> None:
    cache = latents()
    cache.insert("t", "m", 0, 50)
    cache.follow(plan(alpha=1.0))
    asked = cache.lookup("t", "m", 2, 50).kind
    cache.follow(plan())

    assert (asked, cache.lookup("t", "m", 2, 50).kind) == (StartKind.NOISE, StartKind.LATENT)
