"""A selector profile: from which similarity on one model may reuse what, as measured, and its file.

Latents are reused by the model that made them (NIRVANA, section 5.3.1); images of a large model are refined by a small
one and compared with the large one from scratch (MoDM, section 5.2). `pentimento bench selector-profile` writes the
files; the gateway reads them. A profile belongs to its models and its encoder, which it names by their digests.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated

from pentimento.domain.errors import FailedPrecondition, InvalidArgument
from pentimento.files.documents import document_from_json, document_to_json, json_files, read_document
from pentimento.files.json_values import ValueRange
from pentimento.policies.cache_selection import Threshold, Thresholds
from pentimento.policies.selector_profiling import StepThresholds, ThresholdRule

FORMAT = 1

Count = Annotated[int, ValueRange(1)]
Similarity = Annotated[float, ValueRange(-1.0, 1.0)]
Share = Annotated[float, ValueRange(0.0, 1.0)]


class ReuseKind(Enum):
    """What is reused."""

    LATENTS = "latents"
    IMAGES = "images"


@dataclass(frozen=True)
class ProfiledStep:
    """A row of the table: K of N steps skipped, and by each rule the lowest similarity; None where none will do."""

    skipped_steps: Count
    sample_count: Count
    minimum: Similarity | None = None
    lower_bound: Similarity | None = None
    mean: Similarity | None = None

    def by(self, rule: ThresholdRule) -> float | None:
        """Return the threshold of that rule."""
        found = StepThresholds(self.skipped_steps, self.sample_count, self.minimum, self.lower_bound, self.mean)
        return found.by(rule)


@dataclass(frozen=True)
class SelectorProfile:
    """`model` finishes the reused start; `reference_model` from scratch is what it was compared with: for latents the
    same model, for images the large one. `alpha` is the share of its quality that was asked for, `rule` the one that
    the file is to be used by. `step_count` is N of the table's K, `model_step_count` what the model was run with.
    """

    kind: ReuseKind
    model: str
    model_digest: str
    reference_model: str
    reference_model_digest: str
    encoder: str
    encoder_digest: str
    quality: str
    alpha: Share
    rule: ThresholdRule
    step_count: Count
    model_step_count: Count
    pair_count: Count
    steps: tuple[ProfiledStep, ...]
    prompts: str = ""
    build_version: str = ""
    measured_at: str = ""

    @property
    def name(self) -> str:
        """Return what provenance calls it."""
        pair = "" if self.model == self.reference_model else f" for {self.reference_model}"
        return f"{self.kind.value} of {self.model}{pair}, alpha {self.alpha:g} by {self.rule.value}"

    @property
    def reuses_images(self) -> bool:
        """Return whether it is a profile of images."""
        return self.kind is ReuseKind.IMAGES

    def thresholds(self, rule: ThresholdRule | None = None) -> Thresholds:
        """Return the table by a rule, by default the profile's own, ascending in similarity and in share.

        Of latents a smaller K' serves where K is a hole (NIRVANA, section 5.4), so no K is allowed where a smaller one
        is not. Of images there are no holes: a K that a larger one outdoes is left out.
        """
        found = [(step.skipped_steps / self.step_count, step.by(rule or self.rule)) for step in self.steps]
        return _without_holes(found) if self.kind is ReuseKind.LATENTS else _best_of_each(found)


_Row = tuple[float, float | None]


def _without_holes(found: Sequence[_Row]) -> Thresholds:
    rows: list[Threshold] = []
    lowest = -1.0
    for share, similarity in found:
        if similarity is None:
            break
        lowest = max(lowest, similarity)
        rows.append(Threshold(lowest, share))
    return _best_of_each([(row.saved_share, row.min_similarity) for row in rows])


def _best_of_each(found: Sequence[_Row]) -> Thresholds:
    rows: list[Threshold] = []
    for share, similarity in reversed(found):
        if similarity is not None and (not rows or similarity < rows[-1].min_similarity):
            rows.append(Threshold(similarity, share))
    return tuple(reversed(rows))


def profiled_steps(found: Iterable[StepThresholds]) -> tuple[ProfiledStep, ...]:
    """Return what was measured as rows of a profile; similarities are rounded up to four digits, never down."""
    return tuple(
        ProfiledStep(step.skipped_steps, step.sample_count, _up(step.minimum), _up(step.lower_bound), _up(step.mean))
        for step in found
    )


def _up(similarity: float | None) -> float | None:
    return None if similarity is None else min(-(-similarity * 10_000 // 1) / 10_000, 1.0)


def profile_to_json(profile: SelectorProfile) -> str:
    """Return the text of its file."""
    return document_to_json(profile, FORMAT)


def profile_from_json(text: str) -> SelectorProfile:
    """Return the profile. Raises InvalidArgument naming the line of what is no JSON, or the field that is missing,
    unknown, of another type or outside its limits."""
    profile = document_from_json(SelectorProfile, text, FORMAT, "profile")
    _check(profile)
    return profile


def _check(profile: SelectorProfile) -> None:
    """Raise InvalidArgument for what the fields' own limits do not say."""
    for field in ("model_digest", "reference_model_digest", "encoder_digest"):
        if not getattr(profile, field):
            raise InvalidArgument.of(f"profile.{field}", "must name a digest")
    if profile.alpha <= 0:
        raise InvalidArgument.of("profile.alpha", "must be above 0")
    if not profile.steps:
        raise InvalidArgument.of("profile.steps", "must have at least one entry")
    before = 0
    for index, step in enumerate(profile.steps):
        if not before < step.skipped_steps < profile.step_count:
            wrong = f"must be above {before} and below {profile.step_count}, got {step.skipped_steps}"
            raise InvalidArgument.of(f"profile.steps[{index}].skipped_steps", wrong)
        before = step.skipped_steps


