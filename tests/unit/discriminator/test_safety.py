"""Classifiers of prompts and images against transformers' own pipelines, and directories that are no classifier."""

from pathlib import Path

import pytest
import torch
from PIL import Image
from transformers import pipeline

from lab.fixtures.classifier_directories import write_image_classifier, write_prompt_classifier
from pentimento.diffusion.checkpoint import BadCheckpoint
from pentimento.diffusion.safety import SafetyClassifier, open_image_classifier, open_prompt_classifier
from pentimento.domain.safety import SafetyVerdict

CPU = torch.device("cpu")
PROMPTS = ["a red circle", "naked", "a blue square and a red circle", ""]


def images() -> list[Image.Image]:
    return [Image.new("RGB", (48, 40), colour) for colour in ("red", "navy", "white")]


def test_prompts_get_the_probabilities_of_transformers_pipeline(tmp_path: Path) -> None:
    directory = write_prompt_classifier(tmp_path)
    classifier = open_prompt_classifier(directory, ("NSFW",), 0.5, CPU)
    reference = pipeline("text-classification", str(directory), top_k=None)

    verdicts = classifier.verdicts(PROMPTS)

    expected = [next(one["score"] for one in found if one["label"] == "nsfw") for found in reference(PROMPTS)]
    assert [one.probability for one in verdicts] == pytest.approx(expected, abs=1e-5)
    assert len({round(one.probability, 4) for one in verdicts}) > 1
    assert {(one.label, one.limit, one.classifier_digest) for one in verdicts} == {("nsfw", 0.5, classifier.digest)}


def test_images_get_the_probabilities_of_transformers_pipeline(tmp_path: Path) -> None:
    directory = write_image_classifier(tmp_path)
    classifier = open_image_classifier(directory, ("nsfw",), 0.5, CPU)
    reference = pipeline("image-classification", str(directory), use_fast=False)

    verdicts = classifier.verdicts([classifier.prepare(image) for image in images()])

    expected = [next(one["score"] for one in reference(image) if one["label"] == "nsfw") for image in images()]
    assert [one.probability for one in verdicts] == pytest.approx(expected, abs=1e-4)
    assert len({round(one.probability, 4) for one in verdicts}) > 1


# Logits 0 and 1 are 0.5 and 0.731 as separate labels; as shares of all three logits they sum to 0.788.
@pytest.mark.parametrize(("several", "expected"), [(True, 1 - 0.5 * (1 - 0.7310586)), (False, 0.7880584)])
def test_unsafe_labels_count_together(several: bool, expected: float) -> None:
    logits = torch.tensor([[0.0, 0.0, 1.0]])
    labels = ("normal", "violent", "nsfw")
    classifier = SafetyClassifier("", str, lambda _: logits, labels, (1, 2), several, 0.5)

    (verdict,) = classifier.verdicts(["a"])

    assert verdict.probability == pytest.approx(expected, abs=1e-6)
    assert verdict.label == "nsfw"


@pytest.mark.parametrize(("probability", "unsafe"), [(0.4999, False), (0.5, True), (0.9, True)])
def test_probability_from_the_limit_on_is_unsafe(probability: float, unsafe: bool) -> None:
    assert SafetyVerdict(probability, 0.5, "nsfw", "").unsafe is unsafe


def test_directory_without_the_named_labels_is_refused(tmp_path: Path) -> None:
    directory = write_image_classifier(tmp_path)
    with pytest.raises(BadCheckpoint, match="the unsafe labels must be some of normal, nsfw, got toxic"):
        open_image_classifier(directory, ("toxic",), 0.5, CPU)
    with pytest.raises(BadCheckpoint, match="the unsafe labels must be some of normal, nsfw, got nsfw, normal"):
        open_image_classifier(directory, ("nsfw", "normal"), 0.5, CPU)


def test_network_of_another_kind_is_refused(tmp_path: Path) -> None:
    directory = write_image_classifier(tmp_path)
    with pytest.raises(BadCheckpoint, match=r"config.json: model_type must be one of bert, .*, got 'vit'"):
        open_prompt_classifier(directory, ("nsfw",), 0.5, CPU)


def test_pickled_or_missing_weights_are_refused(tmp_path: Path) -> None:
    directory = write_image_classifier(tmp_path)
    weights = directory / "model.safetensors"
    torch.save({}, directory / "pytorch_model.bin")
    weights.unlink()
    with pytest.raises(BadCheckpoint, match="cannot be loaded"):
        open_image_classifier(directory, ("nsfw",), 0.5, CPU)


def test_link_out_of_the_directory_is_refused(tmp_path: Path) -> None:
    directory = write_image_classifier(tmp_path / "classifier")
    weights = directory / "model.safetensors"
    weights.rename(tmp_path / "elsewhere.safetensors")
    weights.symlink_to(tmp_path / "elsewhere.safetensors")
    with pytest.raises(BadCheckpoint, match=r"model.safetensors: leads out of the checkpoint"):
        open_image_classifier(directory, ("nsfw",), 0.5, CPU)


def test_weights_with_nan_scores_are_refused(tmp_path: Path) -> None:
    directory = write_image_classifier(tmp_path, (float("nan"), 0.0))
    with pytest.raises(BadCheckpoint, match="its weights give no usable logits of 2 labels"):
        open_image_classifier(directory, ("nsfw",), 0.5, CPU)
