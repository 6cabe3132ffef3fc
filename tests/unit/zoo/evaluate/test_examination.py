"""Compare intervals with a second implementation and attribute scores with known ones, and store generated images."""

import itertools
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from zoo.drawing.captions import ATTRIBUTES, UNSAID
from zoo.drawing.prompts import examination_prompts
from zoo.drawing.scenes import is_held_out
from zoo.evaluate.estimates import estimate, mean, mean_difference, ratio
from zoo.evaluate.examination import Marks, attribute_names, read_attributes
from zoo.painting.store import ImageStore, as_bytes, weights_digest


def two_stage_draws(samples: list[list[float]], resamples: int) -> list[float]:
    """Draw the same bootstrap in plain Python: prompts with replacement, then seeds within each."""
    rng = random.Random(7)
    draws = []
    for _ in range(resamples):
        rows = [rng.choice(samples) for _ in samples]
        values = [rng.choice(row) for row in rows for _ in row]
        draws.append(sum(values) / len(values))
    return sorted(draws)


def test_interval_agrees_with_a_second_implementation() -> None:
    rng = np.random.default_rng(3)
    samples = rng.normal(0.6, 0.2, (40, 1)) + rng.normal(0.0, 0.1, (40, 3))

    found = estimate(mean, samples, resamples=3_000)

    draws = two_stage_draws(samples.tolist(), 3_000)
    assert found.value == pytest.approx(samples.mean())
    assert (found.low, found.high) == pytest.approx((draws[75], draws[-76]), abs=0.006)


def test_interval_is_exact_where_every_draw_can_be_listed() -> None:
    samples = np.array([[0.0], [1.0], [5.0]])

    found = estimate(mean, samples, confidence=0.8, resamples=8_000)

    draws = sorted(sum(values) / 3.0 for values in itertools.product((0.0, 1.0, 5.0), repeat=3))
    assert (found.low, found.high) == (draws[2], draws[-3])


def test_pairs_stay_pairs_in_every_resample() -> None:
    values = np.random.default_rng(1).normal(0.0, 10.0, (30, 2))

    found = estimate(mean_difference, values + 0.5, values, resamples=200)

    assert (found.value, found.low, found.high) == pytest.approx((0.5, 0.5, 0.5))


def test_a_sample_without_seeds_counts_the_same_for_each_seed() -> None:
    pictures, drawings = np.full((8, 3), 0.6), np.full((8, 1), 0.8)

    found = estimate(ratio, pictures, drawings, resamples=50)

    assert found.value == pytest.approx(0.75)


def logits_for(values: list[int]) -> dict[str, Tensor]:
    """Return logits of an attribute reader that is sure of one value per attribute."""
    found = {}
    for value, (name, options) in zip(values, ATTRIBUTES.items(), strict=True):
        found[name] = torch.full((1, len(options)), -2.0)
        found[name][0, value] = 4.0
    return found


def test_attributes_are_counted_by_kind_where_requested() -> None:
    names = list(ATTRIBUTES)
    wanted = torch.full((1, len(names)), UNSAID)
    for name in ("count", "shape", "second_shape", "colour"):
        wanted[0, names.index(name)] = 1
    seen = [0] * len(names)
    seen[names.index("count")] = seen[names.index("second_shape")] = 1

    right, likelihood = read_attributes(logits_for(seen), wanted)

    asked = (wanted != UNSAID)[:, None].numpy()
    marks = Marks(np.zeros((1, 1)), right[:, None].numpy(), asked, np.zeros((1, 1)))
    assert [int(part[0, 0]) for part in marks.attribute("count")] == [1, 1]
    assert [int(part[0, 0]) for part in marks.attribute("shape")] == [1, 2]
    assert [int(part[0, 0]) for part in marks.attribute("colour")] == [0, 1]
    assert [int(part[0, 0]) for part in marks.attribute("style")] == [0, 0]
    assert marks.score.tolist() == [[0.5]]
    sure = float(torch.tensor([4.0, -2.0, -2.0]).log_softmax(0)[0])
    assert float(likelihood[0, names.index("count")]) == pytest.approx(sure)
    assert float(likelihood[0, names.index("style")]) == 0.0


def test_attribute_names_join_the_things() -> None:
    assert set(attribute_names()) == {"count", "background", "style", "place", "relation", "shape", "colour", "size"}


def test_examination_prompts_have_held_out_drawings_and_own_noise() -> None:
    prompts = examination_prompts(6)

    assert all(is_held_out(scene) for scene in prompts.scenes)
    assert prompts.drawn.shape == (6, 3, 64, 64)
    assert len({seed for seeds in prompts.seeds(3) for seed in seeds}) == 18
    assert not any(is_held_out(scene) for scene in examination_prompts(4, held_out=False).scenes)
    whole, second = examination_prompts(4), examination_prompts(2, first=2)
    assert second.captions == whole.captions[2:]
    assert second.seeds(3) == whole.seeds(3)[2:]


class GreyGenerator:
    """Generate each image in the grey of its seed, and record the rows."""

    def __init__(self, seeds: list[int]) -> None:
        self.seeds, self.rows = seeds, list[int]()

    def __call__(self, rows: list[int]) -> Tensor:
        self.rows += rows
        return torch.stack([torch.full((3, 4, 4), self.seeds[row] / 255.0) for row in rows])


def test_image_store_generates_each_image_once(tmp_path: Path) -> None:
    seeds = [10, 20, 30]
    first, second = GreyGenerator(seeds), GreyGenerator(seeds)
    ImageStore(tmp_path, {"steps": 5}).get(["a", "b"], seeds[:2], first)

    pictures = ImageStore(tmp_path, {"steps": 5}).get(["a", "b", "a"], seeds, second)

    assert (first.rows, second.rows) == ([0, 1], [2])
    assert pictures[:, 0, 0, 0].tolist() == seeds
    assert pictures.dtype == torch.uint8


def test_image_store_keeps_images_by_manner(tmp_path: Path) -> None:
    ImageStore(tmp_path, {"steps": 5}).get(["a"], [1], GreyGenerator([1]))
    for manner in ({"steps": 6}, {"steps": 5, "scale": 2.0}):
        painter = GreyGenerator([1])
        ImageStore(tmp_path, manner).get(["a"], [1], painter)
        assert painter.rows == [0]


def test_image_store_keeps_images_by_condition(tmp_path: Path) -> None:
    pictures = ImageStore(tmp_path, {}).get(["a", "a"], [1, 1], GreyGenerator([5, 6]), conditions=["x", "y"])

    assert pictures[:, 0, 0, 0].tolist() == [5, 6]


def test_bytes_are_rounded_not_cut() -> None:
    assert as_bytes(torch.tensor([-1.0, 0.6 / 255.0, 2.0])).tolist() == [0, 1, 255]


def test_digest_follows_the_weights_and_not_the_card(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    before = weights_digest(tmp_path)

    (tmp_path / "README.md").write_text("a card")
    with_card = weights_digest(tmp_path)
    (tmp_path / "config.json").write_text("{ }")

    assert with_card == before
    assert weights_digest(tmp_path) != before
