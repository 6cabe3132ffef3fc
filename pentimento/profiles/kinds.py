"""Derive the permissions that profiles of each kind give.

| kind | `at` of a row | `allowed` |
| --- | --- | --- |
| reuse | skipped_steps: K of `conditions.step_count` | lowest similarity |
| steps | first_step, taken_count, spacing; of hits resume_step and least_similarity | steps in total |
| features | as of steps, of the others that reuse deep features; of hits renoised_steps, retaken_steps | whole steps |
| handover | reuse_share: part of the later model's steps that is skipped | that share |
| lora | steps: K without the LoRA | K |
| pipelining | step_count, first_step: 0 where residuals are never one step old | – |
"""

import math
from collections.abc import Mapping, Sequence

from pentimento.domain.adapters import AdapterKind
from pentimento.domain.generation import FromLatent, GenerationSpec
from pentimento.policies.cache_selection import Threshold, Thresholds
from pentimento.policies.residual_pipelining import PipeliningBound
from pentimento.policies.thinning import ThinningOption, ThinningRefusal, WholeReason, scaled
from pentimento.profiles.document import (
    DIGITS,
    MeasuredAdapter,
    Profile,
    ProfileKind,
    ProfileRow,
    ReuseKind,
    adapters_of,
    row_of,
)
from pentimento.profiles.rules import (
    ImageSample,
    LateSample,
    ThresholdRule,
    before_luck,
    late_tally,
    lowest,
    mean_share,
    tally,
    without_luck,
)

StepsKey = tuple[int, int, int, float, float, int, int]
# Share of the steps that a bias of 1 adds to K, and the largest share that a biased K skips.
BIAS_STEP, LARGEST_BIASED_SHARE = 0.1, 0.9
# From this bias on K is N: a hit is the stored image, without a denoising step.
RETRIEVAL_BIAS = 10


def profile_name(profile: Profile, rule: ThresholdRule | None = None) -> str:
    """Return the profile's name in provenance, by default with its own rule."""
    promise = f"alpha {profile.asked.alpha:g} by {(rule or profile.asked.rule).value}"
    if profile.conditions.start is None:
        what = "feature reuse" if profile.kind is ProfileKind.FEATURES else "thinning"
        return f"{what} of {profile.of.model}, {promise}"
    pair = "" if profile.of.model == profile.of.reference else f" for {profile.of.reference}"
    return f"{profile.conditions.start.value} of {profile.of.model}{pair}, {promise}"


def start_of(profile: Profile) -> ReuseKind:
    """Return the kind of start that a reuse profile measured."""
    return profile.conditions.start or ReuseKind.LATENTS


def reuses_images(profile: Profile) -> bool:
    """Return whether a reuse profile measured images."""
    return start_of(profile) is ReuseKind.IMAGES


# Reuse


def thresholds(profile: Profile, rule: ThresholdRule | None = None) -> Thresholds:
    """Return the table by a rule, by default the profile's own, ascending in similarity and in share.

    For latents, a smaller K' serves if K is missing (NIRVANA, section 5.4), so a K is allowed only if all smaller ones
    are. For images, a K is skipped if a larger one allows a lower similarity.
    """
    chosen, step_count = rule or profile.asked.rule, profile.conditions.step_count
    found = [(row.at["skipped_steps"] / step_count, row.by(chosen)) for row in profile.rows]
    return _best_of_each(found) if reuses_images(profile) else _without_holes(found)


_Row = tuple[float, float | None]


def _without_holes(found: Sequence[_Row]) -> Thresholds:
    rows: list[_Row] = []
    highest = -1.0
    for share, similarity in found:
        if similarity is None:
            break
        highest = max(highest, similarity)
        rows.append((share, highest))
    return _best_of_each(rows)


def _best_of_each(found: Sequence[_Row]) -> Thresholds:
    rows: list[Threshold] = []
    for share, similarity in reversed(found):
        if similarity is not None and (not rows or similarity < rows[-1].min_similarity):
            rows.append(Threshold(similarity, share))
    return tuple(reversed(rows))


def caution(profile: Profile) -> float:
    """Return the lowest similarity of a reuse table; infinity for one that allows nothing."""
    return min((row.min_similarity for row in thresholds(profile)), default=math.inf)


