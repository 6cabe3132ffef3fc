"""Compute charts from totals of a frontdoor, with the console's own module in Node.js."""

import json
from typing import Any

import pytest

from services.edge.console.pages import STATIC
from tests.unit.edge.console_modules import needs_node, printed

pytestmark = needs_node
# A window of the charts holds two samples at this distance.
APART_MS = 40_000


def look(at_ms: int, **more: Any) -> dict[str, Any]:
    """Return the totals of an idle frontdoor, changed by `more`."""
    names = ("accepted", "completed", "failed", "rejected", "late", "scored", "deferred", "run", "saved")
    totals = {"epoch": "f 1", **dict.fromkeys(names, 0)}
    empty = {"latencies": [[0.5, 0], [1.0, 0], ["Infinity", 0]], "starts": [], "workers": {}, "thresholds": {}}
    return {"at": at_ms, **totals, **empty, **more}


def shown(expression: str, *looks: dict[str, Any]) -> Any:
    """Return the value of an expression of `figures` and `looks`; NaN is null."""
    return printed(f"""
        import * as figures from {json.dumps((STATIC / "figures.js").as_uri())};
        const looks = {json.dumps(looks)};
        console.log(JSON.stringify({expression}));
    """)


def test_every_chart_is_the_growth_of_totals_between_two_looks() -> None:
    before = look(0, accepted=10, starts=[["noise", 0, 5], ["latent", 15, 1]], run=250, saved=15)
    after = look(
        APART_MS,
        accepted=18,
        rejected=2,
        starts=[["noise", 0, 6], ["latent", 15, 4]],
        run=300,
        saved=65,
        latencies=[[0.5, 2], [1.0, 2], ["Infinity", 0]],
        late=1,
        scored=4,
        deferred=1,
    )

    values = shown(
        """[
            figures.rate(looks, "accepted"), figures.hitRate(looks), figures.computeSaved(looks),
            figures.deferrals(looks), figures.deadlinesKept(looks),
            figures.latency(looks, 0.5), figures.latency(looks, 0.75),
        ].map(([[at, value]]) => [at, value])""",
        before,
        after,
    )

    assert [at for at, _ in values] == [APART_MS] * 7
    # 8 in 40 s; 3 of 4 images; 50 of 100 steps; 1 of 4; 2 of 10 rejected and 1 late; 2 below 0.5 s.
    assert [value for _, value in values] == [0.2, 0.75, 0.5, 0.25, 0.7, 0.5, 0.75]


@pytest.mark.parametrize(("slo_s", "share"), [(0.5, 0.2), (0.75, 0.4), (1.0, 0.6), (5.0, 0.6), (0, None)])
def test_slo_attainment_goes_by_the_slo_of_the_plan(slo_s: float, share: float | None) -> None:
    """Two of ten were completed within 0.5 s, 4 between 0.5 s and 1 s, 2 later, and 2 failed; no deadline was
    missed."""
    after = look(
        APART_MS,
        accepted=10,
        completed=8,
        failed=2,
        latencies=[[0.5, 2], [1.0, 4], ["Infinity", 2]],
        slo_s=slo_s,
    )

    assert shown("figures.sloAttainment(looks)[0][1]", look(0), after) == share


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tiny-heavy", "tiny-heavy"),
        ("tiny-heavy.1", "tiny-heavy, pool 2"),
        ("sd-1.5", "sd-1.5"),
        ("image:tiny-heavy~tiny-light", "tiny-heavy, or tiny-light if that would be late (from a cached image)"),
        ("noise:tiny-light>tiny-heavy.1#0", "tiny-light → tiny-heavy, pool 2 (from noise)"),
        ("a>b>c", "a → b → c"),
    ],
)
def test_pools_and_cascades_have_plain_names(name: str, words: str) -> None:
    said = printed(f"""
        import {{ plainName }} from {json.dumps((STATIC / "dom.js").as_uri())};
        console.log(JSON.stringify(plainName({json.dumps(name)}, ["tiny-heavy", "tiny-light"])));
    """)

    assert said == words


def test_window_without_requests_has_no_point() -> None:
    values = shown(
        "[figures.hitRate(looks), figures.deadlinesKept(looks), figures.latency(looks, 0.9)]"
        ".map(([[, value]]) => value)",
        look(0),
        look(APART_MS),
    )

    assert values == [None, None, None]


def test_a_window_reaches_back_no_further_than_it_says() -> None:
    looks = [look(at_ms, accepted=count) for at_ms, count in ((0, 0), (30_000, 300), (60_000, 300))]

    assert shown('figures.rate(looks, "accepted").map(([, value]) => value)', *looks) == [10, 0]


def test_totals_of_two_lives_of_a_frontdoor_are_not_compared() -> None:
    looks = [look(0, accepted=100), look(5_000, epoch="f 2", accepted=4), look(10_000, epoch="f 2", accepted=9)]

    assert shown('figures.rate(looks, "accepted").map(([, value]) => value)', *looks) == [None, 1]


def test_hit_rate_by_k_divides_by_all_images_and_names_most_frequent() -> None:
    before = look(0, starts=[["noise", 0, 5], ["latent", 15, 1], ["latent", 5, 2], ["image", 10, 1]])
    after = look(APART_MS, starts=[["noise", 0, 7], ["latent", 15, 2], ["latent", 5, 7], ["image", 10, 1]])

    found = shown("figures.hitRateByK(looks, 2).map(({ name, points }) => [name, points[0][1]])", before, after)

    assert found == [["latent, K = 5", 0.625], ["latent, K = 15", 0.125]]


def test_names_that_come_later_were_absent_before() -> None:
    looks = [look(0, workers={"a": 2}), look(1, workers={"a": 1, "b": 1})]

    assert shown('figures.byName(looks, "workers", 0)', *looks) == [
        {"name": "a", "points": [[0, 2], [1, 1]]},
        {"name": "b", "points": [[0, 0], [1, 1]]},
    ]
