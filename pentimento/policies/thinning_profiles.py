"""A thinning profile: which steps of one model may be left out, as measured, and its file.

`pentimento bench thinning-profile` writes the files; the frontdoor reads them. A profile belongs to the model whose
digest it names, to the scheduler, the guidance, the LoRAs and the ControlNets that it was painted with, and its rows to
pictures from noise or to hits that resume at one step: of everything else nothing was measured, and nothing is thinned.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

from pentimento.domain.adapters import AdapterKind
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import FromImage, FromLatent, GenerationSpec, Route, Scheduler, Start
from pentimento.files.documents import document_from_json, document_to_json, json_files, read_document
from pentimento.files.json_values import ValueRange
from pentimento.policies.selector_profiling import ThresholdRule
from pentimento.policies.thinning import ThinningOption, ThinningRefusal, WholeReason, scaled
from pentimento.policies.thinning_adapters import MeasuredAdapter, measured_adapters, ordered
from pentimento.policies.thinning_profiling import ThinnedSample, allows, mean_share, without_luck

FORMAT = 1
DIGITS = 4
# Fields in which a profile agrees with one whose rows it takes over.
_SAME_TO_BE_ADDED = (
    *("model_digest", "scheduler", "step_count", "guidance_scale", "encoder_digest", "quality", "alpha", "prompts"),
    *("adapters", "lora_patch_step"),
)

Count = Annotated[int, ValueRange(1)]
Share = Annotated[float, ValueRange(0.0, 1.0)]
Step = Annotated[int, ValueRange(0)]
Similarity = Annotated[float, ValueRange(-1.0, 1.0)]
Spacing = Annotated[float, ValueRange(1.0, 3.0)]
RowKey = tuple[int, float, float, int, int]


@dataclass(frozen=True)
class ThinnedRow:
    """A row of the table: thinned from `first_step` on to `taken_count` steps, spaced as `ThinningOption` says, so many
    pictures were painted, of which so many kept alpha; `mean_share` of the full run's quality is left in the mean.
    `allowed` says which rules allow it by itself. With a `resume_step` they were hits: resumed there, from latents
    painted from noise whose prompts were at least so similar (cosine), and compared with the full run from noise."""

    first_step: int
    taken_count: Count
    picture_count: Count
    kept_count: int
    mean_share: float
    allowed: tuple[ThresholdRule, ...] = ()
    resume_step: Step = 0
    least_similarity: Similarity = -1.0
    spacing: Spacing = 1.0

    @property
    def place(self) -> tuple[int, int]:
        """The first step, and how many are taken from there on."""
        return self.first_step, self.taken_count

    @property
    def begin(self) -> tuple[float, int]:
        """The spacing and the first step: rows that are told apart by how many steps are taken alone."""
        return self.spacing, self.first_step

    @property
    def key(self) -> RowKey:
        """What pictures the row is of; rows are in its order."""
        return self.resume_step, self.least_similarity, *self.begin, -self.taken_count


@dataclass(frozen=True)
class ThinningProfile:
    """What was measured with schedules of `step_count` steps. `alpha` is the share of the full run's quality that was
    asked for, `rule` the one that the file is to be used by. All pictures had `adapters`, LoRAs in the thinned ones
    from `lora_patch_step` on and in the full runs from the start."""

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
    adapters: tuple[MeasuredAdapter, ...] = ()
    lora_patch_step: Step = 0

    @property
    def name(self) -> str:
        """What provenance calls it."""
        return f"thinning of {self.model}, alpha {self.alpha:g} by {self.rule.value}"

    def rows_of(self, earlier: "ThinningProfile") -> dict[RowKey, ThinnedRow]:
        """Return the rows of an earlier profile, by their keys. Raises InvalidArgument naming the first field by which
        they are of other pictures or another quality."""
        for name in _SAME_TO_BE_ADDED:
            ours, theirs = getattr(self, name), getattr(earlier, name)
            if ours != theirs:
                raise InvalidArgument.of(
                    f"profile.{name}", f"was {theirs!r:.120}, not {ours!r:.120}: rows cannot be added"
                )
        return {row.key: row for row in earlier.rows}

    def options(self, step_count: int, rule: ThresholdRule | None = None) -> tuple[ThinningOption, ...]:
        """Return what is allowed of a picture from noise with a schedule of `step_count` steps by a rule, by default
        the profile's own; nothing of fewer steps than were measured."""
        asked = (step_count, rule or self.rule)
        if asked not in self._from_noise:
            self._from_noise[asked] = self._allowed([row for row in self.rows if not row.resume_step], *asked)
        return self._from_noise[asked]

    @cached_property
    def _from_noise(self) -> dict[tuple[int, ThresholdRule], tuple[ThinningOption, ...]]:
        """What `options` found: every request asks, several times."""
        return {}

    def hit_options(
        self, start: FromLatent, step_count: int, rule: ThresholdRule | None = None
    ) -> tuple[ThinningOption, ...]:
        """Return what is allowed, as in `options`, of a hit: nothing of one that resumes at another step than was
        measured, is less similar, or whose latents come from a hit themselves or are noised again."""
        rows = [
            row
            for row in self.rows
            if row.resume_step
            and row.resume_step * step_count // self.step_count == start.resume_step
            and row.least_similarity <= start.donor.similarity
            and start.donor.ancestor_depth == start.renoised_steps == 0
        ]
        return self._allowed(rows, step_count, rule or self.rule)

    def _allowed(self, rows: Sequence[ThinnedRow], step_count: int, rule: ThresholdRule) -> tuple[ThinningOption, ...]:
        if step_count < self.step_count:
            return ()
        found = without_luck({(row.begin, row.taken_count): rule in row.allowed for row in rows})
        return tuple(
            scaled(ThinningOption(*row.place, row.mean_share, row.spacing), self.step_count, step_count)
            for row in rows
            if (row.begin, row.taken_count) in found
        )

    def refusal(self, spec: GenerationSpec, lora_patch_step: int = 0) -> ThinningRefusal | None:
        """Return why a picture whose LoRAs may come as late as that step is not covered by what was measured, its start
        apart; None where it is."""
        if self.adapters != measured_adapters(spec):
            return self._other_adapters(spec)
        if lora_patch_step * self.step_count > self.lora_patch_step * spec.num_inference_steps:
            return _unmeasured(WholeReason.LORAS_LATE, f"with LoRAs from step {self.lora_patch_step} on")
        if spec.init_image is not None:
            return _unmeasured(WholeReason.IMAGE_UNMEASURED, "from noise, not from an image")
        if spec.scheduler is not self.scheduler or spec.eta != 0.0:
            return _unmeasured(WholeReason.SCHEDULER_UNMEASURED, f"with {self.scheduler.value}")
        if spec.guidance_scale != self.guidance_scale:
            return _unmeasured(WholeReason.GUIDANCE_UNMEASURED, f"at a guidance scale of {self.guidance_scale:g}")
        if spec.num_inference_steps < self.step_count:
            return _unmeasured(WholeReason.STEPS_UNMEASURED, f"with {self.step_count} steps")
        return None

    def _other_adapters(self, spec: GenerationSpec) -> ThinningRefusal:
        """Of ControlNets where its own are not the request's, else of LoRAs."""
        asked = measured_adapters(spec)
        if _of(AdapterKind.CONTROLNET, asked) != _of(AdapterKind.CONTROLNET, self.adapters):
            return _unmeasured(WholeReason.CONTROLNETS_UNMEASURED, "without these ControlNets")
        return _unmeasured(WholeReason.LORAS_UNMEASURED, "without these LoRAs")