def biased(table: Thresholds, bias: int) -> Thresholds:
    """Return a table with every K moved by `bias` tenths of the steps (NIRVANA, section 5.3.1).

    A tenth is the distance of the paper's K. Above 0 each similarity allows a larger K, which is cheaper; below 0 a
    smaller one, which is closer to an image from scratch. At least a tenth of the steps remains; a row with K = 0 is
    dropped.
    """
    least: dict[float, float] = {}
    for row in sorted(table, key=lambda row: row.min_similarity):
        most = max(row.saved_share, LARGEST_BIASED_SHARE)
        share = min(row.saved_share + bias * BIAS_STEP, most)
        if share > 0:
            least.setdefault(share, row.min_similarity)
    return tuple(Threshold(similarity, share) for share, similarity in least.items())


def reuse_row(skipped_steps: int, samples: Sequence[ImageSample], alpha: float) -> ProfileRow:
    """Return the row of one K: the lowest similarity by each rule, rounded up to four digits."""
    found = tally(samples, alpha)
    similarities = {rule.value: lowest(samples, alpha, rule) for rule in ThresholdRule}
    allowed = {rule: _up(similarity) for rule, similarity in similarities.items() if similarity is not None}
    return ProfileRow({"skipped_steps": skipped_steps}, found.count, found.kept, found.sums, allowed)


