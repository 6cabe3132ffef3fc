"""Measure the cache's gain from sharing latents before a LoRA's patch: hits on the production mix.

    python -m benchmarks.lora_sharing --data DIR

A LoRA may be patched in after an image's first steps (Katz, section 4): until then its latents are the base model's,
and their `latent_key` names no LoRA. The other side's keys always name the LoRAs, as in a cache like NIRVANA's (Katz,
section 6.2). Both get the same requests: DiffusionDB's first prompts in published order (DIR/prompts), with models and
LoRAs drawn by the production mixes of `lab.workloads.production`. The log is a composite, since no public log has both
prompts and adapters.

The gateway's rules run without a gateway: the nearest entry with a latent under one of the request's keys
(`latent_keys`), then `select_start`'s choice among its latents that the request may resume, by
NIRVANA's table for vectors of a sentence encoder. Nothing is evicted, every request is committed before the next one
comes, and only misses add latents.

The figures are hits and steps. Images that start from a latent without the LoRA's influence lose the quality of any
late patch (`benchmarks.zoo_phenomena`: how late a LoRA may come).
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.prompt_logs import DIFFUSIONDB, Vectors, read_vectors
from lab.runs.measure import Figure, informative, measured, parse_options, publish
from lab.workloads.production import KATZ_A, KATZ_B, MLORA, Choice, ProductionMix, choose
from pentimento.domain.cache import CacheScope, latent_key, latent_keys
from pentimento.policies.cache_selection import (
    NearestEntry,
    SelectionContext,
    SelectionRules,
    UseLatent,
    kept_steps,
    select_start,
)

STEPS = 50
BOUND = 0
# Steps before LoRAs are patched in: 10 is Katz's; the zoo's three styles tolerate none, 10 and 20.
PATCHED_AFTER = (5, 10, 20)
MIXES = {"MLoRA": MLORA, "Katz, service A": KATZ_A, "Katz, service B": KATZ_B}
COUNT, QUICK_COUNT, SEEDS = 3_500, 300, 3
BLOCK = 100
RULES = SelectionRules()


@dataclass(frozen=True)
class LoraStart:
    """Store a request's start: the steps saved, 0 for a miss, and whether it names LoRAs."""

    saved_steps: int
    styled: bool


def scope_of_choice(choice: Choice, patched_after: int) -> CacheScope:
    """Return the scope of a request with these models and LoRAs, patched in after `patched_after` steps."""
    loras = " ".join(sorted(choice.loras))
    return CacheScope(
        tenant="everybody",
        model_digest=choice.model,
        vae_digest="vae",
        scheduler_digest="ddim",
        prediction_type="epsilon",
        width_px=512,
        height_px=512,
        guidance_scale=7.5,
        negative_prompt="",
        num_inference_steps=STEPS,
        adapters_digest=loras,
        adapters_from_step=patched_after,
    )


@dataclass
class LoraReplay:
    """Hold a cache without bounds: the rows of the entries that misses added, by key, and each one's latents."""

    vectors: Vectors
    rows: dict[str, list[int]] = field(default_factory=dict)
    latents: dict[int, dict[int, str]] = field(default_factory=dict)

    def play(self, row: int, scope: CacheScope) -> int:
        """Look up the request of that row, commit it, and return the steps that it saves."""
        saved = self._saved_steps(row, scope)
        keys = {step: latent_key(scope, step) for step in kept_steps(STEPS, saved, RULES)}
        if keys:
            self.latents[row] = keys
        for key in set(keys.values()):
            self.rows.setdefault(key, []).append(row)
        return saved

    def _saved_steps(self, row: int, scope: CacheScope) -> int:
        held = sorted({other for key in latent_keys(scope) for other in self.rows.get(key, [])})
        cosines = self.vectors[held] @ self.vectors[row]
        for index in np.argsort(-cosines, kind="stable"):
            fitting = [step for step, key in self.latents[held[index]].items() if key == latent_key(scope, step)]
            if fitting:
                nearest = NearestEntry(float(cosines[index]), tuple(fitting))
                chosen = select_start(SelectionContext(STEPS, [nearest]), RULES)
                return chosen.resume_step if isinstance(chosen, UseLatent) else 0
        return 0


