"""Measure holes: latents that eviction took from entries that are still found, in live gateways with small stores.

    python -m benchmarks.cache_holes --data DIR

DiffusionDB's first 1,500 prompts are looked up in their order on a gateway process for each rule of eviction, at once,
and each size of the store; a prompt that misses becomes an entry with five latents, and a hit counts as a use. The
gateway evicts four times a second. A lookup meets a hole if its nearest entries lack the K that the similarity
allows; a smaller K serves, or none. Holes are counted by the gateway (`pentimento status`, its metrics).

NIRVANA reports holes for 4 to 5 % of prompts (section 5.4), and Table 3's compute saved by LCBFU and FIFO. What a rule
saves beyond FIFO is compared within blocks of consecutive prompts.
"""

import argparse
import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median

from benchmarks.eviction_replay import block_means
from benchmarks.filled_cache import LATENT_BYTES
from benchmarks.prompt_logs import DIFFUSIONDB, Vectors, read_vectors
from benchmarks.suites.log_gateways import LoggedLookup, ask, log_gateway
from lab.runs.measure import Figure, at_most, informative, measured, parse_options, publish, share

RULES = ("fifo", "lcbfu", "aged")
SIZES = (250, 1000)
# The policy's rule for NIRVANA, and the larger share that the paper saw.
PAPERS_RULE, PAPERS_HOLES = "lcbfu", 0.05
BLOCK = 50


@dataclass
class RuleHoles:
    """Store a gateway's answers, and its counts of holes and of the steps lost to them."""

    answers: list[LoggedLookup] = field(default_factory=list)
    hole_count: int = 0
    hole_steps: int = 0


async def play(vectors: Vectors, size: int) -> dict[str, RuleHoles]:
    """Return the log played under every rule in a store of that many latents."""
    played = {rule: RuleHoles() for rule in RULES}
    async with AsyncExitStack() as stack:
        small = ("--max-size-bytes", str(size * LATENT_BYTES), "--match-predictor", "off")
        quick = "object_grace_s=0,maintenance_interval_s=0.25"
        clients = {
            rule: await stack.enter_async_context(log_gateway("--eviction", rule, *small, bounds=quick))
            for rule in RULES
        }
        for row, vector in enumerate(vectors):
            found = await asyncio.gather(*(ask(client, row, vector) for client in clients.values()))
            for rule, answer in zip(clients, found, strict=True):
                played[rule].answers.append(answer)
        for rule, client in clients.items():
            told = await client.statistics()
            played[rule].hole_count, played[rule].hole_steps = told.hole_count, told.hole_step_count
    return played


def figures_of(size: int, played: dict[str, RuleHoles]) -> list[Figure]:
    """Return for each rule the share of lookups that met a hole, the steps lost and saved, and a lookup's time."""
    figures = []
    first = [answer.saved_share for answer in played[RULES[0]].answers]
    for rule, one in played.items():
        name, count = f"{rule}, {size} latents", len(one.answers)
        target = at_most(PAPERS_HOLES) if rule == PAPERS_RULE else informative()
        figures.append(share(f"{name}: lookups that met a hole", one.hole_count, count, target))
        lost = one.hole_steps / (50 * count)
        figures.append(Figure(f"{name}: steps lost to holes, of all", lost, informative(), count))
        saved = [answer.saved_share for answer in one.answers]
        figures.append(measured(f"{name}: steps saved, of all", saved, fmean, informative()))
        times = [answer.took_ms for answer in one.answers]
        figures.append(measured(f"{name}: median lookup", times, median, informative("ms")))
        if rule != RULES[0]:
            gaps = block_means([ours - theirs for ours, theirs in zip(saved, first, strict=True)], BLOCK)
            figures.append(measured(f"{name}: steps saved - {RULES[0]}'s", gaps, fmean, informative("of all steps")))
    return figures


def main() -> int:
    options = parse_options("cache_holes", __doc__, _own_options)
    vectors = read_vectors(DIFFUSIONDB, options.rest["data"], 500 if options.quick else 1500)
    figures = [figure for size in SIZES for figure in figures_of(size, asyncio.run(play(vectors, size)))]
    figures.sort(key=lambda figure: not figure.name.startswith(PAPERS_RULE))
    return publish(options, figures, notes={"prompts": len(vectors), "paper": "holes for 4 to 5 % of prompts"})


def _own_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, required=True, help="directory with prompts/")


if __name__ == "__main__":
    raise SystemExit(main())