def read_selector_profile(path: Path) -> SelectorProfile:
    """Return the profile of a file. Raises InvalidArgument naming the file, and what is wrong with it."""
    return read_document(path, profile_from_json, "selector_profiles")


def read_selector_profiles(paths: Iterable[Path]) -> "SelectorProfiles":
    """Return the profiles of files, and of all files (.json) of directories. Raises InvalidArgument naming the file:
    for one that is wrong, and for the second of two that speak of the same models, kind and encoder."""
    found: dict[tuple[object, ...], SelectorProfile] = {}
    for path in json_files(paths):
        profile = read_selector_profile(path)
        key = (profile.kind, profile.model_digest, profile.reference_model_digest, profile.encoder_digest)
        if key in found:
            raise InvalidArgument.of("selector_profiles", f"{path}: there is another one of {profile.name}")
        found[key] = profile
    return SelectorProfiles(tuple(found.values()))


@dataclass(frozen=True)
class SelectorProfiles:
    """The profiles that a gateway was given."""

    profiles: tuple[SelectorProfile, ...] = ()

    def check_encoder(self, encoder_digest: str) -> None:
        """Raise FailedPrecondition naming the first profile that was made for another encoder: its similarities mean
        nothing among this one's."""
        for profile in self.profiles:
            if profile.encoder_digest != encoder_digest:
                message = f"{profile.name}: made for encoder {profile.encoder_digest}, not {encoder_digest}"
                raise FailedPrecondition("SELECTOR_PROFILE_MISMATCH", message)

    def of_latents(self, model_digest: str, encoder_digest: str | None) -> SelectorProfile | None:
        """Return the profile of a model's own latents; None without one made for just this model and encoder, or, where
        the encoder is not known yet, for any."""
        return self._find(ReuseKind.LATENTS, model_digest, encoder_digest)

    def of_images(
        self, model_digest: str, encoder_digest: str | None, reference_model_digest: str | None = None
    ) -> SelectorProfile | None:
        """Return the profile of images that this model refines; None without one. Without a reference the one of
        the most careful table serves: what skips least is promised against any of them."""
        return self._find(ReuseKind.IMAGES, model_digest, encoder_digest, reference_model_digest)

    def _find(
        self, kind: ReuseKind, model_digest: str, encoder_digest: str | None, reference: str | None = None
    ) -> SelectorProfile | None:
        fitting = [
            profile
            for profile in self.profiles
            if (profile.kind, profile.model_digest) == (kind, model_digest)
            and encoder_digest in (None, profile.encoder_digest)
            and reference in (None, profile.reference_model_digest)
        ]
        return max(fitting, key=_caution, default=None)


def _caution(profile: SelectorProfile) -> float:
    """Return the lowest similarity of its table; one that allows nothing is the most careful."""
    return min((row.min_similarity for row in profile.thresholds()), default=math.inf)


def biased(thresholds: Thresholds, bias: int) -> Thresholds:
    """Return the table with every K moved by `bias` rows (NIRVANA, section 5.3.1, quality vs. performance): above 0
    each similarity allows a larger K, which is cheaper, below 0 a smaller one, which is closer to from scratch. Rows
    that would go beyond the largest K get it; those that would go below the smallest reuse nothing."""
    ordered = sorted(thresholds, key=lambda row: row.min_similarity)
    moved = [(row.min_similarity, min(index + bias, len(ordered) - 1)) for index, row in enumerate(ordered)]
    found = [(ordered[index].saved_share, similarity) for similarity, index in moved if index >= 0]
    least: dict[float, float] = {}
    for share, similarity in found:
        least.setdefault(share, similarity)
    return tuple(Threshold(similarity, share) for share, similarity in least.items())
