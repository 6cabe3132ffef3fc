"""Test the confidence of a head in an image and its prompt, and directories of heads."""

import json
import math
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from pentimento.diffusion.checkpoint import BadCheckpoint
from pentimento.diffusion.discriminator_files import HEAD_FILE, HEAD_WEIGHTS
from pentimento.diffusion.discriminators import PictureDiscriminator, open_discriminator
from pentimento.diffusion.discriminators.prompt_heads import HeadNetwork, HeadRecord, PromptHead
from pentimento.domain.embedding import Embedding
from pentimento.domain.errors import FailedPrecondition, InvalidArgument
from pentimento.domain.foresight import Verdict
from tests.support.refusals import wrong_refusals
from tests.support.text_files import edit_json
from tests.unit.diffusion.test_discriminators import SHIPPED, with_tensors

FEATURES = 960  # features per image of the shipped network
RECORD = HeadRecord(
    FEATURES,
    6,
    8,
    "sha256:encoder",
    1.5,
    -0.25,
    0.5,
    0.1,
    0.4,
    ((0.0, 0.0), (0.5, 0.7), (1.0, 1.0)),
    ((0.0, 0.0, 0.2), (0.4, 0.1, 0.6), (0.5, 0.3, 0.9), (1.0, 1.0, 1.0)),
)


def network(shape: HeadRecord = RECORD) -> HeadNetwork:
    torch.manual_seed(4)
    found = HeadNetwork(shape.shape).eval()
    # The term of the image starts at zero; the tests need a nonzero one.
    torch.nn.init.constant_(found.agreed.weight, 1.5)
    return found


def write_head(directory: Path, record: HeadRecord = RECORD) -> None:
    (directory / HEAD_FILE).write_text(json.dumps(record.as_json()))
    save_file(network(record).state_dict(), directory / HEAD_WEIGHTS)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    found = Path(shutil.copytree(SHIPPED, tmp_path / "discriminator"))
    write_head(found)
    return found


def embedding(*values: float) -> "np.ndarray[Any, np.dtype[np.float32]]":
    vector = np.array(values, np.float32)
    return np.asarray(vector / np.linalg.norm(vector), np.float32)


PROMPTS = (embedding(1, 2, 3, 4, 5, 6), embedding(-3, 1, 0, 0, 2, 1))


def test_a_head_reads_the_networks_features_and_the_prompt(directory: Path) -> None:
    found = open_discriminator(directory)
    pixels = [np.full((3, 64, 64), value, np.float32) for value in (-0.5, 0.5)]
    with torch.inference_mode():
        features = found.network.features(torch.from_numpy(np.stack(pixels)))
        logits = network()(features, torch.from_numpy(np.stack(PROMPTS))).tolist()

    confidences = found.confidences_with(pixels, PROMPTS)

    assert confidences == pytest.approx([1 / (1 + math.exp(-(1.5 * logit - 0.25))) for logit in logits], abs=1e-6)
    swapped = found.confidences_with(pixels, PROMPTS[::-1])
    assert abs(swapped[0] - confidences[0]) > 1e-4


def test_prompt_needs_head_and_plain_confidence_ignores_it(directory: Path) -> None:
    pixels = [np.zeros((3, 64, 64), np.float32)]
    with_head: PictureDiscriminator = open_discriminator(directory)
    plain = open_discriminator(SHIPPED)

    with pytest.raises(FailedPrecondition, match="reads images only"):
        plain.confidences_with(pixels, PROMPTS[:1])

    assert with_head.confidences(pixels) == plain.confidences(pixels)
    assert with_head.digest != plain.digest


@pytest.mark.parametrize(
    ("bounds", "verdict"),
    [((0.9999, 0.99999), Verdict.HARD), ((0.0, 0.0001), Verdict.EASY), ((0.0001, 0.9999), Verdict.UNSURE)],
)
def test_verdict_of_prompt_follows_bounds(bounds: tuple[float, float], verdict: Verdict) -> None:
    record = replace(RECORD, bounds=((0.0, *bounds), (1.0, *bounds)))
    logits = network().foresee(torch.from_numpy(np.stack(PROMPTS))).tolist()

    found = PromptHead(record, network()).foresee(PROMPTS)

    expected = [1 / (1 + math.exp(-(0.5 * logit + 0.1))) for logit in logits]
    assert [each.probability for each in found] == pytest.approx(expected, abs=1e-6)
    assert [(each.verdict, each.threshold) for each in found] == [(verdict, 0.4)] * 2


