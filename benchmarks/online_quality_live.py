"""Measure whether a threshold for images recovers in a running suite: it is too low, hits are generated again, it
rises.

    python -m benchmarks.online_quality_live [--requests 160] [--log-seed 41]

A suite of real processes and the zoo's models: `tiny-heavy` generates misses, `tiny-light` refines images as hits, and
`tiny-heavy` generates every hit again from noise, with the shipped rules and no limit on the time. The selector profile
is the shipped one except for its threshold, which is that of its rule of the mean, as if measured on more tolerant
prompts. A scene log is played one request after the other; the next is sent after the hit before it was counted. Hits'
quality and the threshold are read from the gateway's ledger.
"""

import argparse
import asyncio
import math
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from benchmarks.cache_value import ENCODER
from benchmarks.chosen import only
from benchmarks.selector_profile import PROFILES
from benchmarks.value_runs import HEAVY, LIGHT, SETTINGS, suite_flags
from lab.runs.measure import Figure, Options, at_least, informative, parse_options, publish, share
from pentimento.diffusion.weights import quiet_loaders
from pentimento.domain.generation import FromImage
from pentimento.domain.image_request import ImageRequest
from pentimento.domain.online_quality import QualitySample, WatchedThreshold
from pentimento.profiles.catalogue import read_profiles
from pentimento.profiles.document import Profile, ProfileKind, ReuseKind
from pentimento.profiles.kinds import profile_name, start_of, thresholds
from pentimento.profiles.rules import REQUIRED_SHARE
from pentimento.sdk import AsyncClient
from pentimento.stores.ledger.cache.ledger import CacheLedger, open_cache_ledger
from pentimento.supervisor.local import LocalSuite, local_suite
from zoo.scene_log import clip_embedder, write_scene_log

QUICK_REQUESTS = 24
FIRST_SEED = 50_000
# Everything is slow while others use the machine; a hit not generated again by then counts as missing.
COUNTED_WITHIN_S = 180.0
LOOK_S = 0.1
PATIENCE_MS = 900_000
ALL_HITS = """quality_sample_share = 1.0
quality_work_share = 1.0
"""


@dataclass(frozen=True)
class WatchedHit:
    """Store a request's hit: the hits before it, the threshold at its request, and the quality that the gateway
    counted, or None."""

    row: int
    threshold: float
    sample: QualitySample | None


@dataclass(frozen=True)
class WatchedRun:
    """Store all hits of a log of `request_count` requests, and the threshold at the end."""

    request_count: int
    hits: tuple[WatchedHit, ...]
    threshold: float


class LedgerWatch:
    """Read the counts of a suite's gateway for its only threshold."""

    def __init__(self, ledger: CacheLedger, profiled: float) -> None:
        self._ledger = ledger
        self._profiled = profiled

    def samples(self) -> list[QualitySample]:
        """Return the counted hits, oldest first."""
        watched = self._watched()
        return [] if watched is None else self._ledger.quality_samples(watched)

    def threshold(self) -> float:
        """Return the lowest allowed similarity."""
        watched = self._watched()
        position = -1.0 if watched is None else self._ledger.quality_positions()[watched].similarity
        return max(position, self._profiled)

    async def counted(self, similarity: float, before: QualitySample | None) -> QualitySample | None:
        """Wait for a hit's sample, found by its donor's similarity among those after `before`; None if it does not
        arrive in time."""
        until = time.monotonic() + COUNTED_WITHIN_S
        while time.monotonic() < until:
            later = [
                one for one in await asyncio.to_thread(self.samples) if before is None or one.number > before.number
            ]
            if found := [one for one in later if math.isclose(one.similarity, similarity, abs_tol=1e-6)]:
                return found[0]
            await asyncio.sleep(LOOK_S)
        return None

    def _watched(self) -> WatchedThreshold | None:
        return next(iter(self._ledger.quality_positions()), None)


def too_lenient(profile: Profile) -> Profile:
    """Return the profile with only its row of most steps, at the threshold by the rule of the mean."""
    row = profile.rows[-1]
    return replace(profile, rows=(replace(row, allowed={**row.allowed, "lower_bound": row.allowed["mean"]}),))


def shipped_profile(directory: Path) -> Profile:
    """Return the profile of images that the small model refines. Raises as `only`."""
    wanted = (ReuseKind.IMAGES, LIGHT, HEAVY)
    profiles = read_profiles([directory]).of(ProfileKind.REUSE)
    found = (one for one in profiles if (start_of(one), one.of.model, one.of.reference) == wanted)
    return only(found, f"profile of images of {LIGHT} for {HEAVY} in {directory}")


def asked(prompt: str, row: int) -> ImageRequest:
    """Return a request of the log, without a deadline that matters."""
    return ImageRequest(prompt, seed=FIRST_SEED + row, deadline_ms=PATIENCE_MS)


