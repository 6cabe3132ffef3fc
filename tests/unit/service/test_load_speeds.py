"""Test measured load times by tier."""

from pentimento.domain.components import GB, Tier, TierSpeed
from pentimento.service.components import LoadSpeeds

Loads = list[tuple[dict[Tier, int], float]]
MEASURED: dict[str, tuple[Loads, dict[Tier, float]]] = {
    "one tier": ([({Tier.DISK: 2 * GB}, 3.0)], {Tier.DISK: 1.5}),
    "the newest load counts three tenths": ([({Tier.DISK: GB}, 1.0), ({Tier.DISK: GB}, 2.0)], {Tier.DISK: 1.3}),
    "the slowest tier takes what the others leave": (
        [({Tier.DISK: GB}, 1.0), ({Tier.DISK: 2 * GB, Tier.STORE: GB}, 10.0)],
        {Tier.DISK: 1.0, Tier.STORE: 8.0},
    ),
    "an unmeasured quicker tier takes none": ([({Tier.DISK: GB, Tier.STORE: GB}, 10.0)], {Tier.STORE: 10.0}),
    "never less than none": (
        [({Tier.DISK: GB}, 5.0), ({Tier.DISK: GB, Tier.STORE: GB}, 4.0)],
        {Tier.DISK: 5.0, Tier.STORE: 0.0},
    ),
    "two digits": ([({Tier.DISK: GB}, 1.2345)], {Tier.DISK: 1.2}),
    "no bytes": ([({Tier.DISK: 0}, 1.0), ({}, 1.0)], {}),
}


def test_load_speeds_are_by_tier() -> None:
    for name, (loads, speeds) in MEASURED.items():
        measured = LoadSpeeds()
        for parts, seconds in loads:
            measured.note(parts, seconds)

        assert measured.speeds == tuple(TierSpeed(tier, seconds) for tier, seconds in speeds.items()), name