@pytest.mark.parametrize(
    ("threshold", "probability", "verdict"),
    [
        (0.4, 0.09, Verdict.HARD),
        (0.4, 0.1, Verdict.UNSURE),
        (0.4, 0.61, Verdict.EASY),
        (0.45, 0.61, Verdict.UNSURE),  # easy at a higher threshold only
        (0.45, 0.09, Verdict.HARD),  # hard at a lower one already
        (0.2, 0.61, Verdict.EASY),
        (0.2, 0.05, Verdict.UNSURE),
    ],
)
def test_verdict_between_points_is_the_cautious_one(threshold: float, probability: float, verdict: Verdict) -> None:
    assert RECORD.verdict(probability, threshold) is verdict


def test_prompt_refuses_other_encoder_width_and_numbers() -> None:
    head, good = PromptHead(RECORD, network()), PROMPTS[0].tobytes()

    def embedded(values: bytes, digest: str = "sha256:encoder") -> Embedding:
        return Embedding(values, len(values) // 4, digest)

    assert head.prompt("f", embedded(good)).tolist() == PROMPTS[0].tolist()
    refused: list[tuple[Embedding | None, type[Exception], str]] = [
        (None, InvalidArgument, "must be there"),
        (embedded(good, "sha256:other"), FailedPrecondition, "is of encoder sha256:other"),
        (embedded(good[:20]), InvalidArgument, "must have 6 numbers of four bytes, has 20 bytes"),
        (embedded(np.full(6, np.nan, np.float32).tobytes()), InvalidArgument, "finite"),
    ]
    for wrong, error, said in refused:
        with pytest.raises(error, match=said):
            head.prompt("f", wrong)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"version": 1}, "version must be 2, got 1"),
    ({"feature_width": 12}, "feature_width must be the network's 960, got 12"),
    ({"embedding_width": 0}, "embedding_width must be a whole number from 1 to"),
    ({"hidden_width": 1 << 20}, "hidden_width must be a whole number from 1 to"),
    ({"encoder_digest": ""}, "encoder_digest must say whose embeddings it reads"),
    ({"slope": float("nan")}, "slope must be a finite number"),
    ({"prompt_intercept": "low"}, "prompt_intercept must be a finite number"),
    ({"threshold": 1.5}, "threshold must be between 0 and 1"),
    ({"bounds": [[0.0, 0.7, 0.6], [1.0, 0.7, 0.8]]}, "bounds must not have a hard_below above"),
    ({"bounds": [[0.0, 0.7], [1.0, 0.7]]}, "bounds must be points of 3 numbers"),
    ({"auroc": [0.7, 0.8, 0.6]}, "auroc must be a value and the bounds of its interval"),
    ({"cascade": ["a", "b"]}, "cascade must be LIGHT>HEAVY"),
    ({"deferral": [[0.0, 0.0]]}, "deferral must be 2 to 1024 points"),
    ({"deferral": [[0.0, 0.5], [1.0, 0.4]]}, "deferral must ascend"),
    ({"hidden_width": 9}, "its weights do not fit"),
]


def test_wrong_head_is_rejected_by_key(directory: Path) -> None:
    file = directory / HEAD_FILE
    sound = file.read_text()

    def open_with(values: dict[str, Any]) -> None:
        file.write_text(sound)
        edit_json(file, **values)
        open_discriminator(directory)

    rows = [(values, re.escape(message)) for values, message in WRONG]

    assert wrong_refusals(BadCheckpoint, open_with, rows) == []


ARCHITECTURES = r"architecture must be one of .*efficientnet_v2_s.*got 'efficientnet_b9'"


@pytest.mark.parametrize(
    ("file", "damage", "named"),
    [
        (HEAD_WEIGHTS, Path.unlink, "or neither"),
        (HEAD_WEIGHTS, with_tensors(**{"agreed.bias": math.inf}), "no usable probability"),
        (
            "config.json",
            lambda path: edit_json(path, model_type="torchvision", architecture="efficientnet_b9"),
            ARCHITECTURES,
        ),
    ],
    ids=["half a head", "no numbers", "an unknown architecture"],
)
def test_open_discriminator_refuses_head(
    directory: Path, file: str, damage: Callable[[Path], object], named: str
) -> None:
    damage(directory / file)

    with pytest.raises(BadCheckpoint, match=named):
        open_discriminator(directory)
