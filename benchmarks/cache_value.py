"""Compare throughput and quality of reuse on the live suite with the heavy model from scratch.

    python -m benchmarks.cache_value --scorer SCORERS --encoder OTHERS [--count 240] [--in-flight 4]
    python -m benchmarks.cache_value --rules [--count 240]

SCORERS and OTHERS are work folders of training (see `benchmarks.image_scorers`). Five arms play a scene log
(`zoo.scene_log`) other than the profiles', alternating round by round:

    vanilla      tiny-heavy, cache off
    latents      hits resumed by tiny-heavy (NIRVANA)
    images       hits refined by tiny-light (MoDM)
    both         the start that finishes first
    all-light    tiny-light, cache off: a control that has to fail the quality gate

A second control, retrieval, uses vanilla's images: a hit is answered with the stored image, unchanged. The strict form
finds them by text and answers as many requests as our images arm did on the same log, as both papers compare. Two more
forms use the images' table, and MoDM's more lenient reading of it. A second log is denser and reuses images by that
reading, so that it has the papers' hit rates. The first prompts of either fill the caches and do not count. An encoder
and an attribute scorer that neither route nor were trained with the router's give the quality.

`--rules` compares eviction instead (`value_rules`): the latents arm in stores too small for the log, without scorers.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from benchmarks.chosen import only
from benchmarks.image_scorers import ImageScorers, check_scorers
from benchmarks.reuse_ceiling import ReuseTables, donors_above, donors_at_share, hit_share, log_starts
from benchmarks.reuse_quality import (
    BOTH_GATE,
    IMAGES_GATE,
    LATENTS_GATE,
    OF_CEILING,
    ArmRounds,
    Distances,
    FeatureSpace,
    QualityGate,
    ScoredImages,
    failing_control,
    image_figures,
    quality_figures,
    score_figure,
    throughput_figures,
)
from benchmarks.selector_profile import PROFILES, LocalEncoder
from benchmarks.value_rules import STORE_BYTES, rule_figures
from benchmarks.value_runs import (
    ALL_LIGHT,
    BOTH,
    HEAVY,
    IMAGES,
    LATENTS,
    LIGHT,
    OTHER_SEED,
    REUSING,
    VANILLA,
    Arm,
    ArmRun,
    LogPlan,
    LogPlayer,
    ServedImage,
    value_suites,
)
from lab.runs.intervals import ratio_of_sums
from lab.runs.measure import Figure, Options, at_least, informative, measured, parse_options, publish
from pentimento.diffusion.weights import quiet_loaders
from pentimento.profiles.catalogue import read_profiles
from pentimento.profiles.document import Profile, ProfileKind, ReuseKind
from pentimento.profiles.kinds import start_of, thresholds
from pentimento.profiles.rules import ThresholdRule
from services.embedder.model import open_model
from zoo.command import run
from zoo.registry import WEIGHTS, entry_of
from zoo.scene_log import BANDS, Band, SceneLog, clip_embedder, denser_bands, write_scene_log

ENCODER = WEIGHTS / "tiny-clip"
PAPERS = {LATENTS.name: 1.28, IMAGES.name: 2.5}
GATES = {LATENTS.name: LATENTS_GATE, IMAGES.name: IMAGES_GATE, BOTH.name: BOTH_GATE}
# NIRVANA hits for 0.88 to 0.93 of its prompts, MoDM for 0.928: this share of the dense log has a near earlier prompt.
DENSE_SHARE, DENSE_ABOVE = 0.93, 0.9
DENSE_IMAGES = PROFILES / "mean-images-tiny-light-for-tiny-heavy.json"
PLAIN, DENSE = "scene log", "dense log"

Told = Callable[[str], None]


@dataclass(frozen=True)
class ReuseProfiles:
    """Hold the gateways' reuse profiles: the heavy model's latents, and its images refined by the light one."""

    latents: Profile
    images: Profile

    @classmethod
    def read(cls, folder: Path) -> "ReuseProfiles":
        """Return the zoo's two models' profiles. Raises as `only`."""
        reuse = read_profiles([folder]).of(ProfileKind.REUSE)
        profiles = [one for one in reuse if one.asked.rule is ThresholdRule.LOWER_BOUND]
        chosen = []
        for kind, model in ((ReuseKind.LATENTS, HEAVY), (ReuseKind.IMAGES, LIGHT)):
            wanted = (kind, model, HEAVY)
            found = (one for one in profiles if (start_of(one), one.of.model, one.of.reference) == wanted)
            chosen.append(only(found, f"profile of {kind.value} of {model} for {HEAVY} in {folder}"))
        return cls(*chosen)

    def of_suites(self) -> dict[str, Sequence[Profile]]:
        """Return the profiles of each suite, by its name."""
        return {LATENTS.suite: [self.latents], IMAGES.suite: [self.images], BOTH.suite: [self.latents, self.images]}

    def tables(self, arm: Arm) -> ReuseTables:
        """Return the tables of an arm's reuse."""
        latents, images = thresholds(self.latents), thresholds(self.images)
        return ReuseTables(() if arm == IMAGES else latents, () if arm == LATENTS else images)