def _of(kind: AdapterKind, adapters: Sequence[MeasuredAdapter]) -> tuple[MeasuredAdapter, ...]:
    return tuple(one for one in adapters if one.kind is kind)


def _unmeasured(reason: WholeReason, how: str) -> ThinningRefusal:
    return ThinningRefusal(reason, f"the profile was measured {how}")


@dataclass(frozen=True)
class ThinningProfiles:
    """All profiles of a deployment, and the share of the quality that it asks for: what promises less is not used."""

    profiles: tuple[ThinningProfile, ...] = ()
    alpha: float = 0.95
    rule: ThresholdRule | None = None

    def options(self, spec: GenerationSpec, route: Route) -> tuple[ThinningOption, ...]:
        """Return how a picture of that spec and route may be thinned; nothing where `refusal` has a reason."""
        profile = self._of(spec, route.model_digest)
        if profile is None or self._uncovered(profile, spec, route) is not None:
            return ()
        return self._found(profile, spec, route.start)

    def _found(self, profile: ThinningProfile, spec: GenerationSpec, start: Start) -> tuple[ThinningOption, ...]:
        """By the rows of such a start."""
        match start:
            case FromLatent():
                return profile.hit_options(start, spec.num_inference_steps, self.rule)
            case FromImage():
                return ()
            case _:
                return profile.options(spec.num_inference_steps, self.rule)

    def refusal(self, spec: GenerationSpec, route: Route) -> ThinningRefusal | None:
        """Return why a picture is not thinned whatever the load; None where it may be."""
        profile = self._of(spec, route.model_digest)
        if profile is None:
            why = f"{spec.model} has no thinning profile of this digest"
            return ThinningRefusal(WholeReason.PROFILE_MISSING, why)
        refusal = self._uncovered(profile, spec, route)
        if refusal is not None or self._found(profile, spec, route.start):
            return refusal
        if isinstance(route.start, FromLatent | FromImage):
            why = "of hits that resume there, from a start that is no more similar, nothing may be left out"
            return ThinningRefusal(WholeReason.HIT_UNMEASURED, why)
        return ThinningRefusal(WholeReason.NOTHING_ALLOWED, "its profile allows no step to be left out")

    def _uncovered(self, profile: ThinningProfile, spec: GenerationSpec, route: Route) -> ThinningRefusal | None:
        """Why the profile says nothing of the picture, its start apart."""
        if profile.alpha < self.alpha:
            why = f"the profile promises {profile.alpha:g} of the quality, {self.alpha:g} is asked for"
            return ThinningRefusal(WholeReason.PROFILE_PROMISES_LESS, why)
        if route.pipelined_from_step:
            why = "residuals that are a step old are those of a step that was taken"
            return ThinningRefusal(WholeReason.RESIDUALS_PIPELINED, why)
        return profile.refusal(spec, route.lora_patch_step)

    def _of(self, spec: GenerationSpec, model_digest: str) -> ThinningProfile | None:
        """The model's profile: where there are several that of the spec's own LoRAs and ControlNets, or at least of
        its ControlNets, then of its own scheduler."""
        asked, kind = measured_adapters(spec), AdapterKind.CONTROLNET

        def nearness(profile: ThinningProfile) -> tuple[bool, bool, bool]:
            same_nets = _of(kind, profile.adapters) == _of(kind, asked)
            return profile.adapters == asked, same_nets, profile.scheduler is spec.scheduler

        found = [profile for profile in self.profiles if profile.model_digest == model_digest]
        return max(found, key=nearness, default=None)


