"""Measure skipped steps: load the model as the worker does, and generate with fewer and fewer steps."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from pentimento.diffusion.denoising import DenoisingRequest
from pentimento.diffusion.engine import has_features
from pentimento.diffusion.loras import Lora, layers_of
from pentimento.diffusion.loras.loading import LoadingLoras
from pentimento.domain.errors import InvalidArgument, NotFound
from pentimento.policies.cache_selection import (
    AS_STORED,
    RENOISED_SHARE,
    RETAKEN_SHARE,
    Renoising,
    SelectionRules,
    renoising_of,
    skipped_steps,
)
from pentimento.profiles.catalogue import read_profiles
from pentimento.profiles.document import (
    MeasuredAdapter,
    Profile,
    ProfileConditions,
    ProfileKind,
    ProfileRow,
    ordered,
)
from pentimento.profiles.kinds import StepsKey, reuses_images, steps_key, steps_row, thresholds
from pentimento.profiles.rules import ThresholdRule
from services.unet_worker.adapters.lora_directory import open_lora_directory, read_bounds
from services.unet_worker.profiling.inputs import StudyInputs
from services.unet_worker.profiling.reuse import empty_profile, study_model
from services.unet_worker.profiling.reuse_study import StudyModel, nearest_before
from services.unet_worker.profiling.settings import ProfileSettings
from services.unet_worker.profiling.steps_study import (
    ClipScore,
    ThinnedBatch,
    ThinningStudy,
    full_requests,
    grid,
    most_tried,
    names,
    next_place,
)

_ROUNDING = 1e-9


@dataclass(frozen=True)
class StudiedLoras:
    """Hold LoRAs at a scale of 1; all apply from `patch_step` on."""

    adapters: tuple[MeasuredAdapter, ...] = ()
    loras: tuple[Lora, ...] = ()
    patch_step: int = 0

    def on_time(self, request: DenoisingRequest) -> DenoisingRequest:
        """Return the request with them from the start."""
        return self._from_step(request, 0)

    def late(self, request: DenoisingRequest) -> DenoisingRequest:
        """Return the request with them from `patch_step` on."""
        return self._from_step(request, self.patch_step)

    def _from_step(self, request: DenoisingRequest, step: int) -> DenoisingRequest:
        if not self.loras:
            return request
        return replace(request, loras=LoadingLoras.ready(self.loras, step))


def open_studied_loras(directory: Path | None, names: Sequence[str], model: StudyModel) -> StudiedLoras:
    """Return the named LoRAs with their bounds; none for no names.

    Raises NotFound for a LoRA that the directory lacks or that does not change the model, and InvalidArgument without a
    directory.
    """
    if not names:
        return StudiedLoras()
    if directory is None:
        raise InvalidArgument.of("loras", "must be the directory of the LoRAs that are named")
    generator = model.generator.model
    bounds = read_bounds((), directory, generator.info.model_digest)
    base = layers_of(generator.info.family, generator.adaptable)
    opened = open_lora_directory(directory, generator.info.model_digest, base, generator.dtype, lambda: bounds)
    by_name = {adapter.name: adapter for adapter in opened.adapters}
    missing = [name for name in names if name not in by_name]
    if missing:
        raise NotFound("UNKNOWN_LORA", f"{directory}: no LoRA {missing[0]} that changes {model.spec.model}")
    found = [by_name[name] for name in dict.fromkeys(names)]
    share = min(adapter.latest_start_fraction for adapter in found)
    return StudiedLoras(
        ordered([MeasuredAdapter(adapter.digest, name=adapter.name) for adapter in found]),
        tuple(opened.read(adapter.digest) for adapter in found),
        int(share * model.step_count + _ROUNDING),
    )


ALPHA = 0.95
# Shares of the schedule after which steps are skipped; shares of the remaining steps to keep, largest first; growth of
# the gaps between kept steps: 1 for even gaps, more for more early steps.
BEGINS = (0.0, 0.1, 0.2, 0.4, 0.6)
KEEPS = (0.8, 0.65, 0.5, 0.4, 0.3, 0.25, 0.2, 0.15, 0.1)
SPACINGS = (1.0, 1.5)
HIT_RULES = SelectionRules(renoised_share=RENOISED_SHARE, retaken_share=RETAKEN_SHARE)


@dataclass(frozen=True)
class StudiedStart:
    """State where compared images start: at a cached latent of `step`, noised again, of a prompt at least so similar;
    0 for noise."""

    step: int = 0
    least_similarity: float = -1.0
    again: Renoising = AS_STORED

    def place(self, first: int, taken: int, spacing: float) -> dict[str, float]:
        """Return `at` of a row with `taken` steps from step `first` on."""
        at: dict[str, float] = {"first_step": first, "taken_count": taken}
        if spacing != 1.0:
            at["spacing"] = spacing
        if self.step:
            at |= {"resume_step": self.step, "least_similarity": self.least_similarity}
        if self.again.renoised_steps:
            at |= {"renoised_steps": self.again.renoised_steps, "retaken_steps": self.again.retaken_steps}
        return at


FROM_NOISE = StudiedStart()


def measure(settings: ProfileSettings, inputs: StudyInputs, kind: ProfileKind = ProfileKind.STEPS) -> Iterator[Profile]:
    """Yield the model's profile of that kind after each row, and once if there is nothing to measure.

    Takes minutes, with occasional log lines. From each first step on the fewest steps are searched that the profile's
    rule allows; if `exhaustive`, the number of steps falls until no rule allows it. Rows of an earlier profile are
    kept. Raises InvalidArgument for an earlier profile with other conditions, and for a network without deep features.
    """
    model = study_model(settings.model, settings.study)
    model = replace(model, spec=replace(model.spec, num_inference_steps=settings.steps or model.step_count))
    prompts = tuple(dict.fromkeys(inputs.prompts))
    hits = _resumed(settings, model, kind)
    scorers = (ClipScore(inputs.images, prompts), *inputs.scorers_of(prompts))
    loras = open_studied_loras(settings.loras, settings.with_loras, model)
    reuses = kind is ProfileKind.FEATURES
    if reuses and not has_features(model.generator.model):
        raise InvalidArgument.of("model", f"{model.spec.model} has no deep features that its outer layers could reuse")
    spec = model.spec
    conditions = ProfileConditions(
        model.step_count, scheduler=spec.scheduler, guidance_scale=spec.guidance_scale, patch_step=loras.patch_step
    )
    profile = empty_profile(kind, settings, inputs, model, conditions, ALPHA, names(scorers), adapters=loras.adapters)
    kept = {steps_key(row): row for row in inputs.earlier_rows(profile)}
    begins = [first for first, _ in grid(model.step_count, BEGINS, KEEPS) if first]
    captured = {*(hit.step for hit in hits), *(() if loras.loras else begins)}
    full = [loras.on_time(request) for request in full_requests(model, prompts, capture_steps=tuple(captured))]
    study = ThinningStudy(model, scorers, full, loras.late, reuses)
    model.announce(_most_steps(settings, model.step_count, len(prompts), 1 + len(hits)))
    rows = dict(kept)
    for row in _all_rows(settings, study, inputs, prompts, hits, kept):
        rows[steps_key(row)] = row
        yield replace(profile, rows=tuple(rows[key] for key in sorted(rows)))
    if len(rows) == len(kept):
        yield replace(profile, rows=tuple(rows[key] for key in sorted(rows)))


def _most_steps(settings: ProfileSettings, step_count: int, prompt_count: int, start_count: int) -> int:
    """Return the denoising steps of the profile at most, for prompts from noise and from each other start."""
    begins = grid(step_count, BEGINS, KEEPS)
    # LoRAs that come late share no steps with the full run.
    shared = 0 if settings.with_loras else 1
    rows = [[count + (1 - shared) * first for count in counts] for first, counts in begins]
    tried = sum(most_tried(counts, exhaustive=settings.exhaustive) for counts in rows)
    return prompt_count * (step_count + start_count * len(SPACINGS) * tried)


def _all_rows(
    settings: ProfileSettings,
    study: ThinningStudy,
    inputs: StudyInputs,
    prompts: Sequence[str],
    hits: Sequence[StudiedStart],
    kept: Mapping[StepsKey, ProfileRow],
) -> Iterator[ProfileRow]:
    yield from _rows(settings, study, study.batch, FROM_NOISE, kept)
    texts = inputs.images.embed_texts(prompts) if hits else None
    for hit in hits:
        assert texts is not None
        batch = study.hits(nearest_before(texts, texts, prompts, hit.least_similarity), hit.step, hit.again)
        yield from _rows(settings, study, batch, hit, kept)


def _rows(
    settings: ProfileSettings,
    study: ThinningStudy,
    batch: ThinnedBatch,
    start: StudiedStart,
    kept: Mapping[StepsKey, ProfileRow],
) -> Iterator[ProfileRow]:
    if not batch.requests:
        return
    alpha = settings.alpha or ALPHA
    rule = None if settings.exhaustive else settings.rule_of(ProfileKind.STEPS)
    settled_alpha = alpha if rule is ThresholdRule.LOWER_BOUND else None
    # Late first steps allow most: their rows are cheap, and a running suite uses them while the others are measured.
    begins = list(grid(study.model.step_count, BEGINS, KEEPS))[::-1]
    guess = len(KEEPS) // 2
    for spacing, (first, counts) in product(SPACINGS, begins):
        holds: dict[int, bool] = {}
        tried = counts if first >= start.step or study.reuses_features else []
        while (place := next_place(holds, len(tried), guess if rule else None)) is not None:
            taken = tried[place]
            at = start.place(first, taken, spacing)
            row = kept.get(steps_key(ProfileRow(at, 0, 0)))
            if row is None:
                row = steps_row(at, study.samples(batch, first, taken, spacing, settled_alpha), alpha)
                yield row
            holds[place] = bool(row.allowed) if rule is None else row.by(rule) is not None
        guess = max((place for place, held in holds.items() if held), default=0)


def _resumed(settings: ProfileSettings, model: StudyModel, kind: ProfileKind) -> tuple[StudiedStart, ...]:
    """Return the starts of hits by the model's reuse profile; for features they are noised again as gateways do by
    default."""
    found = read_profiles(settings.profiles).of(ProfileKind.REUSE)
    latents = [one for one in found if not reuses_images(one) and one.of.model == model.spec.model]
    steps = resumed_steps(latents[0], model.step_count) if latents else {}
    again = kind is ProfileKind.FEATURES
    return tuple(
        StudiedStart(step, similarity, renoising_of(step, HIT_RULES) if again else AS_STORED)
        for step, similarity in steps.items()
    )


def resumed_steps(profile: Profile, step_count: int) -> Mapping[int, float]:
    """Return the steps of a schedule at which a profile of reused latents lets hits resume, each with its least
    similarity."""
    found: dict[int, float] = {}
    for row in sorted(thresholds(profile), key=lambda row: row.min_similarity):
        step = skipped_steps(row, step_count)
        if step > 0:
            found.setdefault(step, row.min_similarity)
    return found
