"""Let a live emulated fleet of three models change its small model with the load, as in MoDM's Fig. 10.

    python -m benchmarks.mixture_switch

Sixteen emulated MI210s, ten times as fast, behind `pentimento up --emulate --policy modm --small sdxl,sana`, with a
cache of images. Requests come evenly: 22 a minute, 26, then 14. Three of ten have a prompt that was not asked before,
so they miss; the others repeat one of twenty prompts with another seed, and save three of ten steps. With these shares
SDXL carries 22 requests a minute and not 26; the paper's log has other ones. Before that the twenty prompts fill the
cache, and 16 requests a minute let the monitor learn the shares.

A switch is a plan that gives the hits to another small model, seen every half second. The paper (Fig. 10) changes from
SDXL to SANA between 22 and 26 requests a minute.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate, count, islice

from benchmarks.suites.mixture import DWELL_S, PATIENCE_S, SPEED, STEPS, MixtureSide, PlayedRun, play_mixture
from lab.runs import StartKind
from lab.runs.measure import Figure, Target, at_most, counted, informative, parse_options, publish, share
from lab.workloads import Arrival, Workload
from zoo.drawing.captions import natural_caption
from zoo.drawing.scenes import scene_at

SIDE = MixtureSide("modm", "modm", ("--small", "sdxl,sana"), images=True, images_table=(0.999, 0.3))
REPEATED, FRESH = 20, (True, False, False, True, False, False, True, False, False, False)
# Requests a minute and the paper's seconds: filling the cache, a pause for its last images, learning, then the phases.
BEFORE = ((10.0, 120.0), (0.0, 200.0), (16.0, 900.0))
PHASES = ((22.0, 400.0), (26.0, 400.0), (14.0, 400.0))
SCENES_SEED = 77
WITHIN = at_most(2 * DWELL_S, "s")


def main() -> int:
    options = parse_options("mixture_switch", __doc__)
    run = play_mixture(SIDE, workload_of((*BEFORE, *PHASES)))
    notes = {"speed": SPEED, "dwell_s": DWELL_S, "fresh_share": sum(FRESH) / len(FRESH), "saved_share": 0.3}
    return publish(options, figures_of(run), notes=notes)


def workload_of(phases: Sequence[tuple[float, float]]) -> Workload:
    """Return evenly spaced requests: the repeated prompts once each, then fresh and repeated ones in turns."""
    prompts = asked_prompts()
    arrivals: list[Arrival] = []
    began_s = 0.0
    for per_minute, duration_s in phases:
        for number in range(round(per_minute * duration_s / 60.0)):
            at_s = (began_s + number * 60.0 / per_minute) / SPEED
            seed = len(arrivals)
            arrivals.append(Arrival(at_s, "", next(prompts), "standard", PATIENCE_S, steps=STEPS, seed=seed))
        began_s += duration_s
    return Workload("switch", tuple(arrivals), {})


def asked_prompts() -> Iterator[str]:
    """Yield the prompts of all requests in their order, without an end."""
    different = different_captions()
    repeated = list(islice(different, REPEATED))
    yield from repeated
    for number in count():
        yield next(different) if FRESH[number % len(FRESH)] else repeated[number % REPEATED]


def different_captions() -> Iterator[str]:
    """Yield captions of scenes, each once."""
    seen = set()
    for number in count():
        caption = natural_caption(*scene_at(SCENES_SEED, number, False)).text
        if caption not in seen:
            seen.add(caption)
            yield caption


def figures_of(run: PlayedRun) -> list[Figure]:
    """Return lost requests, the paper's seconds until each switch, and the number of switches."""
    began_s = sum(duration_s for _, duration_s in BEFORE)
    rises_s, falls_s = list(accumulate((duration_s for _, duration_s in PHASES), initial=began_s))[1:3]
    switches = [(at_s * SPEED, model) for at_s, model in run.smalls(began_s / SPEED)]
    print(switches, flush=True)
    records = [record for record in run.records if record.arrived_s * SPEED >= began_s]
    hits = sum(record.start is StartKind.IMAGE for record in records)
    lost = sum(not record.outcome.answered for record in run.records)
    return [
        counted("requests without an image", lost, len(run.records), at_most(0)),
        delay("seconds from 26 a minute to SANA", switches, "sana", rises_s, WITHIN),
        delay("seconds from 14 a minute back to SDXL", switches, "sdxl", falls_s, WITHIN),
        Figure("switches of the small model", len(switches) - 1, at_most(2), len(switches)),
        share("hits, of all requests", hits, len(records), informative()),
    ]


def delay(name: str, switches: Sequence[tuple[float, str]], model: str, from_s: float, target: Target) -> Figure:
    """Return the seconds until the first switch to the model from then on; a missing figure without one."""
    found = next((at_s - from_s for at_s, switched in switches if switched == model and at_s >= from_s), None)
    return Figure(name, found, target, 1)


if __name__ == "__main__":
    raise SystemExit(main())
