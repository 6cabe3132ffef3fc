"""Test the measured speeds of tiers, and where loaded components are."""

import pytest

from pentimento.domain.components import GB, HeldComponent, Tier, TierSpeed
from services.unet_worker.adapters import lora_shelf
from services.unet_worker.adapters.lora_shelf import MeasuredLoads


def test_speeds_are_averages_of_two_digits() -> None:
    loads = MeasuredLoads()
    loads.note("a", Tier.DISK, GB, 1.0, Tier.DISK)
    loads.note("b", Tier.DISK, GB // 2, 1.0, Tier.DISK)
    loads.note("c", Tier.STORE, GB, 8.0, Tier.DISK)

    assert loads.speeds == (TierSpeed(Tier.DISK, 1.3), TierSpeed(Tier.STORE, 8.0))


def test_components_are_in_host_memory_while_resident() -> None:
    loads = MeasuredLoads()
    loads.note("a", Tier.STORE, 7, 1.0, Tier.DISK)
    loads.note("b", Tier.DISK, 8, 1.0, Tier.DISK)

    assert loads.components(["b"]) == (HeldComponent("a", Tier.DISK, 7), HeldComponent("b", Tier.HOST, 8))


def test_least_recently_loaded_components_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lora_shelf, "MAX_TOLD_COUNT", 2)
    loads = MeasuredLoads()
    for name in "abac":
        loads.note(name, Tier.DISK, 1, 1.0, Tier.DISK)

    assert [one.digest for one in loads.components(())] == ["a", "c"]
