"""What a prompt head learns, and from what."""

import torch
from torch.nn import functional

from pentimento.diffusion.discriminators.calibration import auroc
from pentimento.diffusion.discriminators.head_fitting import (
    CaptionedImages,
    HeadData,
    HeadPlan,
    fit_agreement,
    train_head,
)

PLAN = HeadPlan(epochs=30, batch=32, weight_decay=0.01)


def pictures(count: int, seed: int) -> HeadData:
    """As good where the prompt's first number and the image's first feature together are large."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(count, 12, generator=generator)
    prompts = functional.normalize(torch.randn(count, 8, generator=generator), dim=1)
    as_good = prompts[:, 0] * 3.0 + features[:, 0] > 0.0
    return HeadData(features, prompts, as_good.float(), torch.ones(count))


def shown(count: int, seed: int) -> CaptionedImages:
    """Features that say nothing of captions."""
    data = pictures(count, seed)
    return CaptionedImages(data.features, data.prompts)


def test_image_that_agrees_with_its_prompt_is_better_by_what_its_features_read() -> None:
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


def test_a_training_is_repeated_by_its_seed_and_leaves_others_draws_alone() -> None:
    data = pictures(64, 3)
    state = torch.get_rng_state()

    first, second = (train_head(data, shown(64, 5), PLAN).state_dict() for _ in range(2))

    assert all(torch.equal(first[name], second[name]) for name in first)
    assert torch.equal(torch.get_rng_state(), state)
