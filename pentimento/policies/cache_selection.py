"""From the nearest cached entries to where denoising starts.

Latents (NIRVANA, 5.3.1): text-to-text similarity s gives K by a table of thresholds; of the latents that the entry
still holds, the largest K' <= K serves ("holes"). Images (MoDM, 5.2): text-to-image similarity gives the step at which
the re-noised picture starts. Of the nearest entries the one that saves most steps serves, of equals the nearest; both
papers look at the nearest one alone, whose latents may have been evicted.

The numbers in both papers belong to their encoders and models. Thresholds must be profiled for the encoder and models
that are served; the defaults here are NIRVANA's for latents, and none (no reuse) for images.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Threshold:
    """A row of a table of reuse: from `min_similarity` (cosine) on, `saved_share` (K / N, 0..1) of the denoising steps
    may be skipped."""

    min_similarity: float
    saved_share: float

    def __post_init__(self) -> None:
        if not -1 <= self.min_similarity <= 1:
            raise ValueError(f"min_similarity must be between -1 and 1, got {self.min_similarity}")
        if not 0 < self.saved_share < 1:
            raise ValueError(f"saved_share must be above 0 and below 1, got {self.saved_share}")


Thresholds = tuple[Threshold, ...]

# K of 50 steps; a re-implementation's constants, for CLIP.
NIRVANA_LATENT_THRESHOLDS: Thresholds = (
    Threshold(0.65, 5 / 50),
    Threshold(0.75, 10 / 50),
    Threshold(0.85, 15 / 50),
    Threshold(0.90, 20 / 50),
    Threshold(0.95, 25 / 50),
)


# So many of the nearest entries are compared; a search finds no more.
NEAREST_COUNT = 4
# Where none of those found may serve, those beyond them are looked for, up to so many in all.
MOST_SEARCHED_COUNT = 64


# The gateway's defaults. SelectionRules alone resumes entries as they are stored, as the papers do.
RENOISED_SHARE = 1.0
RETAKEN_SHARE = 0.2


@dataclass(frozen=True)
class SelectionRules:
    """The similarities from which on latents and images may be reused; an empty table switches that kind off.

    `quality` is the share of the from-scratch quality that the tables were profiled for (both papers' alpha).
    `keeps_latents_of_hits`: a run that started from the cache leaves its later latents there too (NIRVANA keeps those
    of misses alone). `keeps_images_of_hits`: it leaves its image there (MoDM's cache-all). A start of another
    seed's image is noised again by the request's seed, so that the images differ (NIRVANA, appendix C): by
    `renoised_share` (0..1) of its K steps, of which `retaken_share` (0..1) of K lead back (ADR 0007). `retrieves`: an
    entry that is near enough is answered with its image, without a denoising step (K = N).
    """

    latents: Thresholds = NIRVANA_LATENT_THRESHOLDS
    images: Thresholds = ()
    quality: float = 0.9
    keeps_latents_of_hits: bool = False
    keeps_images_of_hits: bool = True
    renoised_share: float = 0.0
    retaken_share: float = 1.0
    retrieves: bool = False


@dataclass(frozen=True)
class NearestEntry:
    """A match in one space. `latent_steps` are the K it holds; an entry may hold an image without latents. `is_own`: it
    is of the request's own prompt and seed. Its latents are resumed as they are, and its image is made again from
    noise: both give the same image again."""

    similarity: float
    latent_steps: tuple[int, ...] = ()
    has_image: bool = False
    is_own: bool = False


@dataclass(frozen=True)
class SelectionContext:
    """What a selection looks at: `by_text` are the nearest entries in text space, `by_image` in image space, the
    nearest first. They are read one after the other, as far as a further one could save more.

    `quality` is the share of the from-scratch quality asked for, None for whatever the tables were profiled for.
    """

    step_count: int
    by_text: Iterable[NearestEntry] = ()
    by_image: Iterable[NearestEntry] = ()
    quality: float | None = None


@dataclass(frozen=True)
class Renoising:
    """How far a start is noised again by the request's seed, and how many steps lead back; none where it is used as it
    is."""

    renoised_steps: int = 0
    retaken_steps: int = 0


AS_STORED = Renoising()


@dataclass(frozen=True)
class UseLatent:
    """A start from a latent of `resume_step`; `entry` is the number of its entry in `by_text`. `hole_steps`: the steps
    up to the K that the similarity allows and the entry does not hold (NIRVANA, section 5.4)."""

    resume_step: int
    reason: str
    entry: int = 0
    renoising: Renoising = AS_STORED
    hole_steps: int = 0

    @property
    def saved_steps(self) -> int:
        """Return how many steps are left out."""
        return self.resume_step - self.renoising.retaken_steps


@dataclass(frozen=True)
class UseImage:
    """A start from an image, re-noised to `start_step`; `entry` is the number of its entry in `by_image`, or in
    `by_text` where it was found there."""

    start_step: int
    reason: str
    entry: int = 0
    renoising: Renoising = AS_STORED
    found_by_text: bool = False

    @property
    def saved_steps(self) -> int:
        """Return how many steps are left out."""
        return self.start_step - self.renoising.retaken_steps


@dataclass(frozen=True)
class Miss:
    """A start from noise. `hole_steps`: the steps that the nearest entry would save, were its latents still there."""

    reason: str
    hole_steps: int = 0


Selection = UseLatent | UseImage | Miss


def select_start(context: SelectionContext, rules: SelectionRules) -> Selection:
    """Return the start that saves most steps within the thresholds; a latent wins a tie, being the requested model's
    own."""
    if context.quality is not None and context.quality > rules.quality:
        return Miss(f"miss: quality {context.quality:.2f} asked for, thresholds profiled for {rules.quality:.2f}")
    if rules.retrieves:
        return _select_stored(context, rules)
    latent = _select_latent(context, rules)
    image = _select_image(context, rules)
    if isinstance(latent, UseLatent) and isinstance(image, UseImage):
        return latent if latent.saved_steps >= image.saved_steps else image
    if isinstance(image, UseImage):
        return image
    # Of two misses the one that a table could have changed is told.
    return latent if rules.latents or not rules.images else image


def capture_steps(step_count: int, rules: SelectionRules) -> tuple[int, ...]:
    """Return the K at which latents are worth keeping for a model run of `step_count` steps, ascending: one a
    threshold."""
    return tuple(sorted({step for rule in rules.latents if (step := skipped_steps(rule, step_count)) > 0}))


def kept_steps(step_count: int, start_step: int, rules: SelectionRules) -> tuple[int, ...]:
    """Return the K at which a run that starts at `start_step`, 0 for from noise, leaves latents in the cache."""
    if start_step and not rules.keeps_latents_of_hits:
        return ()
    return tuple(step for step in capture_steps(step_count, rules) if step > start_step)


def keeps_image(start_step: int, rules: SelectionRules) -> bool:
    """Return whether a run that starts at `start_step`, 0 for from noise, leaves its image in the cache."""
    return bool(rules.images) and (not start_step or rules.keeps_images_of_hits)


def allowed_steps(similarity: float, step_count: int, thresholds: Thresholds) -> int:
    """Return the most steps that may be skipped at this similarity; 0 when none."""
    allowed = (skipped_steps(rule, step_count) for rule in thresholds if similarity >= rule.min_similarity)
    return max(allowed, default=0)


@dataclass(frozen=True)
class _Compared:
    """The entry that saves most of those that were read, by its number; `allowed` is what its similarity allows, and
    `steps` what it saves, 0 where none saves any: then it is the nearest one. `most` is the largest `allowed` of all
    that were read."""

    number: int
    entry: NearestEntry
    allowed: int
    steps: int
    most: int


def _most_saving(context: SelectionContext, thresholds: Thresholds, from_images: bool) -> _Compared | None:
    """Of the nearest entries the one that saves most steps; None where there is none."""
    best: _Compared | None = None
    most = 0
    for number, entry in enumerate(context.by_image if from_images else context.by_text):
        if from_images and not entry.has_image:
            continue
        allowed = allowed_steps(entry.similarity, context.step_count, thresholds)
        most = max(most, allowed)
        # The farther ones are allowed no more than this one.
        if best is not None and allowed <= best.steps:
            break
        steps = allowed if from_images else max((step for step in entry.latent_steps if step <= allowed), default=0)
        if entry.is_own and (steps or from_images):
            return _Compared(number, entry, allowed, steps, most)
        if best is None or steps > best.steps:
            best = _Compared(number, entry, allowed, steps, most)
    return best


def renoising_of(step: int, rules: SelectionRules) -> Renoising:
    """Return how a start at `step` of another seed's image is noised again: at least one step stays saved, and at least
    one leads back. A start at step 1 has none to spare."""
    again = min(int(rules.renoised_share * step + 1e-9), step - 1)
    if not again:
        return AS_STORED
    return Renoising(again, min(max(int(rules.retaken_share * step + 1e-9), 1), again))


def _select_latent(context: SelectionContext, rules: SelectionRules) -> UseLatent | Miss:
    thresholds = rules.latents
    if not thresholds:
        return Miss("miss: reuse of latents is switched off")
    best = _most_saving(context, thresholds, from_images=False)
    if best is None:
        return Miss("miss: no compatible entry")
    similarity, allowed, steps = best.entry.similarity, best.allowed, best.steps
    if not allowed:
        return Miss(_too_far("nearest similarity", similarity, thresholds))
    if not steps:
        why = f"miss: similarity {similarity:.3f} allows step {allowed}, but no latent up to it is stored"
        return Miss(why, allowed)
    lost = best.most - steps
    reason = f"latent at step {steps} of {context.step_count}: similarity {similarity:.3f} allows {allowed}"
    if lost:
        reason += f", a hole loses {lost} steps"
    renoising = AS_STORED if best.entry.is_own else renoising_of(steps, rules)
    if rules.renoised_share and renoising == AS_STORED and not best.entry.is_own:
        return Miss(f"miss: a latent at step {steps} would give every seed the same image")
    return UseLatent(steps, reason + _told(steps, renoising), best.number, renoising, lost)


def _select_image(context: SelectionContext, rules: SelectionRules) -> UseImage | Miss:
    thresholds = rules.images
    best = _most_saving(context, thresholds, from_images=True)
    if best is None:
        return Miss("miss: no compatible image")
    if best.entry.is_own:
        return Miss("miss: the image of this prompt and seed was generated from noise, and is again")
    if not best.steps:
        return Miss(_too_far("nearest text-to-image similarity", best.entry.similarity, thresholds))
    reason = f"image at step {best.steps} of {context.step_count}: text-to-image similarity {best.entry.similarity:.3f}"
    renoising = renoising_of(best.steps, rules)
    return UseImage(best.steps, reason + _told(best.steps, renoising), best.number, renoising)


def _select_stored(context: SelectionContext, rules: SelectionRules) -> UseImage | Miss:
    """Return the nearest stored image, the one found by its prompt first."""
    miss = Miss("miss: no stored image")
    for by_text, entries, table in ((True, context.by_text, rules.latents), (False, context.by_image, rules.images)):
        nearest = next(((number, one) for number, one in enumerate(entries) if one.has_image), None)
        if nearest is None or not table:
            continue
        number, entry = nearest
        what = "similarity" if by_text else "text-to-image similarity"
        if allowed_steps(entry.similarity, context.step_count, table):
            reason = f"the stored image, no step of {context.step_count}: {what} {entry.similarity:.3f}"
            return UseImage(context.step_count, reason, number, found_by_text=by_text)
        miss = Miss(_too_far(f"nearest {what}", entry.similarity, table))
    return miss


def _told(step: int, renoising: Renoising) -> str:
    again, back = renoising.renoised_steps, renoising.retaken_steps
    return f", noised again to {step - again} by its seed, {back} steps back" if again else ""


def _too_far(what: str, similarity: float, thresholds: Thresholds) -> str:
    lowest = min((rule.min_similarity for rule in thresholds), default=math.inf)
    return f"miss: {what} {similarity:.3f}, needed {lowest:.3f}"


def skipped_steps(rule: Threshold, step_count: int) -> int:
    """Return K: the steps of `step_count` that a row of a table allows to be skipped."""
    # Rounded down, so that no more is skipped than the profile allows; the margin forgives 0.1 * 50 = 4.999….
    return int(rule.saved_share * step_count + 1e-9)
