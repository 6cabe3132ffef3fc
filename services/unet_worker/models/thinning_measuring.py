"""The thinning profile of a model, measured: loads it as the worker would, and paints with ever fewer steps."""

import importlib.metadata
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import torch

from pentimento.diffusion.weights import quiet_loaders
from pentimento.policies.cache_selection import Threshold, skipped_steps
from pentimento.policies.selector_profiles import SelectorProfile, read_selector_profile
from pentimento.policies.thinning_profiles import RowKey, ThinnedRow, ThinningProfile, thinned_row
from pentimento.policies.thinning_profiling import ThinnedSample
from services.unet_worker.models.reuse_study import PictureEncoder, StudyModel, nearest_before
from services.unet_worker.models.selector_measuring import study_model
from services.unet_worker.models.thinned_loras import StudiedLoras, open_studied_loras
from services.unet_worker.models.thinning_study import (
    ClipScore,
    QualityJudge,
    ThinnedBatch,
    ThinningStudy,
    full_requests,
    grid,
)
from services.unet_worker.settings import ThinningProfileSettings

JudgesOf = Callable[[Sequence[str]], Sequence[QualityJudge]]
"""Judges beside CLIPScore for the prompts at hand."""


@dataclass(frozen=True)
class ThinningFound:
    """The samples of one row, and what the row says."""

    row: ThinnedRow
    samples: Sequence[ThinnedSample]


def measure(
    settings: ThinningProfileSettings,
    prompts: Sequence[str],
    encoder: PictureEncoder,
    encoder_of: tuple[str, str],
    judges_of: JudgesOf = lambda prompts: (),
    earlier: ThinningProfile | None = None,
) -> tuple[ThinningProfile, Sequence[ThinningFound]]:
    """Return the model's profile and what was painted for it; `encoder_of` is the encoder's name and digest. Takes
    minutes; lines to the log as it goes. From each first step on no fewer steps are painted once no rule allows the
    number at hand. The rows of an `earlier` profile are kept, and not painted again. Raises InvalidArgument for one
    that was measured otherwise."""
    torch.set_num_threads(settings.painting.threads)
    quiet_loaders()
    model = _with(settings, study_model(settings.model, settings.painting))
    prompts = tuple(dict.fromkeys(prompts))
    hits = _resumed(settings, model)
    judges = (ClipScore(encoder, prompts), *judges_of(prompts))
    loras = open_studied_loras(settings.loras, settings.with_loras, model)
    bare = _bare_profile(settings, model, judges, encoder_of, loras)
    kept = {} if earlier is None else bare.rows_of(earlier)
    full = [loras.on_time(request) for request in full_requests(model, prompts, settings.painting.seed, tuple(hits))]
    study = ThinningStudy(model, judges, full, loras.late)
    found = list(_rows(settings, study, study.batch, 0, -1.0, kept))
    texts = encoder.embed_texts(prompts) if hits else None
    for step, least_similarity in hits.items():
        assert texts is not None
        batch = study.hits(nearest_before(texts, texts, prompts, least_similarity), step)
        found += _rows(settings, study, batch, step, least_similarity, kept)
    rows = kept | {one.row.key: one.row for one in found}
    return replace(bare, rows=tuple(rows[key] for key in sorted(rows))), found


def _rows(
    settings: ThinningProfileSettings,
    study: ThinningStudy,
    batch: ThinnedBatch,
    resume_step: int,
    least_similarity: float,
    kept: Mapping[RowKey, ThinnedRow],
) -> Iterator[ThinningFound]:
    """Those that are not kept."""
    if not batch.requests:
        return
    begins = grid(study.model.step_count, settings.begin, settings.keep)
    for spacing, (first, counts) in product(dict.fromkeys(settings.spacing), begins):
        for taken in counts if first >= resume_step else ():
            row = kept.get((resume_step, least_similarity, spacing, first, -taken))
            if row is None:
                samples = study.samples(batch, first, taken, spacing)
                row = thinned_row(first, taken, samples, settings.alpha, resume_step, least_similarity, spacing)
                yield ThinningFound(row, samples)
            if not row.allowed:
                break


def _resumed(settings: ThinningProfileSettings, model: StudyModel) -> Mapping[int, float]:
    """The steps that hits resume at by the selector profile, each with the least similarity."""
    if settings.selector_profile is None:
        return {}
    profile = read_selector_profile(settings.selector_profile)
    return resumed_steps(profile, model.step_count)


def resumed_steps(profile: SelectorProfile, step_count: int) -> Mapping[int, float]:
    """Return the steps of a schedule that a selector profile of latents lets hits resume at, each with the least
    similarity at which it does."""
    thresholds: Sequence[Threshold] = () if profile.reuses_images else profile.thresholds()
    found: dict[int, float] = {}
    for row in sorted(thresholds, key=lambda row: row.min_similarity):
        step = skipped_steps(row, step_count)
        if step > 0:
            found.setdefault(step, row.min_similarity)
    return found


def _with(settings: ThinningProfileSettings, model: StudyModel) -> StudyModel:
    """The model with the number of steps that is asked for, its own by default."""
    steps = settings.steps or model.step_count
    return replace(model, spec=replace(model.spec, num_inference_steps=steps))


def _bare_profile(
    settings: ThinningProfileSettings,
    model: StudyModel,
    judges: Sequence[QualityJudge],
    encoder_of: tuple[str, str],
    loras: StudiedLoras,
) -> ThinningProfile:
    """What the file says before any row."""
    return ThinningProfile(
        model=model.spec.model,
        model_digest=model.painter.model.info.model_digest,
        scheduler=model.spec.scheduler,
        step_count=model.step_count,
        guidance_scale=model.spec.guidance_scale,
        encoder=encoder_of[0],
        encoder_digest=encoder_of[1],
        quality=" and ".join(judge.name for judge in judges),
        alpha=settings.alpha,
        rule=settings.rule,
        rows=(),
        prompts=settings.prompts.name,
        build_version=importlib.metadata.version("pentimento"),
        measured_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        adapters=loras.adapters,
        lora_patch_step=loras.patch_step,
    )
