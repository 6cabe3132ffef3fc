"""Generate images of a cascade's both models for the same held-out prompts and seeds, with readers' scores and routers'
confidences.

Images are read from the work folder, or generated into it. No service uses the readers:

    pentimento zoo train judge --work SCORERS             the labels of the shipped prompt head's training
    pentimento zoo train judge --seed 9 --work READER    same architecture, trained separately; labelled none of it
    pentimento zoo train dual-encoder --seed 5 --work OTHERS

The two scorers read attributes, the encoder gives the cosine of image and caption.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from pentimento.diffusion.discriminators import PictureDiscriminator, open_discriminator
from zoo.drawing.captions import UNSAID
from zoo.drawing.dataset import as_pixels, tokenise
from zoo.drawing.prompts import Prompts, examination_prompts
from zoo.drawing.tokenizer import load_tokenizer
from zoo.evaluate.estimates import Array
from zoo.evaluate.examination import BATCH, Examiner
from zoo.export.prompt_head import features_of, share_right, shipped_pair
from zoo.registry import WEIGHTS
from zoo.train.dual_encoder import TowersAndHeads
from zoo.train.judge import AttributeReader
from zoo.train.loop import load_trained
from zoo.train.parts import check_trained

LIGHT, HEAVY = "tiny-light", "tiny-heavy"
DIFFSERVE, PROMPT_AWARE, BY_PROMPT = "DiffServe's discriminator", "prompt-aware discriminator", "its prompt alone"
CLIP_SCORE, THING_COUNT, RANDOM = "CLIPScore of light", "number of things asked for", "random"
OWN_SCORER, OTHER_SCORER, ENCODER = "the scorer that labelled its training", "another scorer", "another encoder"


@dataclass(frozen=True)
class WorkFolders:
    """Name the trained readers' folders."""

    scorer: Path
    reader: Path
    encoder: Path

    def check(self) -> None:
        """Raise NotFound, naming the training command, for a missing one."""
        check_trained(self.scorer, "judge", f"--work {self.scorer}")
        check_reader(self.reader)
        check_trained(self.encoder, "dual-encoder", f"--seed 5 --work {self.encoder}")


def check_reader(work: Path) -> None:
    """Raise NotFound if the scorer that labelled no training data is missing."""
    check_trained(work, "judge", f"--seed 9 --work {work}")


@dataclass(frozen=True)
class Reading:
    """Hold a reader's values for both images of each prompt, (n,) each: larger is better."""

    light: Array
    heavy: Array

    @property
    def as_good(self) -> Array:
        """Return whether light is as good as heavy or better, bool (n,)."""
        found: Array = self.light >= self.heavy
        return found


@dataclass(frozen=True)
class GeneratedPairs:
    """Hold prompts, and uint8 images (n, 3, height, width) by both models from the same noise."""

    prompts: Prompts
    light: Tensor
    heavy: Tensor


def held_out_pairs(work: Path, count: int) -> GeneratedPairs:
    """Return prompts with an unseen combination, generated with one seed each."""
    prompts = examination_prompts(count)
    seeds = [drawn[0] for drawn in prompts.seeds(1)]
    pair = shipped_pair(LIGHT, HEAVY, WEIGHTS / "tiny-discriminator")
    light, heavy = (source.generate(work, list(prompts.captions), seeds) for source in (pair.light, pair.heavy))
    return GeneratedPairs(prompts, light, heavy)


def readings(pairs: GeneratedPairs, folders: WorkFolders) -> dict[str, Reading]:
    """Return each reader's values."""
    cosines = (_cosines(folders.encoder, images, pairs.prompts.captions) for images in (pairs.light, pairs.heavy))
    return {
        OWN_SCORER: scored(pairs, folders.scorer),
        OTHER_SCORER: scored(pairs, folders.reader),
        ENCODER: Reading(*cosines),
    }


def scored(pairs: GeneratedPairs, work: Path) -> Reading:
    """Return the share of requested attributes that the scorer of a work folder sees."""
    judge = load_trained(AttributeReader(), work / "judge")
    said: Array = (pairs.prompts.asked != UNSAID).sum(dim=1).double().numpy()
    light, heavy = (share_right(judge, images, pairs.prompts.asked) for images in (pairs.light, pairs.heavy))
    return Reading(light.double().numpy() / said, heavy.double().numpy() / said)


@torch.no_grad()
def _cosines(work: Path, pixels: Tensor, captions: Sequence[str]) -> Array:
    tokenizer = load_tokenizer(work / "tokenizer")
    towers = load_trained(TowersAndHeads(tokenizer), work / "dual-encoder")
    texts = torch.cat([towers.text(part) for part in tokenise(tokenizer, list(captions)).split(BATCH)])
    images = torch.cat([towers.image(as_pixels(part)) for part in pixels.split(BATCH)])
    return np.asarray(functional.cosine_similarity(texts, images).double().numpy())


def shipped_confidences(pairs: GeneratedPairs) -> dict[str, Array]:
    """Return each router's confidence in the light images, (n,): larger is more confident."""
    examiner = Examiner(WEIGHTS, WEIGHTS)  # uses no attribute scorer
    captions = list(pairs.prompts.captions)
    embedded = examiner.embed_texts(captions)
    plain, reading = (open_discriminator(WEIGHTS / name) for name in ("tiny-discriminator", "tiny-router"))
    things = [len(scene.things) for scene in pairs.prompts.scenes]
    return {
        PROMPT_AWARE: with_prompts(reading, pairs.light, embedded),
        BY_PROMPT: foreseen(reading, embedded),
        DIFFSERVE: real_confidences(plain, pairs.light),
        CLIP_SCORE: examiner.clip_scores(pairs.light, captions).double().numpy(),
        THING_COUNT: -np.array(things, dtype=np.float64),
    }


def with_prompts(discriminator: PictureDiscriminator, images: Tensor, embedded: Tensor) -> Array:
    """Return the probability that each light image is as good as heavy's, from image and prompt."""
    assert discriminator.head is not None
    features = features_of(discriminator, images)
    return np.array(discriminator.head.probabilities(features, list(embedded.numpy())))


def foreseen(discriminator: PictureDiscriminator, embedded: Tensor) -> Array:
    """Return the same from the prompt only."""
    assert discriminator.head is not None
    return np.array([told.probability for told in discriminator.head.foresee(list(embedded.numpy()))])


def real_confidences(discriminator: PictureDiscriminator, images: Tensor) -> Array:
    """Return the calibrated softmax of 'real' (DiffServe, section 3.2)."""
    parts = ([*as_pixels(part).numpy()] for part in images.split(BATCH))
    return np.array([value for part in parts for value in discriminator.confidences(part)])


def random_confidences(count: int, seeds: int) -> Mapping[str, Array]:
    """Return a random router's draw for each seed."""
    return {f"{RANDOM} {seed}": np.random.default_rng(seed).random(count) for seed in range(seeds)}
