"""The hand-over profile of a pair, measured: the later model paints from noise, and from the earlier one's pictures."""

import importlib.metadata
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from pentimento.diffusion.images import decode_pixels
from pentimento.diffusion.painting import ImageStart
from pentimento.diffusion.weights import quiet_loaders
from pentimento.policies.handover_profiles import DIGITS, HandoverProfile, HandoverRow, handover_row, taken_steps
from pentimento.policies.selector_profiling import ThresholdRule
from pentimento.policies.thinning_profiling import ThinnedSample, allows, mean_share, strictest
from services.unet_worker.models.reuse_study import PictureEncoder, StudyModel, told
from services.unet_worker.models.selector_measuring import study_model
from services.unet_worker.models.thinning_measuring import JudgesOf
from services.unet_worker.models.thinning_study import ClipScore, QualityJudge, full_requests
from services.unet_worker.settings import HandoverProfileSettings


@dataclass(frozen=True)
class _JudgedPictures:
    """The pictures of all prompts by one way to paint them, as encoded files, and what each judge says of them."""

    files: Sequence[bytes]
    worth: Sequence[Sequence[float]]

    def beside(self, full: "_JudgedPictures") -> list[ThinnedSample]:
        """Return a sample a prompt: these pictures beside those of the full run, by the strictest judge."""
        judges = zip(self.worth, full.worth, strict=True)
        return strictest([[ThinnedSample(*pair) for pair in zip(*own, strict=True)] for own in judges])


@dataclass(frozen=True)
class HandoverStudy:
    """Prompts that both models paint. A picture from the earlier one's has the seed of the one from noise that it is
    compared with."""

    light: StudyModel
    heavy: StudyModel
    judges: Sequence[QualityJudge]
    prompts: Sequence[str]
    first_seed: int = 0

    def from_noise(self, model: StudyModel) -> _JudgedPictures:
        """Return every prompt's picture with all steps."""
        requests = full_requests(model, self.prompts, self.first_seed)
        return self._judged([one.png for one in told("from noise", model.painter.paint(requests), len(requests))])

    def from_pictures(self, files: Sequence[bytes], taken_count: int) -> _JudgedPictures:
        """Return every prompt's picture by the later model from that file, by its last `taken_count` steps."""
        heavy, first = self.heavy, self.heavy.step_count - taken_count
        requests = [
            replace(request, start=ImageStart(self._pixels(file), first))
            for request, file in zip(full_requests(heavy, self.prompts, self.first_seed), files, strict=True)
        ]
        what = f"{taken_count} steps from images"
        return self._judged([one.png for one in told(what, heavy.painter.paint(requests), len(requests))])

    def _pixels(self, file: bytes) -> torch.Tensor:
        return decode_pixels(file, "image", self.heavy.spec.width_px, self.heavy.spec.height_px)

    def _judged(self, files: Sequence[bytes]) -> _JudgedPictures:
        return _JudgedPictures(files, [judge.qualities(files, range(len(files))) for judge in self.judges])


def measure(
    settings: HandoverProfileSettings,
    prompts: Sequence[str],
    encoder: PictureEncoder,
    encoder_of: tuple[str, str],
    judges_of: JudgesOf = lambda prompts: (),
) -> HandoverProfile:
    """Return the pair's profile; `encoder_of` is the encoder's name and digest. Takes minutes; lines to the log as it
    goes. No larger share is painted once no rule allows the one at hand."""
    torch.set_num_threads(settings.painting.threads)
    quiet_loaders()
    light, heavy = study_model(settings.light_model, settings.painting), study_model(settings.model, settings.painting)
    prompts = tuple(dict.fromkeys(prompts))
    study = HandoverStudy(
        light, heavy, (ClipScore(encoder, prompts), *judges_of(prompts)), prompts, settings.painting.seed
    )
    full, own = study.from_noise(heavy), study.from_noise(light)
    rows = _rows(settings, study, full, own)
    return HandoverProfile(
        light=light.spec.model,
        light_digest=light.painter.model.info.model_digest,
        heavy=heavy.spec.model,
        heavy_digest=heavy.painter.model.info.model_digest,
        step_count=heavy.step_count,
        guidance_scale=heavy.spec.guidance_scale,
        encoder=encoder_of[0],
        encoder_digest=encoder_of[1],
        quality=" and ".join(judge.name for judge in study.judges),
        alpha=settings.alpha,
        rule=settings.rule,
        light_share=round(mean_share(own.beside(full)), DIGITS),
        rows=tuple(rows),
        prompts=settings.prompts.name,
        build_version=importlib.metadata.version("pentimento"),
        measured_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )


def _rows(
    settings: HandoverProfileSettings, study: HandoverStudy, full: _JudgedPictures, own: _JudgedPictures
) -> list[HandoverRow]:
    rows: list[HandoverRow] = []
    for share in sorted(set(settings.shares)):
        taken = taken_steps(study.heavy.step_count, share)
        if not 0 < taken < study.heavy.step_count:
            continue
        samples = study.from_pictures(own.files, taken).beside(full)
        rows.append(handover_row(share, taken, samples, settings.alpha))
        if not any(allows(samples, settings.alpha, rule) for rule in ThresholdRule):
            break
    return rows