def lora_starts(vectors: Vectors, choices: Sequence[Choice], patched_after: int) -> list[LoraStart]:
    """Return the start of every request of the log, each later than all before it."""
    replay = LoraReplay(vectors)
    return [
        LoraStart(replay.play(row, scope_of_choice(choice, patched_after)), bool(choice.loras))
        for row, choice in enumerate(choices)
    ]


@dataclass(frozen=True)
class SharingBlock:
    """Count consecutive requests, with hits and saved steps by keys that bind LoRAs, and by shared keys."""

    count: int
    bound_hits: int
    shared_hits: int
    bound_steps: int
    shared_steps: int

    @classmethod
    def of(cls, pairs: Sequence[tuple[LoraStart, LoraStart]]) -> "SharingBlock":
        """Count pairs of the same request's starts, bound and shared."""
        bound, shared = ([pair[side].saved_steps for pair in pairs] for side in (0, 1))
        bound_hits, shared_hits = (sum(step > 0 for step in steps) for steps in (bound, shared))
        return cls(len(pairs), bound_hits, shared_hits, sum(bound), sum(shared))


def blocks(bound: Sequence[LoraStart], shared: Sequence[LoraStart], styled_alone: bool) -> list[SharingBlock]:
    """Return the log in blocks of consecutive requests, for resampling: all requests, or only those with LoRAs."""
    pairs = list(zip(bound, shared, strict=True))
    parts = (pairs[first : first + BLOCK] for first in range(0, len(pairs), BLOCK))
    return [SharingBlock.of([pair for pair in part if pair[0].styled or not styled_alone]) for part in parts]


def hits_when_bound(found: Sequence[SharingBlock]) -> float:
    """Return hits by keys that bind LoRAs, in percent."""
    return 100.0 * sum(one.bound_hits for one in found) / max(1, sum(one.count for one in found))


def extra_hits(found: Sequence[SharingBlock]) -> float:
    """Return the hits that sharing adds, in points."""
    return 100.0 * sum(one.shared_hits - one.bound_hits for one in found) / max(1, sum(one.count for one in found))


def extra_steps(found: Sequence[SharingBlock]) -> float:
    """Return the steps that sharing saves beyond the others, in points of all steps."""
    steps = sum(one.shared_steps - one.bound_steps for one in found)
    return 100.0 * steps / max(1, STEPS * sum(one.count for one in found))


def figures_of_mix(name: str, mix: ProductionMix, vectors: Vectors) -> Iterator[Figure]:
    """Yield a mix's figures over several draws of models and LoRAs: for all requests, and for requests with LoRAs."""
    drawn = [choose(mix, len(vectors), np.random.default_rng(seed)) for seed in range(SEEDS)]
    bound = [lora_starts(vectors, choices, BOUND) for choices in drawn]
    for after in PATCHED_AFTER:
        shared = [lora_starts(vectors, choices, after) for choices in drawn]
        for styled_alone, who in ((False, "all requests"), (True, "requests with LoRAs")):
            found = [
                block for one, other in zip(bound, shared, strict=True) for block in blocks(one, other, styled_alone)
            ]
            what = f"{name}, {who}"
            if after == PATCHED_AFTER[0]:
                yield measured(f"{what}: hits by keys that bind LoRAs", found, hits_when_bound, informative("%"))
            yield measured(
                f"{what}, patched after {after}: hits that sharing adds", found, extra_hits, informative("points")
            )
            yield measured(
                f"{what}, patched after {after}: steps that it saves", found, extra_steps, informative("points")
            )


def main() -> int:
    options = parse_options("lora_sharing", __doc__, add_options)
    vectors = read_vectors(DIFFUSIONDB, options.rest["data"], QUICK_COUNT if options.quick else COUNT)
    figures = []
    for name, mix in MIXES.items():
        for figure in figures_of_mix(name, mix, vectors):
            print(figure.line(), flush=True)
            figures.append(figure)
    return publish(options, figures, notes={"prompts": len(vectors), "draws": SEEDS})


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, required=True, help="directory with prompts/")


if __name__ == "__main__":
    raise SystemExit(main())