def _up(similarity: float) -> float:
    return min(-(-similarity * 10_000 // 1) / 10_000, 1.0)


# Skipped steps


def steps_key(row: ProfileRow) -> StepsKey:
    """Return the key of a row's images; rows are sorted by it."""
    similarity, spacing = row.at.get("least_similarity", -1.0), row.at.get("spacing", 1.0)
    return *start_of_hit(row), similarity, spacing, row.place("first_step"), -row.place("taken_count")


def start_of_hit(row: ProfileRow) -> tuple[int, int, int]:
    """Return the step at which a row's hits resume, the steps that are noised again, and the steps that lead back; 0
    for images from noise."""
    return row.place("resume_step"), row.place("renoised_steps"), row.place("retaken_steps")


def options(profile: Profile, step_count: int, rule: ThresholdRule | None = None) -> tuple[ThinningOption, ...]:
    """Return the ways to skip steps of an image from noise; none for fewer steps than were measured."""
    asked = (step_count, rule or profile.asked.rule)
    if asked not in profile.derived:
        rows = [row for row in profile.rows if not row.place("resume_step")]
        profile.derived[asked] = _allowed(profile, rows, *asked)
    found: tuple[ThinningOption, ...] = profile.derived[asked]
    return found


def hit_options(
    profile: Profile, start: FromLatent, step_count: int, rule: ThresholdRule | None = None
) -> tuple[ThinningOption, ...]:
    """Return the ways to skip steps of a hit, as in `options`.

    Empty for a hit that resumes at an unmeasured step, is less similar than measured or noised again in another way,
    and for latents that come from a hit.
    """
    own = (start.resume_step, start.renoised_steps, start.retaken_steps)
    rows = [
        row
        for row in profile.rows
        if row.place("resume_step")
        and tuple(step * step_count // profile.conditions.step_count for step in start_of_hit(row)) == own
        and row.at.get("least_similarity", -1.0) <= start.donor.similarity
        and start.donor.ancestor_depth == 0
    ]
    return _allowed(profile, rows, step_count, rule or profile.asked.rule)


def _allowed(
    profile: Profile, rows: Sequence[ProfileRow], step_count: int, rule: ThresholdRule
) -> tuple[ThinningOption, ...]:
    measured = profile.conditions.step_count
    if step_count < measured:
        return ()
    found = without_luck({(_begin(row), row.place("taken_count")): row.by(rule) is not None for row in rows})
    return tuple(
        scaled(_option(row), measured, step_count) for row in rows if (_begin(row), row.place("taken_count")) in found
    )


def _begin(row: ProfileRow) -> tuple[float, int]:
    """Return the beginning of a row; rows with one beginning differ only by the number of steps."""
    return row.at.get("spacing", 1.0), row.place("first_step")


def _option(row: ProfileRow) -> ThinningOption:
    share, spacing = row.figures.get("share", 0.0), row.at.get("spacing", 1.0)
    return ThinningOption(row.place("first_step"), row.place("taken_count"), share, spacing)


def steps_row(at: Mapping[str, float], samples: Sequence[ImageSample], alpha: float) -> ProfileRow:
    """Return the row of the way to skip steps that `at` states."""
    figures = {"share": round(mean_share(samples), DIGITS)}
    return row_of(at, tally(samples, alpha), at["first_step"] + at["taken_count"], figures)


def uncovered(profile: Profile, spec: GenerationSpec, lora_patch_step: int = 0) -> ThinningRefusal | None:
    """Return why the measurement does not cover a request with LoRAs from `lora_patch_step` on; None if it does.

    The request's start is not checked.
    """
    how = profile.conditions
    if profile.of.adapters != adapters_of(spec):
        if controlnets(adapters_of(spec)) != controlnets(profile.of.adapters):
            return _unmeasured(WholeReason.CONTROLNETS_UNMEASURED, "without these ControlNets")
        return _unmeasured(WholeReason.LORAS_UNMEASURED, "without these LoRAs")
    if lora_patch_step * how.step_count > how.patch_step * spec.num_inference_steps:
        return _unmeasured(WholeReason.LORAS_LATE, f"with LoRAs from step {how.patch_step} on")
    if spec.init_image is not None:
        return _unmeasured(WholeReason.IMAGE_UNMEASURED, "from noise, not from an image")
    if spec.scheduler is not how.scheduler or spec.eta != 0.0 or spec.sigma_spacing is not None:
        named = how.scheduler.value if how.scheduler is not None else "no scheduler"
        return _unmeasured(WholeReason.SCHEDULER_UNMEASURED, f"with {named}")
    if spec.guidance_scale != how.guidance_scale:
        return _unmeasured(WholeReason.GUIDANCE_UNMEASURED, f"at a guidance scale of {how.guidance_scale:g}")
    if spec.num_inference_steps < how.step_count:
        return _unmeasured(WholeReason.STEPS_UNMEASURED, f"with {how.step_count} steps")
    return None


def controlnets(adapters: Sequence[MeasuredAdapter]) -> tuple[MeasuredAdapter, ...]:
    """Return the ControlNets of a list of adapters."""
    return tuple(one for one in adapters if one.kind is AdapterKind.CONTROLNET)


def _unmeasured(reason: WholeReason, how: str) -> ThinningRefusal:
    return ThinningRefusal(reason, f"the profile was measured {how}")


# Hand-overs


def reuse_share(profile: Profile, rule: ThresholdRule | None = None) -> float:
    """Return the largest share that a rule allows, by default the profile's own; 0 for none."""
    return _furthest(profile, "reuse_share", rule)


def _furthest(profile: Profile, name: str, rule: ThresholdRule | None) -> float:
    """Return the last value of `name` before the first row that is not allowed, 0 for none; later success is luck."""
    rows = sorted(profile.rows, key=lambda row: row.at[name])
    holds = ((row.at[name], row.by(rule or profile.asked.rule) is not None) for row in rows)
    return max(before_luck(holds), default=0.0)


def taken_steps(step_count: int, share: float) -> int:
    """Return the steps of the later model that remain after skipping that share (0..1); 0 for none."""
    return int(step_count * (1.0 - share) + 1e-9)


def handover_row(share: float, samples: Sequence[ImageSample], alpha: float) -> ProfileRow:
    """Return the row of one share of skipped steps."""
    figures = {"share": round(mean_share(samples), DIGITS)}
    return row_of({"reuse_share": share}, tally(samples, alpha), share, figures)


# Late LoRAs and pipelined residuals


def latest_start(profile: Profile, rule: ThresholdRule | None = None) -> float:
    """Return the share of the schedule that may run before the LoRA takes effect, at weights between -1 and 1."""
    return _furthest(profile, "steps", rule) / profile.conditions.step_count


def lora_row(steps: int, samples: Sequence[LateSample]) -> ProfileRow:
    """Return the row of one K."""
    count = len(samples)
    measures = {name: [getattr(one, name) for one in samples] for name in ("cosine", "strength", "alike")}
    figures = {f"mean_{name}": round(math.fsum(values) / count, DIGITS) for name, values in measures.items()}
    figures |= {f"lowest_{name}": round(min(measures[name]), DIGITS) for name in ("cosine", "strength")}
    return row_of({"steps": steps}, late_tally(samples), steps, figures)


def pipelining_bounds(profile: Profile) -> tuple[PipeliningBound, ...]:
    """Return the bounds of the profile's ControlNet with its model, fewest steps first."""
    found = {row.place("step_count"): row.place("first_step") for row in profile.rows}
    return tuple(PipeliningBound(count, found[count]) for count in sorted(found))
