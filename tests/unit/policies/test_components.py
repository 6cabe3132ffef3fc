"""Rules that rank components for eviction, and the components that leave by them."""

import pytest

from pentimento.domain.components import ComponentRule, Loadable, victims
from pentimento.policies.components import FadingUses, Utility


def component(name: str, memory_bytes: int = 10, load_s: float = 1.0) -> Loadable:
    return Loadable(name, memory_bytes, load_s)


def used(rule: ComponentRule, *components: Loadable) -> None:
    for at, one in enumerate(components):
        rule.note_use(one, float(at))


@pytest.mark.parametrize(("later_uses", "stays"), [(8, True), (24, False)], ids=["one half-life", "three half-lives"])
def test_fading_uses_forgets_former_popularity(later_uses: int, stays: bool) -> None:
    rule = FadingUses(half_life_uses=8)
    used(rule, *[component("old")] * 9, *(component("xyz"[use % 3]) for use in range(later_uses)))

    assert (rule.worth(component("old"), 0.0) > rule.worth(component("x"), 0.0)) is stays


def test_fading_uses_weights_stay_finite() -> None:
    rule = FadingUses(half_life_uses=0.001)
    used(rule, *[component("a"), component("b")] * 3)

    assert 0.0 <= rule.worth(component("a"), 0.0) < rule.worth(component("b"), 0.0) < 1.0


@pytest.mark.parametrize(
    ("one", "uses", "other"),
    [
        (component("a"), 2, component("b")),
        (component("a", load_s=3.0), 1, component("b")),
        (component("a", memory_bytes=5), 1, component("b")),
    ],
    ids=["more uses", "dearer to load", "smaller"],
)
def test_utility_prefers_more_saved_seconds_per_byte(one: Loadable, uses: int, other: Loadable) -> None:
    rule = Utility()
    used(rule, *[one] * uses, other)

    assert rule.worth(one, 2.0) > rule.worth(other, 2.0)


def test_utility_of_ten_uses_ages_to_one() -> None:
    rule = Utility(aging_per_hour=9.0)
    for _ in range(10):
        rule.note_use(component("old"), 0.0)
    rule.note_use(component("new"), 3600.0)

    assert rule.worth(component("old"), 3600.0) == pytest.approx(rule.worth(component("new"), 3600.0))


def test_victims_spares_components_that_need_not_go() -> None:
    rule = FadingUses()
    small, middle, large = component("small", 10, 1.0), component("middle", 20, 4.0), component("large", 100, 30.0)
    resident = (small, middle, large)

    assert victims(rule, resident, 0, 0.0) == ()
    assert victims(rule, resident, 15, 0.0) == ("middle",)
    assert victims(rule, resident, 60, 0.0) == ("large",)
    assert victims(rule, resident, 120, 0.0) == ("middle", "large")
    assert victims(rule, resident, 15, 0.0, kept=("middle", "large")) is None