def thinned_row(
    first_step: int,
    taken_count: int,
    samples: Sequence[ThinnedSample],
    alpha: float,
    resume_step: int = 0,
    least_similarity: float = -1.0,
    spacing: float = 1.0,
) -> ThinnedRow:
    """Return what the file says of the pictures of one thinning; `resume_step` and `least_similarity` of hits."""
    return ThinnedRow(
        first_step=first_step,
        taken_count=taken_count,
        picture_count=len(samples),
        kept_count=sum(sample.keeps(alpha) for sample in samples),
        mean_share=round(mean_share(samples), DIGITS),
        allowed=tuple(rule for rule in ThresholdRule if allows(samples, alpha, rule)),
        resume_step=resume_step,
        least_similarity=least_similarity,
        spacing=spacing,
    )


def thinning_to_json(profile: ThinningProfile) -> str:
    """Return the text of its file."""
    return document_to_json(profile, FORMAT)


def thinning_from_json(text: str) -> ThinningProfile:
    """Return the profile. Raises InvalidArgument naming the line of what is no JSON, or the field that is missing,
    unknown, of another type or outside its limits."""
    profile = document_from_json(ThinningProfile, text, FORMAT, "profile")
    if not profile.model_digest:
        raise InvalidArgument.of("profile.model_digest", "must name a digest")
    if profile.adapters != ordered(profile.adapters):
        raise InvalidArgument.of("profile.adapters", "must be ControlNets before LoRAs, each by digest")
    for index, row in enumerate(profile.rows):
        if not row.resume_step <= row.first_step < row.first_step + row.taken_count <= profile.step_count:
            part = f"{row.taken_count} from {row.first_step} on, resumed at {row.resume_step}"
            wrong = f"must be a part of {profile.step_count} steps, got {part}"
            raise InvalidArgument.of(f"profile.rows[{index}]", wrong)
    return profile


def read_thinning_profiles(paths: Iterable[Path]) -> tuple[ThinningProfile, ...]:
    """Return the profiles of files, and of all files (.json) of directories. Raises InvalidArgument naming the file:
    for one that is wrong, and for the second of two of the same model, scheduler, LoRAs and ControlNets."""
    found: dict[tuple[object, ...], ThinningProfile] = {}
    for path in json_files(paths):
        profile = read_document(path, thinning_from_json, "thinning_profiles")
        key = (profile.model_digest, profile.scheduler, profile.adapters)
        if key in found:
            raise InvalidArgument.of("thinning_profiles", f"{path}: speaks of {profile.model} as another file does")
        found[key] = profile
    return tuple(found.values())
