"""Fit prompt heads to generated data."""

import pytest
import torch
from torch.nn import functional

from pentimento.diffusion.discriminators.calibration import auroc
from pentimento.diffusion.discriminators.head_fitting import (
    CaptionedImages,
    HeadData,
    HeadPlan,
    calibrated,
    fit_agreement,
    train_head,
    with_deferral,
)
from pentimento.diffusion.discriminators.prompt_heads import HeadRecord
from pentimento.domain.foresight import Verdict

PLAN = HeadPlan(epochs=30, batch=32, weight_decay=0.01)


def scored_images(count: int, seed: int) -> HeadData:
    """Draw images; one is as good if its prompt's first number and its first feature have a large sum."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(count, 12, generator=generator)
    prompts = functional.normalize(torch.randn(count, 8, generator=generator), dim=1)
    as_good = prompts[:, 0] * 3.0 + features[:, 0] > 0.0
    return HeadData(features, prompts, as_good.float(), torch.ones(count))


def shown(count: int, seed: int) -> CaptionedImages:
    """Return features that are independent of captions."""
    data = scored_images(count, seed)
    return CaptionedImages(data.features, data.prompts)


def test_head_learns_agreement_of_features_and_prompt() -> None:
    """Features are a rotation of the embedding that an image shows; as good is one that shows its prompt's."""
    generator = torch.Generator().manual_seed(6)
    rotation = torch.linalg.qr(torch.randn(8, 8, generator=generator)).Q

    def drawn(count: int) -> tuple[HeadData, CaptionedImages]:
        prompts, others = (functional.normalize(torch.randn(count, 8, generator=generator), dim=1) for _ in range(2))
        as_good = torch.rand(count, generator=generator) < 0.5
        features = torch.where(as_good[:, None], prompts, others) @ rotation
        return HeadData(features, prompts, as_good.float(), torch.ones(count)), CaptionedImages(
            prompts @ rotation, prompts
        )

    (learnt, captioned), (kept, _) = drawn(600), drawn(400)
    network = train_head(learnt, captioned, PLAN)
    fit_agreement(network, drawn(200)[0])

    with torch.no_grad():
        both, alone = network(kept.features, kept.prompts), network.foresee(kept.prompts)
    assert auroc(both[kept.as_good], both[~kept.as_good]) > 0.9
    assert auroc(alone[kept.as_good], alone[~kept.as_good]) < 0.6


def test_training_repeats_by_seed_and_leaves_global_draws() -> None:
    data = scored_images(64, 3)
    state = torch.get_rng_state()

    first, second = (train_head(data, shown(64, 5), PLAN).state_dict() for _ in range(2))

    assert all(torch.equal(first[name], second[name]) for name in first)
    assert torch.equal(torch.get_rng_state(), state)


# Five prompts: hard, hard with a good image, easy, easy with a bad image, unsure.
FORESEEN, CONFIDENCES = torch.tensor([0.1, 0.1, 0.9, 0.9, 0.5]), torch.tensor([0.2, 0.8, 0.8, 0.2, 0.4])
BOUNDED = HeadRecord(1, 1, 1, "encoder", bounds=((0.0, 0.0, 0.0), (0.3, 0.2, 0.7), (0.5, 0.2, 0.7), (1.0, 0.95, 1.0)))


def test_deferral_counts_sure_prompts_by_the_prompt_and_others_by_the_image() -> None:
    assert with_deferral(BOUNDED, CONFIDENCES, FORESEEN).deferral == ((0.0, 0.0), (0.3, 0.4), (0.5, 0.6), (1.0, 1.0))


def test_deferral_counts_weighted_images_by_their_weights() -> None:
    weights = torch.tensor([1.0, 1.0, 1.0, 1.0, 6.0])

    assert with_deferral(BOUNDED, CONFIDENCES, FORESEEN, weights).deferral[1:3] == ((0.3, 0.2), (0.5, 0.8))


def test_calibrated_deferral_is_the_share_that_verdicts_and_confidences_defer() -> None:
    data = scored_images(400, 3)
    network = train_head(scored_images(400, 4), shown(64, 5), PLAN)
    record = calibrated(network, data, HeadRecord(12, 8, 8, "encoder"))
    with torch.no_grad():
        logits = network(data.features, data.prompts).double(), network.foresee(data.prompts).double()
    confidences = torch.sigmoid(record.slope * logits[0] + record.intercept).tolist()
    foreseen = torch.sigmoid(record.prompt_slope * logits[1] + record.prompt_intercept).tolist()

    verdicts = set()
    for at, share in record.deferral:
        by_prompt = [record.verdict(probability, at) for probability in foreseen]
        verdicts |= {*by_prompt}
        deferred = [
            told is Verdict.HARD or (told is Verdict.UNSURE and confidence <= at)
            for told, confidence in zip(by_prompt, confidences, strict=True)
        ]
        assert share == pytest.approx(sum(deferred) / 400, abs=1e-9)
    assert verdicts == {*Verdict}