@dataclass(frozen=True)
class ValuedLog:
    """Hold a log that every arm has played.

    `vanilla` has the heavy model's image of every row, warm-up included, and `other_seed` those of the counted rows
    with another seed, empty for a log without the quality gate.
    """

    name: str
    log: SceneLog
    plan: LogPlan
    runs: Mapping[str, ArmRun]
    vanilla: Mapping[int, ServedImage]
    other_seed: Mapping[int, ServedImage]


def main() -> int:
    options = parse_options("cache_value", __doc__, add_options)
    rest = options.rest
    torch.set_num_threads(1)
    quiet_loaders()
    if rest["rules"]:
        return compare_rules(options)
    check_scorers(rest["scorer"], rest["encoder"])
    profiles = ReuseProfiles.read(rest["profiles"])
    by_log = {PLAIN: profiles, DENSE: replace(profiles, images=read_profiles([rest["dense_images"]]).profiles[0])}
    began = time.monotonic()
    told = teller(began)
    played = [play_log(name, plan, bands, by_log[name], options, told) for name, plan, bands in logs_of(options)]
    scorers = ImageScorers(rest["scorer"], rest["encoder"])
    figures = figures_of(played, by_log, scorers)
    notes = {name: rest[name] for name in ("count", "warm", "rounds", "in_flight", "log_seed")}
    return publish(options, figures, notes=notes)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rules", action="store_true", help="compare rules of eviction in small stores")
    parser.add_argument("--scorer", type=Path, default=Path(), metavar="DIR", help="folder of the attribute scorer")
    parser.add_argument(
        "--encoder", type=Path, default=Path(), metavar="DIR", help="work folder of a dual encoder of another seed"
    )
    parser.add_argument("--profiles", type=Path, default=PROFILES, help="directory of selector profiles")
    parser.add_argument(
        "--dense-images", type=Path, default=DENSE_IMAGES, metavar="FILE", help="profile of images for the dense log"
    )
    parser.add_argument("--count", type=int, default=240, help="requests that count, of the first log")
    parser.add_argument("--warm", type=int, default=120, help="requests before them that fill the caches")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--in-flight", type=int, default=4, help="concurrent requests")
    parser.add_argument("--log-seed", type=int, default=31)


