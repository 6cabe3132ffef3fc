import pytest

from pentimento.domain.fleet import Capability
from pentimento.domain.generation import ControlNetSelection, LoraSelection, ObjectReference
from pentimento.policies.adapter_needs import (
    NO_NEEDS,
    AdapterHoldings,
    AdapterNeeds,
    can_paint,
    least_missed,
    load_count,
    needs_of,
)

UPLOADED = ObjectReference("adapters/1", "sha256:u", 7)
NEON, STORED = LoraSelection("neon", digest="sha256:n"), LoraSelection("stored", digest="sha256:u", object=UPLOADED)


def test_a_request_without_adapters_needs_nothing() -> None:
    assert needs_of((), ()) == NO_NEEDS
    assert can_paint(NO_NEEDS, AdapterHoldings())


def test_what_lies_in_the_object_store_is_there_for_every_worker_that_fetches_such() -> None:
    both = frozenset({Capability.LORA, Capability.UPLOADED_LORA})

    assert needs_of((NEON, STORED), ()) == AdapterNeeds(both, frozenset({"sha256:n"}), frozenset({"sha256:u"}))
    needs = needs_of((STORED,), ())
    assert needs == AdapterNeeds(frozenset({Capability.UPLOADED_LORA}), uploaded=frozenset({"sha256:u"}))
    assert can_paint(needs, AdapterHoldings(frozenset({Capability.UPLOADED_LORA})))


@pytest.mark.parametrize(
    ("capabilities", "loras", "can"),
    [((Capability.LORA,), "abc", True), ((Capability.LORA,), "a", False), ((), "abc", False), ((), "", False)],
)
def test_a_worker_needs_both_the_capability_and_every_lora(
    capabilities: tuple[Capability, ...], loras: str, can: bool
) -> None:
    needs = AdapterNeeds(frozenset({Capability.LORA}), frozenset("ab"))

    assert can_paint(needs, AdapterHoldings(frozenset(capabilities), frozenset(loras))) is can


@pytest.mark.parametrize(("resident", "count"), [("", 2), ("u", 1), ("ua", 0)])
def test_what_was_fetched_need_not_be_fetched_again(resident: str, count: int) -> None:
    needs = AdapterNeeds(frozenset({Capability.UPLOADED_LORA}), frozenset("a"), frozenset("u"))

    assert load_count(needs, AdapterHoldings(resident=frozenset(resident))) == count


def test_a_controlnet_asks_for_the_capability_alone() -> None:
    needs = needs_of((), (ControlNetSelection("edges", b"", digest="sha256:e"),))

    assert needs == AdapterNeeds(frozenset({Capability.CONTROLNET}))


@pytest.mark.parametrize(("resident", "count"), [((), 2), (("a",), 1), (("a", "b", "c"), 0)])
def test_what_is_resident_need_not_be_loaded(resident: tuple[str, ...], count: int) -> None:
    holdings = AdapterHoldings(frozenset({Capability.LORA}), frozenset("ab"), frozenset(resident))

    assert load_count(AdapterNeeds(frozenset({Capability.LORA}), frozenset("ab")), holdings) == count


def kept(resident: str, known: str = "abc") -> AdapterHoldings:
    return AdapterHoldings(frozenset({Capability.LORA}), frozenset(known), frozenset(resident))


@pytest.mark.parametrize(
    ("holdings", "place"),
    [
        ([kept("")], 0),
        ([kept("a"), kept("a")], 0),
        ([kept("a"), kept("")], 1),
        ([kept("ab"), kept("a"), kept("ab")], 0),
        ([kept("ab"), kept("c")], 1),
        ([kept("a"), kept("a"), kept("c")], 0),
        ([kept("", "abcd"), kept("ab")], 1),
    ],
    ids=["alone", "alike", "it keeps one", "kept twice", "fewer", "the third keeps one alone", "it alone can paint d"],
)
def test_a_plain_request_goes_where_its_place_is_missed_least(holdings: list[AdapterHoldings], place: int) -> None:
    assert least_missed(holdings) == place


@pytest.mark.parametrize(
    ("holdings", "has_any"),
    [
        (AdapterHoldings(), False),
        (AdapterHoldings(frozenset({Capability.LORA})), True),
        (AdapterHoldings(loras=frozenset("a")), True),
        (AdapterHoldings(resident=frozenset("a")), True),
    ],
)
def test_a_worker_without_capabilities_and_loras_has_nothing(holdings: AdapterHoldings, has_any: bool) -> None:
    assert bool(holdings) is has_any
