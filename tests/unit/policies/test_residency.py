"""Keep popular components on a device: within its memory, and never by evicting used ones."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentimento.domain.components import Loadable
from pentimento.policies.residency import ResidentSet

LOADABLES = st.builds(
    Loadable,
    name=st.sampled_from("abcdefgh"),
    memory_bytes=st.integers(1, 60),
    load_s=st.floats(0.01, 10.0),
)


def component(name: str, memory_bytes: int = 10, load_s: float = 1.0) -> Loadable:
    return Loadable(name, memory_bytes, load_s)


def take_in(held: ResidentSet, wanted: Loadable, in_use: frozenset[str] = frozenset()) -> bool:
    held.use(wanted)
    leaving = held.leaving_for(wanted, in_use)
    if leaving is None:
        return False
    for name in leaving:
        held.remove(name)
    if wanted.name not in held.names:
        held.add(wanted)
    return True


@given(calls=st.lists(LOADABLES, max_size=40), in_use=st.frozensets(st.sampled_from("abcdefgh"), max_size=3))
def test_resident_set_keeps_memory_bound_and_used_ones(calls: list[Loadable], in_use: frozenset[str]) -> None:
    held = ResidentSet(100)
    sizes: dict[str, Loadable] = {}
    for call in calls:
        wanted = sizes.setdefault(call.name, call)
        before = set(held.names) & in_use

        taken = take_in(held, wanted, in_use)

        assert held.used_bytes == sum(sizes[name].memory_bytes for name in held.names) <= 100
        assert before <= set(held.names)
        assert taken == (wanted.name in held.names)


@given(calls=st.lists(LOADABLES, min_size=1, max_size=30))
def test_leaving_for_is_no_more_than_needed(calls: list[Loadable]) -> None:
    held = ResidentSet(100)
    sizes: dict[str, Loadable] = {}
    for call in calls[:-1]:
        take_in(held, sizes.setdefault(call.name, call))
    wanted = sizes.setdefault(calls[-1].name, calls[-1])

    leaving = held.leaving_for(wanted, frozenset())

    assert leaving is not None  # each is smaller than the budget, and nothing is in use
    if wanted.name in held.names:
        assert leaving == ()
        return
    room = 100 - held.used_bytes - wanted.memory_bytes + sum(sizes[name].memory_bytes for name in leaving)
    assert room >= 0
    assert all(room - sizes[name].memory_bytes < 0 for name in leaving)


CHEAP, DEAR = component("cheap", load_s=0.1), component("dear", load_s=5.0)
LARGE, SMALL = component("large", memory_bytes=30), component("small", memory_bytes=10)
# Per case: the memory, earlier uses, used components, and the ones that leave for another of 10 bytes.
LEAVING: dict[str, tuple[int, list[Loadable], str, tuple[str, ...] | None]] = {
    "there is room": (20, [component("a")], "", ()),
    "the less used": (20, [component(name) for name in "aab"], "", ("b",)),
    "three loads of a second before one of two and a half": (
        20,
        [*[component("a")] * 3, component("b", load_s=2.5)],
        "",
        ("b",),
    ),
    "three loads of a second after one of three and a half": (
        20,
        [*[component("a")] * 3, component("b", load_s=3.5)],
        "",
        ("a",),
    ),
    "the cheaper to load": (20, [CHEAP, DEAR], "", ("cheap",)),
    "the larger": (40, [LARGE, SMALL], "", ("large",)),
    "larger than the device": (5, [], "", None),
    "all are in use": (10, [component("a")], "a", None),
}


def test_leaving_for_another_component() -> None:
    leaving = {}
    for name, (memory_bytes, used, in_use, _) in LEAVING.items():
        held = ResidentSet(memory_bytes)
        for each in used:
            take_in(held, each)
        leaving[name] = held.leaving_for(component("c"), frozenset(in_use))

    assert leaving == {name: expected for name, (*_, expected) in LEAVING.items()}


def test_held_component_without_use_counts_as_used_once() -> None:
    held = ResidentSet(30)
    held.add(component("a"))
    take_in(held, component("b", load_s=1.1))
    take_in(held, component("d", load_s=0.9))

    assert held.names == ("b", "a", "d")


def test_component_that_returns_keeps_its_uses() -> None:
    held = ResidentSet(20)
    for _ in range(3):
        take_in(held, component("a"))
    held.remove("a")
    for _ in range(2):
        take_in(held, component("b", load_s=1.4))
    held.add(component("a"))

    assert held.names == ("a", "b")
    held.remove("b")
    with pytest.raises(KeyError):
        held.remove("b")


def test_add_beyond_memory_is_an_error() -> None:
    held = ResidentSet(15)
    held.add(component("a"))

    with pytest.raises(ValueError, match="does not fit"):
        held.add(component("b"))


def test_few_places_serve_skewed_calls() -> None:
    """Katz, section 3.1: of 47 to 94 ControlNets the top 5 to 8 serve 95 to 98 % of the calls."""
    names = [f"n{index}" for index in range(60)]
    weights = [1 / (index + 1) ** 2.5 for index in range(60)]
    held, source, loads = ResidentSet(80), Random(1), 0
    for name in source.choices(names, weights, k=4000):
        loads += name not in held.names
        take_in(held, component(name))

    best = sum(sorted(weights)[-8:]) / sum(weights)
    assert 1 - loads / 4000 > best - 0.02