def logs_of(options: Options) -> list[tuple[str, LogPlan, tuple[Band, ...]]]:
    """Return both logs' names, plans and bands; the dense one is two thirds as long."""
    rest = options.rest
    count, warm, rounds = (24, 16, 2) if options.quick else (rest["count"], rest["warm"], rest["rounds"])
    plain = LogPlan(warm, count, rounds, rest["in_flight"], first_seed=10_000)
    dense = replace(plain, warm_count=warm * 2 // 3, count=count * 2 // 3, first_seed=20_000)
    return [(PLAIN, plain, BANDS), (DENSE, dense, denser_bands(DENSE_SHARE, DENSE_ABOVE))]


def compare_rules(options: Options) -> int:
    """Publish what each rule of eviction saves on the first log."""
    latents, told = ReuseProfiles.read(options.rest["profiles"]).latents, teller(time.monotonic())
    _, plan, bands = logs_of(options)[0]
    rng = np.random.default_rng((options.rest["log_seed"], plan.first_seed))
    log = write_scene_log(plan.warm_count + plan.count, clip_embedder(ENCODER), rng, bands)
    notes = {name: options.rest[name] for name in ("count", "warm", "rounds", "in_flight", "log_seed")}
    return publish(options, rule_figures(log, plan, latents, told), notes={**notes, "store_bytes": STORE_BYTES})


def teller(began: float) -> Told:
    """Return a function that prints a line with the elapsed seconds."""
    return lambda text: print(f"{time.monotonic() - began:6.0f} s  {text}", flush=True)


def play_log(
    name: str, plan: LogPlan, bands: tuple[Band, ...], profiles: ReuseProfiles, options: Options, told: Told
) -> ValuedLog:
    """Return every arm's images of a log, in separate suites."""
    told(f"{name}: {plan.warm_count} requests fill the caches, {plan.count} count")
    rng = np.random.default_rng((options.rest["log_seed"], plan.first_seed))
    log = write_scene_log(plan.warm_count + plan.count, clip_embedder(ENCODER), rng, bands)
    with (
        tempfile.TemporaryDirectory(prefix="cache-value") as folder,
        value_suites(Path(folder), profiles.of_suites(), told) as suites,
    ):
        player = LogPlayer(log, plan, suites, told)
        runs = player.play_all()
        vanilla = player.generate_vanilla(plan.warm_rows) | runs[VANILLA.name].images
        if name != PLAIN:
            return ValuedLog(name, log, plan, runs, vanilla, {})
        return ValuedLog(name, log, plan, runs, vanilla, player.generate_vanilla(plan.rows, OTHER_SEED))


def figures_of(played: Sequence[ValuedLog], by_log: Mapping[str, ReuseProfiles], scorers: ImageScorers) -> list[Figure]:
    figures: list[Figure] = []
    encoder = LocalEncoder(open_model(ENCODER))
    for one in played:
        profiles = by_log[one.name]
        figures += throughputs(one, profiles, encoder)
        lenient = by_log[DENSE].images
        if one.other_seed:
            figures += gated(one, profiles, lenient, scorers, encoder)
        else:
            figures += [*scored(one, scorers), *scored_controls(one, scorers)]
    return figures


def throughputs(one: ValuedLog, profiles: ReuseProfiles, encoder: LocalEncoder) -> Iterator[Figure]:
    """Yield the throughput of every arm, and of both arms together ÷ the better one."""
    of_ceiling = at_least(OF_CEILING) if one.name == PLAIN else informative()
    for arm in REUSING:
        rounds = rounds_of(one, arm, profiles, encoder)
        of_vanilla = at_least(PAPERS[arm.name]) if one.name == DENSE and arm.name in PAPERS else informative()
        yield from throughput_figures(one.name, rounds, of_vanilla, of_ceiling)
    yield better_figure(one)


def better_figure(one: ValuedLog) -> Figure:
    """Return the throughput of both ÷ the better one of the two, by the sums of all rounds."""
    better = min((LATENTS, IMAGES), key=lambda arm: sum(one.runs[arm.name].round_s))
    pairs = list(zip(one.runs[better.name].round_s, one.runs[BOTH.name].round_s, strict=True))
    return measured(
        f"{one.name}, both: throughput ÷ that of the better one of the two", pairs, ratio_of_sums, at_least(1.0)
    )


def rounds_of(one: ValuedLog, arm: Arm, profiles: ReuseProfiles, encoder: LocalEncoder) -> ArmRounds:
    """Return an arm's rounds with the log's hits. The images that could be found are the arm's."""
    plan, runs = one.plan, one.runs
    rows = range(plan.warm_count + plan.count)
    images = encoder.embed_images(runs[arm.name].data(rows)) if arm != LATENTS else one.log.embeddings
    heavy_steps, light_steps = (int(entry_of(model)["default_steps"]) for model in (HEAVY, LIGHT))
    rounds = ArmRounds(
        arm.name,
        arm_s=runs[arm.name].round_s,
        vanilla_s=runs[VANILLA.name].round_s,
        light_s=runs[ALL_LIGHT.name].round_s,
        counts=[len(part) for part in plan.rounds],
        starts=[],
        instant_starts=[],
        heavy_steps=heavy_steps,
        light_steps=light_steps,
    )
    tables = profiles.tables(arm)
    # requests that run concurrently cannot be found
    seen, instant = (
        log_starts(one.log.embeddings, images, tables, rounds.costs, unseen) for unseen in (plan.in_flight - 1, 0)
    )
    return replace(
        rounds,
        starts=[[seen[row] for row in part] for part in plan.rounds],
        instant_starts=[[instant[row] for row in part] for part in plan.rounds],
    )


def scored(one: ValuedLog, scorers: ImageScorers) -> Iterator[Figure]:
    """Yield the scores of a log without the quality gate."""
    vanilla = scored_run(one, scorers, one.runs[VANILLA.name].data(one.plan.rows))
    for arm in REUSING:
        ours = scored_run(one, scorers, one.runs[arm.name].data(one.plan.rows))
        yield score_figure(f"{one.name}, {arm.name}: CLIPScore ÷ vanilla's", ours, vanilla, informative())


def scored_run(one: ValuedLog, scorers: ImageScorers, images: Sequence[bytes]) -> ScoredImages:
    """Return the scores of an image of each row that counts."""
    rows = one.plan.rows
    return scorers.score(images, [one.log.prompts[row] for row in rows], [one.log.asked[row] for row in rows])


def gated(
    one: ValuedLog, profiles: ReuseProfiles, lenient: Profile, scorers: ImageScorers, encoder: LocalEncoder
) -> Iterator[Figure]:
    """Yield the quality of every arm by its gate, and the controls' failures of the images' gate: all-light, and
    retrieval by the arms' table and by the lenient one."""
    rows = one.plan.rows
    vanilla = scored_run(one, scorers, one.runs[VANILLA.name].data(rows))
    other = scored_run(one, scorers, [one.other_seed[row].data for row in rows])
    light = scored_run(one, scorers, one.runs[ALL_LIGHT.name].data(rows))
    space = FeatureSpace.of(np.concatenate([vanilla.features, other.features]))

    def figures(name: str, ours: ScoredImages, gate: QualityGate) -> list[Figure]:
        distances = Distances(*(space.distance(scores.features, vanilla.features) for scores in (ours, other, light)))
        return list(quality_figures(f"{one.name}, {name}", ours, vanilla, distances, gate))

    for arm in REUSING:
        yield from figures(arm.name, scored_run(one, scorers, one.runs[arm.name].data(rows)), GATES[arm.name])
    yield failing_control(f"{one.name}, all-light (a control)", figures("all-light", light, IMAGES_GATE))
    for profile in (profiles.images, lenient):
        retrieved = scored_run(one, scorers, retrieved_images(one, profile, encoder))
        name = f"retrieval, alpha {profile.asked.alpha:g} by {profile.asked.rule.value}"
        yield failing_control(f"{one.name}, {name} (a control)", figures(name, retrieved, IMAGES_GATE))
    name, retrieved = retrieved_alike(one, scorers)
    yield failing_control(f"{one.name}, {name} (a control)", figures(name, retrieved, IMAGES_GATE))


def scored_controls(one: ValuedLog, scorers: ImageScorers) -> Iterator[Figure]:
    """Yield, for the log with the papers' hit rates, the gate figures that retrieval fails at our images' hit share,
    and that our images fail. Distances, which need vanilla's images of other seeds, are skipped."""
    rows = one.plan.rows
    vanilla = scored_run(one, scorers, one.runs[VANILLA.name].data(rows))
    ours = scored_run(one, scorers, one.runs[IMAGES.name].data(rows))
    name, retrieved = retrieved_alike(one, scorers)
    for what, scores, target in ((f"{name} (a control)", retrieved, at_least(1)), (IMAGES.name, ours, informative())):
        found = list(image_figures(f"{one.name}, {what}", scores, vanilla, IMAGES_GATE))
        yield replace(failing_control(f"{one.name}, {what}", found), target=target)


def retrieved_alike(one: ValuedLog, scorers: ImageScorers) -> tuple[str, ScoredImages]:
    """Return retrieval by text (PINECONE) from vanilla's images that answers as many requests from the store as our
    images arm did, and its name."""
    rows, texts = one.plan.rows, one.log.embeddings
    served = [one.runs[IMAGES.name].images[row].kind != "noise" for row in rows]
    donors = donors_at_share(texts, texts, rows, sum(served) / len(served))
    name = f"retrieval by text, {hit_share(donors, rows):.2f} of the requests as {IMAGES.name} {np.mean(served):.2f}"
    return name, scored_run(one, scorers, [one.vanilla[donors[row]].data for row in rows])


def retrieved_images(one: ValuedLog, profile: Profile, encoder: LocalEncoder) -> list[bytes]:
    """Return for each counted row the stored image if the images' table makes it a hit, else vanilla's. Only misses are
    stored (retrieval as in MoDM's evaluation)."""
    count = one.plan.warm_count + one.plan.count
    images = encoder.embed_images([one.vanilla[row].data for row in range(count)])
    # above any cosine if the table reuses nothing
    lowest = min((row.min_similarity for row in thresholds(profile)), default=2.0)
    donors = donors_above(one.log.embeddings, images, lowest)
    return [one.vanilla[donors[row]].data for row in one.plan.rows]


if __name__ == "__main__":
    run(main)
