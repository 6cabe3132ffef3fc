"""What charts show of looks at a frontdoor's totals, computed by the console's own module in Node.js."""

import json
from typing import Any

from services.edge.console.pages import STATIC
from tests.unit.edge.console_modules import needs_node, printed

pytestmark = needs_node
# So far apart that a window of the charts holds two of them.
APART_MS = 40_000


def look(at_ms: int, **more: Any) -> dict[str, Any]:
    """A look at a frontdoor that has done nothing, but for `more`."""
    names = ("accepted", "completed", "failed", "rejected", "late", "scored", "deferred", "run", "saved")
    totals = {"epoch": "f 1", **dict.fromkeys(names, 0)}
    empty = {"latencies": [[0.5, 0], [1.0, 0], ["Infinity", 0]], "starts": [], "workers": {}, "thresholds": {}}
    return {"at": at_ms, **totals, **empty, **more}


def shown(expression: str, *looks: dict[str, Any]) -> Any:
    """The value of an expression of `figures` and `looks`; NaN is null."""
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
            figures.deferrals(looks), figures.attainment(looks),
            figures.latency(looks, 0.5), figures.latency(looks, 0.75),
        ].map(([[at, value]]) => [at, value])""",
        before,
        after,
    )

    assert [at for at, _ in values] == [APART_MS] * 7
    # 8 in 40 s; 3 of 4 pictures; 50 of 100 steps; 1 of 4; 10 came of which 2 were refused and 1 late; 2 below 0.5 s.
    assert [value for _, value in values] == [0.2, 0.75, 0.5, 0.25, 0.7, 0.5, 0.75]


def test_where_nobody_came_there_is_no_point() -> None:
    values = shown(
        "[figures.hitRate(looks), figures.attainment(looks), figures.latency(looks, 0.9)].map(([[, value]]) => value)",
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


def test_hit_rate_by_k_is_of_all_pictures_and_names_the_most_frequent() -> None:
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
