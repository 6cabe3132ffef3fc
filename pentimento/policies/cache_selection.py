"""Choose the start of denoising from the nearest cached entries.

Latents (NIRVANA, 5.3.1): text-to-text similarity s gives K by a table of thresholds; the largest stored K' <= K of the
entry serves ("holes"). Images (MoDM, 5.2): text-to-image similarity gives the step at which the re-noised image starts.
The entry that saves most steps serves, and the nearest of equals; both papers use only the nearest entry, and its
latents may have been evicted.

The numbers in both papers hold for their encoders and models. Thresholds must be profiled for the served encoder and
models; the defaults here are NIRVANA's for latents, and none (no reuse) for images.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Threshold:
    """State a row of a reuse table: from `min_similarity` (cosine, -1..1) on, `saved_share` (K / N, 0..1) of the
    denoising steps may be skipped. Raises ValueError for values outside."""

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


# Nearest entries that a search returns and compares.
NEAREST_COUNT = 4
# Limit of a wider search, which runs if none of the nearest entries may serve.
MOST_SEARCHED_COUNT = 64


# The gateway's defaults. SelectionRules by default resumes entries unchanged, as the papers do.
RENOISED_SHARE = 1.0
RETAKEN_SHARE = 0.2


@dataclass(frozen=True)
class SelectionRules:
    """State the similarities at and above which latents and images may be reused; an empty table disables that kind.

    `quality` is the share of the from-scratch quality that the tables were profiled for (both papers' alpha).
    `keeps_latents_of_hits`: a run that started from the cache stores its later latents too (NIRVANA stores only those
    of misses). `keeps_images_of_hits`: it stores its image (MoDM's cache-all). A start of another seed's image is
    noised again by the request's seed, so that the images differ (NIRVANA, appendix C): by `renoised_share` (0..1) of
    its K steps, while `retaken_share` (0..1) of K lead back (ADR 0007). `retrieves`: the request is answered with the
    image of an entry that is near enough, without a denoising step (K = N).
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
    """Describe a match in one space. `latent_steps` are its stored K; an entry may hold an image without latents.
    `is_own`: the entry has the request's own prompt and seed. Its latents are resumed unchanged, or its image is
    generated again from noise: both reproduce the image."""

    similarity: float
    latent_steps: tuple[int, ...] = ()
    has_image: bool = False
    is_own: bool = False


@dataclass(frozen=True)
class SelectionContext:
    """Hold the inputs of a selection: the nearest entries in text space (`by_text`) and image space (`by_image`),
    nearest first. They are read one by one, while a further one could save more.

    `quality` is the requested share of the from-scratch quality; None for the share that the tables were profiled for.
    """

    step_count: int
    by_text: Iterable[NearestEntry] = ()
    by_image: Iterable[NearestEntry] = ()
    quality: float | None = None


@dataclass(frozen=True)
class Renoising:
    """State by how many steps a start is noised again by the request's seed, and how many steps lead back; 0 for an
    unchanged start."""

    renoised_steps: int = 0
    retaken_steps: int = 0


AS_STORED = Renoising()


@dataclass(frozen=True)
class UseLatent:
    """Start from the latents of `resume_step`. `entry` is the number of the entry in `by_text`. `hole_steps`: the steps
    up to the K that the similarity allows but that is not stored (NIRVANA, section 5.4)."""

    resume_step: int
    reason: str
    entry: int = 0
    renoising: Renoising = AS_STORED
    hole_steps: int = 0

    @property
    def saved_steps(self) -> int:
        """Return the number of skipped steps."""
        return self.resume_step - self.renoising.retaken_steps


@dataclass(frozen=True)
class UseImage:
    """Start from an image, re-noised to `start_step`. `entry` is the number of the entry in `by_text` if
    `found_by_text`, else in `by_image`."""

    start_step: int
    reason: str
    entry: int = 0
    renoising: Renoising = AS_STORED
    found_by_text: bool = False

    @property
    def saved_steps(self) -> int:
        """Return the number of skipped steps."""
        return self.start_step - self.renoising.retaken_steps


@dataclass(frozen=True)
class Miss:
    """Start from noise. `hole_steps`: the steps that the nearest entry would save if its latents were still stored."""

    reason: str
    hole_steps: int = 0


Selection = UseLatent | UseImage | Miss


def select_start(context: SelectionContext, rules: SelectionRules) -> Selection:
    """Return the start that saves most steps within the thresholds. Latents win a tie: they are the requested model's
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
    # Report the image miss only if images are the only kind with a table.
    return latent if rules.latents or not rules.images else image


def capture_steps(step_count: int, rules: SelectionRules) -> tuple[int, ...]:
    """Return the K at which a model run of `step_count` steps should store latents, ascending: one per threshold."""
    return tuple(sorted({step for rule in rules.latents if (step := skipped_steps(rule, step_count)) > 0}))


def kept_steps(step_count: int, start_step: int, rules: SelectionRules) -> tuple[int, ...]:
    """Return the K at which a run that starts at `start_step` (0: from noise) stores latents in the cache."""
    if start_step and not rules.keeps_latents_of_hits:
        return ()
    return tuple(step for step in capture_steps(step_count, rules) if step > start_step)


def keeps_image(start_step: int, rules: SelectionRules) -> bool:
    """Return whether a run that starts at `start_step` (0: from noise) stores its image in the cache."""
    return bool(rules.images) and (not start_step or rules.keeps_images_of_hits)


def allowed_steps(similarity: float, step_count: int, thresholds: Thresholds) -> int:
    """Return the most steps that may be skipped at this similarity; 0 for none."""
    allowed = (skipped_steps(rule, step_count) for rule in thresholds if similarity >= rule.min_similarity)
    return max(allowed, default=0)


@dataclass(frozen=True)
class _Compared:
    """Describe the entry that saves most steps among those read, or the nearest one if none saves any. `number` is its
    place, `allowed` the steps that its similarity allows, `steps` the steps that it saves, and `most` the largest
    `allowed` among the entries read."""

    number: int
    entry: NearestEntry
    allowed: int
    steps: int
    most: int


def _most_saving(context: SelectionContext, thresholds: Thresholds, from_images: bool) -> _Compared | None:
    """Return the nearest entry that saves most steps; None without entries."""
    best: _Compared | None = None
    most = 0
    for number, entry in enumerate(context.by_image if from_images else context.by_text):
        if from_images and not entry.has_image:
            continue
        allowed = allowed_steps(entry.similarity, context.step_count, thresholds)
        most = max(most, allowed)
        # Farther entries are allowed no more than this one.
        if best is not None and allowed <= best.steps:
            break
        steps = allowed if from_images else max((step for step in entry.latent_steps if step <= allowed), default=0)
        if entry.is_own and (steps or from_images):
            return _Compared(number, entry, allowed, steps, most)
        if best is None or steps > best.steps:
            best = _Compared(number, entry, allowed, steps, most)
    return best


def renoising_of(step: int, rules: SelectionRules) -> Renoising:
    """Return how a start at `step` of another seed's image is noised again: at least one step stays saved and at least
    one leads back. A start at step 1 stays unchanged."""
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
    """Return the nearest stored image, preferring one found by its prompt."""
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
    # Round down, so that no more is skipped than the profile allows; the margin forgives 0.1 * 50 = 4.999….
    return int(rule.saved_share * step_count + 1e-9)
