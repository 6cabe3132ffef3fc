"""Cards state figures and their gaps, and their images are small."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pentimento.domain.errors import FailedPrecondition, InvalidArgument, NotFound
from zoo.cards.card import KNOWN_FAILURES, SAMPLES, curve_of, write_cards
from zoo.cards.curves import draw_curve
from zoo.cards.examples import GRIDS, example_grid, save_within
from zoo.cards.figures import figures_in_words, read_figures
from zoo.drawing.scenes import IMAGE_SIZE
from zoo.painting.samples import Manner, image_source, sample_tiles
from zoo.registry import MODELS
from zoo.train.loop import LOG

LOG_LINES = [
    {
        "step": step,
        "loss": 2.0 / step,
        "rate": 1e-3,
        "clean_third": 1.0 / step,
        "noisy_third": 0.1,
        "seconds_per_step": 0.25,
    }
    for step in range(25, 5001, 25)
]
FIGURES = [
    {"name": "heavy: shape", "figure": 0.9123, "unit": "", "target": ">= 0.85", "ok": True, "interval": [0.9, 0.925]},
    {"name": "heavy: CLIPScore", "figure": 0.7, "unit": "", "target": "none", "ok": True, "interval": None},
    {"name": "light: missing", "figure": None, "unit": "", "target": ">= 0", "ok": False, "interval": None},
]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    notes = {"parts": {"heavy": {"prompts": 256, "seeds": 3, "at": "2026-11-21T12:00:00Z"}}}
    path = tmp_path / "zoo_quality.json"
    path.write_text(json.dumps({"figures": FIGURES, "notes": notes}), encoding="utf-8")
    return path


@pytest.fixture
def weights(exported: Path, tmp_path: Path) -> Path:
    """Copy the exported zoo, for cards to be written."""
    return Path(shutil.copytree(exported, tmp_path / "weights"))


def test_a_card_shows_figures_with_intervals_and_goals(results: Path, tmp_path: Path) -> None:
    figures = read_figures(results, tmp_path / "none.json")

    assert figures_in_words("heavy", figures).splitlines() == [
        "`heavy`: 256 prompts, 3 seeds each, 2026-11-21; intervals at 95 %.",
        "",
        "| figure | value | interval | goal |  |",
        "| --- | --- | --- | --- | --- |",
        "| shape | 0.9123 | 0.9 to 0.925 | >= 0.85 | reached |",
        "| CLIPScore | 0.7 |  |  |  |",
    ]


def test_a_card_says_how_many_prompts_the_second_set_had(results: Path, tmp_path: Path) -> None:
    result = json.loads(results.read_text(encoding="utf-8"))
    result["figures"][1]["name"] += ", second prompts"
    result["notes"]["parts"]["heavy"]["second_prompts"] = 96
    results.write_text(json.dumps(result), encoding="utf-8")

    said = figures_in_words("heavy", read_figures(results, tmp_path / "none.json")).splitlines()

    assert said[0] == "`heavy`: 256 prompts, 96 second prompts, 3 seeds each, 2026-11-21; intervals at 95 %."
    assert said[-1].startswith("| CLIPScore, second prompts | 0.7 |")


def test_card_states_missing_figures(results: Path, tmp_path: Path) -> None:
    assert "not measured yet" in figures_in_words("light", read_figures(results, tmp_path / "none.json"))


def test_results_that_are_none_are_named(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text("[]", encoding="utf-8")

    with pytest.raises(FailedPrecondition, match=r"results\.json: expected a JSON object"):
        read_figures(tmp_path / "results.json", tmp_path / "none.json")


def test_every_model_gets_a_card_without_gaps(weights: Path, results: Path, tmp_path: Path) -> None:
    (tmp_path / "heavy").mkdir()
    lines = (json.dumps(line) + "\n" for line in LOG_LINES)
    (tmp_path / "heavy" / LOG).write_text("".join(lines), encoding="utf-8")

    assert write_cards(weights, tmp_path, results=results) == list(MODELS)

    for name in MODELS:
        text = (weights / name / "README.md").read_text(encoding="utf-8")
        assert text.startswith(f"# {name}\n")
        assert "$" not in text
        assert all(f"## {heading}" in text for heading in ("Data", "Recipe", "Figures", "Known failures", "Licence"))
    heavy = (weights / "tiny-heavy" / "README.md").read_text(encoding="utf-8")
    assert "| shape | 0.9123 | 0.9 to 0.925 |" in heavy
    assert f"![How the training of heavy went]({curve_of('heavy')})" in heavy
    assert MODELS.keys() == KNOWN_FAILURES.keys()


def test_curves_and_grids_of_noise_are_small_files(tmp_path: Path) -> None:
    draw_curve("heavy", LOG_LINES, tmp_path / "curve.png")
    noise = np.random.default_rng(0).integers(0, 256, (200, 200, 3), np.uint8)
    save_within(Image.fromarray(noise), tmp_path / SAMPLES, limit_bytes=25_000)

    with Image.open(tmp_path / "curve.png") as curve:
        assert curve.width == 640
    assert (tmp_path / "curve.png").stat().st_size <= 25_000
    assert (tmp_path / SAMPLES).stat().st_size <= 25_000


@pytest.mark.parametrize("name", ["tiny-controlnet-layout", "tiny-lora-neon", "tiny-discriminator"])
def test_adapter_is_shown_with_its_pipeline(name: str, exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zoo.cards.examples.SCENES", 1)
    monkeypatch.setattr("zoo.cards.examples.image_source", quick_source)

    sheet = example_grid(MODELS[name], exported)

    columns = GRIDS[MODELS[name].kind][1]
    assert sheet is not None
    assert sheet.width > columns * 2 * IMAGE_SIZE


def quick_source(manner: Manner, *arguments: object) -> object:
    return image_source(Manner(**vars(manner) | {"steps": 2}), *arguments)  # type: ignore[arg-type]


def test_every_family_generates_captions(exported: Path) -> None:
    for model in ("tiny-light", "tiny-flow"):
        (tile,) = sample_tiles(Manner(model, steps=2), ["a red circle"], 0, exported)

        assert tile.caption == "a red circle"
        assert tile.picture.shape == (3, IMAGE_SIZE, IMAGE_SIZE)


@pytest.mark.parametrize(
    ("manner", "error", "told"),
    [
        (Manner("tiny-clip"), InvalidArgument, "no pipeline but a dual_encoder"),
        (Manner("tiny-light", lora="tiny-lora-neon"), InvalidArgument, "does not stand on tiny-light"),
        (Manner(controlnet="tiny-lora-neon"), InvalidArgument, "no controlnet but a lora"),
        (Manner("tiny-heavier"), NotFound, "tiny-heavy, tiny-light"),
    ],
)
def test_image_source_refuses_manner(manner: Manner, error: type[Exception], told: str, exported: Path) -> None:
    with pytest.raises(error, match=told):
        image_source(manner, exported)
