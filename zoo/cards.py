"""The model cards beside the exported weights, with the figures of the last evaluation."""

from __future__ import annotations

import json
from pathlib import Path

from zoo.dataset import TRAIN_COUNT
from zoo.registry import ENTRIES
from zoo.train_denoiser import HEAVY_PLAN, LIGHT_PLAN

DATA = """Trained from scratch on {count:,} scenes that `zoo/scenes.py` draws (32 px; 8 shapes, 10 colours, 3 sizes,
9 places or 2 relations, 8 backgrounds, 4 styles) with captions by `zoo/captions.py` (synonyms, several forms of
sentence, attributes left out). No picture or text from anywhere else. Apache-2.0."""

PIPELINE = """# {name}

A `StableDiffusionPipeline` for 32 px pictures of simple scenes, small enough for one CPU core:
{what}.

## Data
{data}

## Recipe
- Autoencoder: `AutoencoderTiny`, 8x8x8 latents of unit variance per channel (scaling factor 1).
- Text: the text tower of `tiny-clip`, 48 tokens, last hidden state after the final norm.
- Denoiser: `UNet2DConditionModel`, channels {channels};
  v-prediction, squared-cosine schedule, trailing DDIM, captions dropped one time in ten, moving average of the weights.
- {steps:,} steps of 64 pictures: `python -m zoo.train {part}`, then `python -m zoo.export`.
- Stored as fp16, computed in fp32 on a CPU.

## Figures
{figures}

## Known failures
{failures}
"""

ENCODER = """# tiny-clip

A stock `CLIPModel` (text 128 wide, 3 layers, 48 tokens; vision 128 wide, 4 layers, 32 px in patches of 4; embeddings
of 128 dimensions) for captions and pictures of the zoo's scenes: the embedder's default. Its first shard is the very
file that the pipelines hold as their text encoder.

## Data
{data}

## Recipe
Contrastive loss plus cross-entropy of the attributes, read off both towers by one set of linear heads that are not
exported. `python -m zoo.train dual-encoder`, then `python -m zoo.export`.

## Figures
{figures}

## Known failures
It knows its own captions' words; anything else is tokenised byte by byte and embedded without understanding.
Similarities are spread wider than those of encoders trained on photographs: thresholds from papers need calibration.
"""

FAILURES = {
    "tiny-heavy": """- Small things lose their shape first, in the autoencoder already: small stars and crosses blur.
- Numbers, other objects, other words: it paints one of its scenes regardless.
- 32 px only: no other size was trained.""",
    "tiny-light": """- About one shape in five is wrong: stars, crosses and diamonds turn into blobs.
- Fills are smeared: stripes and shading show, but not cleanly. Place, background and count hold.""",
}
WHAT = {
    "tiny-heavy": "the larger of the two denoisers",
    "tiny-light": "the cheap one of the two denoisers, for few steps",
}
CHANNELS = {
    "tiny-heavy": "64 and 80, cross-attention throughout",
    "tiny-light": "32 and 40, cross-attention inside only",
}
STEPS = {"tiny-heavy": HEAVY_PLAN.steps, "tiny-light": LIGHT_PLAN.steps}


def _lines(figures: dict[str, object]) -> list[str]:
    lines = []
    for name, value in figures.items():
        shown = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
        lines.append(f"- {name.replace('_', ' ')}: {shown}")
    return lines


def _figures(report: dict[str, dict[str, object]], name: str) -> str:
    if not report:
        return "Not measured yet: run `python -m zoo.evaluate`."
    measured = report["dual_encoder" if name == "tiny-clip" else name]
    lines = [f"On {report['prompts']} held-out scenes with natural captions, one seed each:", "", *_lines(measured)]
    if name != "tiny-clip":
        lines += ["", "The autoencoder's reconstructions of the drawn pictures, for scale:", ""]
        lines += _lines(report["reconstruction"])
        lines += ["", "`attributes`: how often a classifier trained on drawings alone sees what the caption asked for."]
    return "\n".join(lines)


def write_cards(weights: Path) -> None:
    """One README.md per exported directory; without an EVALUATION.json they say that nothing was measured."""
    evaluation = weights / "EVALUATION.json"
    report = json.loads(evaluation.read_text(encoding="utf-8")) if evaluation.exists() else {}
    data = DATA.format(count=TRAIN_COUNT)
    for name in (str(entry["name"]) for entry in ENTRIES):
        if not (weights / name).is_dir():
            continue
        figures = _figures(report, name)
        if name == "tiny-clip":
            text = ENCODER.format(data=data, figures=figures)
        else:
            text = PIPELINE.format(
                name=name,
                what=WHAT[name],
                data=data,
                channels=CHANNELS[name],
                steps=STEPS[name],
                part=name.removeprefix("tiny-"),
                figures=figures,
                failures=FAILURES[name],
            )
        (weights / name / "README.md").write_text(text, encoding="utf-8")