async def play(suite: LocalSuite, prompts: Sequence[str], watch: LedgerWatch) -> WatchedRun:
    """Play requests in sequence, each hit counted before the next."""
    hits: list[WatchedHit] = []
    async with AsyncClient(suite.endpoint.public) as client:
        for row, prompt in enumerate(prompts):
            before, threshold = next(reversed(watch.samples()), None), watch.threshold()
            made = (await client.generate(asked(prompt, row))).provenance
            if not isinstance(made.route.start, FromImage) or not made.steps_saved:
                continue
            sample = await watch.counted(made.route.start.donor.similarity, before)
            hits.append(WatchedHit(row, threshold, sample))
            told = "not counted" if sample is None else f"{sample.quality / sample.scratch_quality:.3f}"
            print(f"{row + 1} of {len(prompts)}: hit {len(hits)} kept {told}, from {threshold:.4f} on", flush=True)
    return WatchedRun(len(prompts), tuple(hits), watch.threshold())


def run_of(profile: Profile, options: Options) -> WatchedRun:
    """Play the log on a suite with that profile."""
    count = QUICK_REQUESTS if options.quick else options.rest["requests"]
    rng = np.random.default_rng(options.rest["log_seed"])
    prompts = write_scene_log(count, clip_embedder(ENCODER), rng).prompts
    with tempfile.TemporaryDirectory(prefix="pentimento-") as folder:
        state = Path(folder) / "state"
        settings = SETTINGS.replace("quality_sample_share = 0.0\n", "") + ALL_HITS
        flags = suite_flags(Path(folder) / "given", [profile], settings)
        with local_suite(flags, state_dir=state) as suite:
            ledger = open_cache_ledger(f"sqlite:///{state}/gateway.sqlite")
            try:
                return asyncio.run(play(suite, prompts, LedgerWatch(ledger, lowest(profile))))
            finally:
                ledger.close()


def lowest(profile: Profile) -> float:
    return min(row.min_similarity for row in thresholds(profile))


def figures_of(run: WatchedRun, shipped: Profile, given: Profile) -> list[Figure]:
    """Return the figures: counts, and hits' quality before the threshold first rose and after its last rise."""
    counted = [hit for hit in run.hits if hit.sample is not None]
    before = [hit for hit in counted if hit.threshold <= lowest(given)]
    after = [hit for hit in counted if hit.threshold >= run.threshold]
    rose = float(run.threshold > lowest(given))
    first, second = halves(run)
    return [
        kept_share(
            "hits of images that were painted again and counted", [hit.sample is not None for hit in run.hits], 0.95
        ),
        Figure("the threshold rose", rose, at_least(1.0)),
        Figure("hits until it first rose", float(len(before)), informative("hits")),
        kept_share(f"hits that keep {given.asked.alpha:g} before it rose", kept(before, given.asked.alpha), None),
        kept_share(
            f"hits that keep {given.asked.alpha:g} since it rose last", kept(after, given.asked.alpha), REQUIRED_SHARE
        ),
        Figure("threshold that was given", lowest(given), informative(), 1),
        Figure("threshold at the end", run.threshold, informative(), 1),
        Figure("threshold of the shipped profile", lowest(shipped), informative(), 1),
        kept_share("requests that are hits, first half of the log", first, None),
        kept_share("requests that are hits, second half", second, None),
        quality("quality kept before it rose", before),
        quality("quality kept since it rose last", after),
    ]


def kept(hits: Sequence[WatchedHit], alpha: float) -> list[bool]:
    return [hit.sample.quality >= alpha * hit.sample.scratch_quality for hit in hits if hit.sample is not None]


def halves(run: WatchedRun) -> tuple[list[bool], list[bool]]:
    """Return whether each request was a hit, for both halves of the log."""
    rows = {hit.row for hit in run.hits}
    was_hit = [row in rows for row in range(run.request_count)]
    middle = run.request_count // 2
    return was_hit[:middle], was_hit[middle:]


def kept_share(name: str, flags: Sequence[bool], limit: float | None) -> Figure:
    return share(name, sum(flags), len(flags), informative() if limit is None else at_least(limit))


def quality(name: str, hits: Sequence[WatchedHit]) -> Figure:
    """Return the hits' mean CLIPScore as a share of that of the images from noise."""
    pairs = [(hit.sample.quality, hit.sample.scratch_quality) for hit in hits if hit.sample is not None]
    value = (
        statistics.fmean(ours for ours, _ in pairs) / statistics.fmean(theirs for _, theirs in pairs) if pairs else None
    )
    return Figure(name, value, informative(), len(pairs))


def main() -> int:
    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--requests", type=int, default=160)
        parser.add_argument("--log-seed", type=int, default=41)
        parser.add_argument("--profiles", type=Path, default=PROFILES, help="directory of selector profiles")

    options = parse_options("online_quality_live", __doc__, add)
    torch.set_num_threads(1)
    quiet_loaders()
    shipped = shipped_profile(options.rest["profiles"])
    given = too_lenient(shipped)
    run = run_of(given, options)
    notes = {"requests": run.request_count, "log_seed": options.rest["log_seed"], "profile": profile_name(given)}
    return publish(options, figures_of(run, shipped, given), notes=notes)


if __name__ == "__main__":
    raise SystemExit(main())
