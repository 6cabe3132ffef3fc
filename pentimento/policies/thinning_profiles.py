"""A thinning profile: which steps of one model may be left out, as measured, and its file.

`pentimento bench thinning-profile` writes the files; the frontdoor reads them. A profile belongs to the model whose
digest it names, to the scheduler and the guidance that it was painted with, and to pictures from noise without
adapters: of everything else nothing was measured, and nothing is thinned.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import FromNoise, GenerationSpec, Scheduler, Start
from pentimento.files.json_values import ValueRange, from_json, to_json
from pentimento.policies.selector_profiling import ThresholdRule
from pentimento.policies.thinning import ThinningOption, ThinningRefusal, WholeReason, scaled
from pentimento.policies.thinning_profiling import ThinnedSample, allows, mean_share, without_luck

FORMAT = 1
SUFFIX = ".json"
DIGITS = 4

Count = Annotated[int, ValueRange(1)]
Share = Annotated[float, ValueRange(0.0, 1.0)]


@dataclass(frozen=True)
class ThinnedRow:
    """A row of the table: thinned from `first_step` on to `taken_count` steps so many pictures were painted, of which
    so many kept alpha; `mean_share` of the full run's quality is left in the mean. `allowed` says which rules allow it
    by itself."""

    first_step: int
    taken_count: Count
    picture_count: Count
    kept_count: int
    mean_share: float
    allowed: tuple[ThresholdRule, ...] = ()


@dataclass(frozen=True)
class ThinningProfile:
    """What was measured with schedules of `step_count` steps. `alpha` is the share of the full run's quality that was
    asked for, `rule` the one that the file is to be used by."""

    model: str
    model_digest: str
    scheduler: Scheduler
    step_count: Count
    guidance_scale: float
    encoder: str
    encoder_digest: str
    quality: str
    alpha: Share
    rule: ThresholdRule
    rows: tuple[ThinnedRow, ...]
    prompts: str = ""
    build_version: str = ""
    measured_at: str = ""

    @property
    def name(self) -> str:
        """What provenance calls it."""
        return f"thinning of {self.model}, alpha {self.alpha:g} by {self.rule.value}"

    def options(self, step_count: int, rule: ThresholdRule | None = None) -> tuple[ThinningOption, ...]:
        """Return what is allowed of a schedule of `step_count` steps by a rule, by default the profile's own; nothing
        of fewer steps than were measured."""
        if step_count < self.step_count:
            return ()
        asked = rule or self.rule
        found = without_luck({(row.first_step, row.taken_count): asked in row.allowed for row in self.rows})
        return tuple(
            scaled(ThinningOption(row.first_step, row.taken_count, row.mean_share), self.step_count, step_count)
            for row in self.rows
            if (row.first_step, row.taken_count) in found
        )

    def refusal(self, spec: GenerationSpec) -> ThinningRefusal | None:
        """Return why a picture is not covered by what was measured; None where it is."""
        if spec.loras:
            return _unmeasured(WholeReason.LORAS_UNMEASURED, "without LoRAs")
        if spec.controlnets:
            return _unmeasured(WholeReason.CONTROLNETS_UNMEASURED, "without ControlNets")
        if spec.init_image is not None:
            return _unmeasured(WholeReason.IMAGE_UNMEASURED, "from noise, not from an image")
        if spec.scheduler is not self.scheduler or spec.eta != 0.0:
            return _unmeasured(WholeReason.SCHEDULER_UNMEASURED, f"with {self.scheduler.value}")
        if spec.guidance_scale != self.guidance_scale:
            return _unmeasured(WholeReason.GUIDANCE_UNMEASURED, f"at a guidance scale of {self.guidance_scale:g}")
        if spec.num_inference_steps < self.step_count:
            return _unmeasured(WholeReason.STEPS_UNMEASURED, f"with {self.step_count} steps")
        return None


def _unmeasured(reason: WholeReason, how: str) -> ThinningRefusal:
    return ThinningRefusal(reason, f"the profile was measured {how}")


@dataclass(frozen=True)
class ThinningProfiles:
    """All profiles of a deployment, and the share of the quality that it asks for: what promises less is not used."""

    profiles: tuple[ThinningProfile, ...] = ()
    alpha: float = 0.95
    rule: ThresholdRule | None = None

    def options(self, spec: GenerationSpec, model_digest: str) -> tuple[ThinningOption, ...]:
        """Return how a picture of the spec, from noise, may be thinned; nothing where `refusal` has a reason."""
        profile = self._of(spec, model_digest)
        if profile is None or self.refusal(spec, model_digest, FromNoise()) is not None:
            return ()
        return profile.options(spec.num_inference_steps, self.rule)

    def refusal(self, spec: GenerationSpec, model_digest: str, start: Start) -> ThinningRefusal | None:
        """Return why a picture is not thinned whatever the load; None where it may be."""
        profile = self._of(spec, model_digest)
        if profile is None:
            why = f"{spec.model} has no thinning profile of this digest"
            return ThinningRefusal(WholeReason.PROFILE_MISSING, why)
        if profile.alpha < self.alpha:
            why = f"the profile promises {profile.alpha:g} of the quality, {self.alpha:g} is asked for"
            return ThinningRefusal(WholeReason.PROFILE_PROMISES_LESS, why)
        if not isinstance(start, FromNoise):
            why = "what is left of its quality is spent by its start from the cache"
            return ThinningRefusal(WholeReason.HIT_UNMEASURED, why)
        return profile.refusal(spec)

    def _of(self, spec: GenerationSpec, model_digest: str) -> ThinningProfile | None:
        """The model's profile, of the spec's own scheduler where there are several."""
        found = [profile for profile in self.profiles if profile.model_digest == model_digest]
        return max(found, key=lambda profile: profile.scheduler is spec.scheduler, default=None)


def thinned_row(first_step: int, taken_count: int, samples: Sequence[ThinnedSample], alpha: float) -> ThinnedRow:
    """Return what the file says of the pictures of one thinning."""
    return ThinnedRow(
        first_step=first_step,
        taken_count=taken_count,
        picture_count=len(samples),
        kept_count=sum(sample.keeps(alpha) for sample in samples),
        mean_share=round(mean_share(samples), DIGITS),
        allowed=tuple(rule for rule in ThresholdRule if allows(samples, alpha, rule)),
    )


def thinning_to_json(profile: ThinningProfile) -> str:
    """Return the text of its file."""
    return json.dumps({"format": FORMAT, **to_json(profile)}, indent=1) + "\n"


def thinning_from_json(text: str) -> ThinningProfile:
    """Return the profile. Raises InvalidArgument naming the line of what is no JSON, or the field that is missing,
    unknown, of another type or outside its limits."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument.of("profile", f"must be JSON: {error}") from None
    if not isinstance(document, dict) or document.pop("format", None) != FORMAT:
        raise InvalidArgument.of("profile.format", f"must be {FORMAT}")
    profile = from_json(ThinningProfile, document, "profile")
    if not profile.model_digest:
        raise InvalidArgument.of("profile.model_digest", "must name a digest")
    for index, row in enumerate(profile.rows):
        if not 0 <= row.first_step < row.first_step + row.taken_count <= profile.step_count:
            wrong = f"must be a part of {profile.step_count} steps, got {row.taken_count} from {row.first_step} on"
            raise InvalidArgument.of(f"profile.rows[{index}]", wrong)
    return profile


def read_thinning_profiles(paths: Iterable[Path]) -> tuple[ThinningProfile, ...]:
    """Return the profiles of files, and of all files (.json) of directories. Raises InvalidArgument naming the file:
    for one that is wrong, and for the second of two of the same model and scheduler."""
    found: dict[tuple[str, Scheduler], ThinningProfile] = {}
    for path in _files(paths):
        profile = _read(path)
        key = (profile.model_digest, profile.scheduler)
        if key in found:
            raise InvalidArgument.of("thinning_profiles", f"{path}: speaks of {profile.model} as another file does")
        found[key] = profile
    return tuple(found.values())


def _files(paths: Iterable[Path]) -> list[Path]:
    return [file for path in paths for file in (sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path])]


def _read(path: Path) -> ThinningProfile:
    try:
        return thinning_from_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument.of("thinning_profiles", f"must be files that can be read: {path}: {error}") from None
    except InvalidArgument as error:
        raise InvalidArgument.of("thinning_profiles", f"{path}: {error.message}") from None
