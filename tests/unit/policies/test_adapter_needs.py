from dataclasses import replace
from typing import Any

import pytest

from pentimento.domain.fleet import Capability
from pentimento.domain.generation import (
    ControlNetSelection,
    GenerationSpec,
    ImagePromptSelection,
    LoraSelection,
    ObjectReference,
    Scheduler,
)
from pentimento.policies.adapter_needs import (
    NO_NEEDS,
    AdapterHoldings,
    AdapterNeeds,
    can_paint,
    least_missed,
    load_count,
    loading_s,
    needs_of,
)

SPEC = GenerationSpec("a red circle", "", "tiny", 32, 32, 50, 3.0, Scheduler.DDIM, 7)
UPLOADED = ObjectReference("adapters/1", "sha256:u", 7)
NEON, STORED = LoraSelection("neon", digest="sha256:n"), LoraSelection("stored", digest="sha256:u", object=UPLOADED)


def test_needs_of_request_without_adapters_are_none() -> None:
    assert needs_of(SPEC) == NO_NEEDS
    assert can_paint(NO_NEEDS, AdapterHoldings())


def test_needs_of_uploaded_lora_are_met_by_its_capability() -> None:
    both = frozenset({Capability.LORA, Capability.UPLOADED_LORA})

    sizes = frozenset({("sha256:u", 7)})
    assert needs_of(replace(SPEC, loras=(NEON, STORED))) == AdapterNeeds(
        both, frozenset({"sha256:n"}), frozenset({"sha256:u"}), sizes
    )
    needs = needs_of(replace(SPEC, loras=(STORED,)))
    assert needs == AdapterNeeds(frozenset({Capability.UPLOADED_LORA}), uploaded=frozenset({"sha256:u"}), sizes=sizes)
    assert can_paint(needs, AdapterHoldings(frozenset({Capability.UPLOADED_LORA})))


@pytest.mark.parametrize(
    ("capabilities", "loras", "can"),
    [((Capability.LORA,), "abc", True), ((Capability.LORA,), "a", False), ((), "abc", False), ((), "", False)],
)
def test_worker_needs_capability_and_every_lora(capabilities: tuple[Capability, ...], loras: str, can: bool) -> None:
    needs = AdapterNeeds(frozenset({Capability.LORA}), frozenset("ab"))

    assert can_paint(needs, AdapterHoldings(frozenset(capabilities), frozenset(loras))) is can


def test_needs_of_controlnet_are_its_capability() -> None:
    needs = needs_of(replace(SPEC, controlnets=(ControlNetSelection("edges", b"", digest="sha256:e"),)))

    assert needs == AdapterNeeds(frozenset({Capability.CONTROLNET}))


def test_needs_of_image_prompt_are_its_ip_adapter() -> None:
    needs = needs_of(replace(SPEC, image_prompts=(ImagePromptSelection("style", b"", digest="sha256:s"),)))

    assert needs == AdapterNeeds(frozenset({Capability.IP_ADAPTER}), frozenset({"sha256:s"}))


def test_load_count_leaves_out_resident_loras() -> None:
    uploaded = AdapterNeeds(frozenset({Capability.UPLOADED_LORA}), frozenset("a"), frozenset("u"))
    needs = AdapterNeeds(frozenset({Capability.LORA}), frozenset("ab"))
    held = [kept(resident, "ab") for resident in ("", "a", "abc")]

    assert [load_count(needs, holdings) for holdings in held] == [2, 1, 0]
    assert [load_count(uploaded, AdapterHoldings(resident=frozenset(one))) for one in ("", "u", "ua")] == [2, 1, 0]


def test_loading_seconds_follow_tier_size_and_measurements() -> None:
    needs = needs_of(replace(SPEC, loras=(NEON, STORED)))
    disk_s = {"sha256:n": 0.2}
    held = [
        AdapterHoldings(),
        AdapterHoldings(load_s=disk_s),
        AdapterHoldings(load_s=disk_s, store_s_per_gb=1e8),
        AdapterHoldings(load_s={**disk_s, "sha256:u": 0.1}, store_s_per_gb=1e8),
        AdapterHoldings(resident=frozenset({"sha256:n", "sha256:u"}), load_s=disk_s),
    ]

    # The uploaded LoRA has 7 bytes: 0.7 s from that store.
    assert [loading_s(needs, one, 2.0) for one in held] == pytest.approx([4.0, 2.2, 0.9, 0.3, 0.0])


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
def test_least_missed_worker_for_plain_request(holdings: list[AdapterHoldings], place: int) -> None:
    assert least_missed(holdings) == place


def test_holdings_are_true_with_any_part() -> None:
    parts: list[dict[str, Any]] = [
        {},
        {"capabilities": frozenset({Capability.LORA})},
        {"loras": frozenset("a")},
        {"resident": frozenset("a")},
    ]

    assert [bool(AdapterHoldings(**part)) for part in parts] == [False, True, True, True]
