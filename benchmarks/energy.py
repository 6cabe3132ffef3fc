"""What a picture costs in seconds of a device: without reuse, by each paper's reuse alone, by all of it.

    python -m benchmarks.energy

Simulated, by the code that serves, in MoDM's setting: sixteen MI210s with the seconds an image of its artefact, a cache
of 10,000 pictures that has seen as many prompts, late requests painted all the same. All systems paint the same
requests, at a load that vanilla cannot carry, so that no device of the others has time to spare. Seconds count all that
devices did for a request, by the requests that were answered. The papers count joules of NVIDIA's and AMD's counters;
there are none here: a device-second of a small model is taken to cost what one of the large model costs.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.paper_constants import MI210_SECONDS
from benchmarks.paper_systems import hit_share, mixture_scenario, prompt_content, prompt_load, run
from benchmarks.report import Figure, at_most, informative, measured, parse_options, publish
from benchmarks.statistics import ratio_of_sums
from pentimento.policies.serving.settings import ModelQuality
from pentimento.reports import RequestRecord
from pentimento.simulator.scenario import Scenario

DEVICES, CAPACITY, PER_MINUTE = 16, 10_000, 22.0
VANILLA, NIRVANA, SDXL, SANA, JOINT = "vanilla", "NIRVANA-only", "MoDM-only, SDXL", "MoDM-only, SANA", "joint"
# Appendix A.4 of MoDM: what NIRVANA and MoDM leave of vanilla's energy: 0.761, and 0.533 with SDXL. With SANA it is
# 0.337 there, where no large device takes hits; here MoDM's monitor (5.3.1) keeps as many large ones as it can.
TARGETS = {NIRVANA: 1 - 0.24, SDXL: 1 - 0.47}

# What the joint problem weighs: CLIPScores by MoDM's Table 2, over the large model's; hits keep 0.997 (7.3).
QUALITIES = (
    ModelQuality("large", 1.0, reuse=0.997),
    ModelQuality("sdxl", 0.2850 / 0.2859),
    ModelQuality("sana", 0.2830 / 0.2859),
)


@dataclass(frozen=True)
class SpentSeconds:
    """Of one run: seconds of devices for each answered request, and how many requests started from the cache."""

    system: str
    seed: int
    device_s: float
    hit_share: float
    answered_share: float = 1.0

    def row(self) -> list[object]:
        """Return it as JSON values."""
        return [
            self.system,
            self.seed,
            round(self.device_s, 3),
            round(self.hit_share, 4),
            round(self.answered_share, 4),
        ]


def main() -> int:
    options = parse_options("energy", __doc__, add_options)
    warm, count, seeds = (500, 300, range(2)) if options.quick else (CAPACITY, 3_000, range(1, 6))
    spent: list[SpentSeconds] = []
    for seed in seeds:
        load = prompt_load(
            PER_MINUTE, count, prompt_content(warm + 2 * count, warm, 4 * MI210_SECONDS["large"], seed), seed
        )
        for name, scenario in systems(warm).items():
            spent.append(spent_by(name, run(scenario, load, seed), seed))
            print(spent[-1].row(), flush=True)
    notes = {"requests a minute": PER_MINUTE, "seconds an image": MI210_SECONDS, "simulated": True, "warm": warm}
    return publish(options, figures_of(spent), notes=notes)


def add_options(parser: argparse.ArgumentParser) -> None:
    """It has none of its own."""


def systems(warm: int) -> dict[str, Scenario]:
    """Return the systems by name; each small model is one of its own, as in the paper."""
    large = MI210_SECONDS["large"]
    found = {
        VANILLA: scenario_of("vanilla", warm, MI210_SECONDS),
        NIRVANA: scenario_of("nirvana-only", warm, MI210_SECONDS),
        SDXL: scenario_of("modm-only", warm, {"large": large, "sdxl": MI210_SECONDS["sdxl"]}),
        SANA: scenario_of("modm-only", warm, {"large": large, "sana": MI210_SECONDS["sana"]}),
        JOINT: scenario_of("joint", warm, MI210_SECONDS),
    }
    return found


def scenario_of(policy: str, warm: int, seconds: Mapping[str, float]) -> Scenario:
    """Return MoDM's setting under a policy, with those models alone."""
    small = tuple(name for name in seconds if name != "large")
    plain = mixture_scenario(policy, DEVICES, CAPACITY, warm, PER_MINUTE / 60, seconds, small, QUALITIES)
    return replace(plain, name=policy)


def spent_by(system: str, records: Sequence[RequestRecord], seed: int) -> SpentSeconds:
    """Return what a run cost; whatever was painted for nobody is paid for as well."""
    answered = sum(record.outcome.answered for record in records)
    seconds = sum(record.device_s for record in records) / answered
    return SpentSeconds(system, seed, seconds, hit_share(records), answered / len(records))


def figures_of(spent: Sequence[SpentSeconds]) -> list[Figure]:
    """Return each system's seconds ÷ vanilla's, and joint's ÷ the least of the papers'; a sample is a seed's two."""
    by_system = {
        name: [one.device_s for one in spent if one.system == name] for name in dict.fromkeys(s.system for s in spent)
    }
    vanilla, found = by_system[VANILLA], list[Figure]()
    for name, seconds in by_system.items():
        if name != VANILLA:
            target = at_most(TARGETS[name]) if name in TARGETS else informative()
            pairs = list(zip(seconds, vanilla, strict=True))
            found.append(measured(f"{name}: device-seconds an image ÷ vanilla's", pairs, ratio_of_sums, target))
    least = min((NIRVANA, SDXL, SANA), key=lambda name: sum(by_system[name]))
    pairs = list(zip(by_system[JOINT], by_system[least], strict=True))
    found.append(measured(f"joint: device-seconds an image ÷ those of {least}", pairs, ratio_of_sums, at_most(1.0)))
    for name in by_system:
        rows = [one.row() for one in spent if one.system == name]
        shares = [one.hit_share for one in spent if one.system == name]
        found.append(
            Figure(f"{name}: requests that start from the cache", sum(shares) / len(shares), informative(), rows, None)
        )
    return found


if __name__ == "__main__":
    raise SystemExit(main())
