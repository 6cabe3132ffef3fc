"""Fill a model card: its text is in `texts/`, its numbers and lists come from here."""

from __future__ import annotations

import json
import re
import string
from importlib import import_module
from math import prod
from pathlib import Path

from safetensors import safe_open

from zoo.cards.curves import draw_curve
from zoo.cards.examples import example_grid, save_within
from zoo.cards.figures import RESULTS, PartFigures, figures_in_words, read_figures
from zoo.drawing.dataset import TRAIN_COUNT, TREATED_COUNT
from zoo.drawing.scenes import BACKGROUNDS, COLOURS, COUNTS, IMAGE_SIZE, SHAPES, SIZES, STYLES
from zoo.drawing.tokenizer import MAX_TOKENS
from zoo.painting.samples import PROMPTS
from zoo.registry import CARD, LICENCE, MODELS, ZooModel
from zoo.train.discriminator import COUNT as DISCRIMINATED_COUNT
from zoo.train.loop import CHECKPOINT, read_log, read_state
from zoo.train.parts import PARTS, WORK, part_and_plan

TEXTS = Path(__file__).parent / "texts"
SAMPLES = "samples.png"
DATA = (
    f"Drawn, not collected: $count scenes by `zoo/drawing/scenes.py` ({IMAGE_SIZE} px; {len(SHAPES)} shapes, "
    f"{len(COLOURS)} colours, {len(SIZES)} sizes, {len(STYLES)} styles, {len(BACKGROUNDS)} backgrounds, one to "
    f"{len(COUNTS) + 1} things) with captions by `zoo/drawing/captions.py` (synonyms, several forms of sentence, "
    "attributes left out). One pair of shape and colour in ten is held out of all training, and figures are of scenes "
    "that have one unless they say otherwise. No image or text is from anywhere else."
)
LICENCE_TEXT = f"{LICENCE}, as the rest of this repository."
# further parts described in a card
TRAINED = {
    "tiny-heavy": ("heavy", "autoencoder"),
    "tiny-flow": ("flow", "flow-distilled", "flow-refined"),
    "tiny-clip": ("dual-encoder", "image-tower"),
}
# parts of the bar in a card, if more or other than the model's own
MEASURED = {
    "tiny-heavy": ("heavy", "heavy-steps", "autoencoder"),
    "tiny-light": ("light", "light-speed"),
    "tiny-flow": ("flow",),
    "tiny-clip": ("dual-encoder",),
}
WHAT = {
    "tiny-heavy": "the larger of the two denoisers, for many steps",
    "tiny-light": "the cheap one of the two denoisers, for few steps",
}
ATTENTION = {"tiny-heavy": "throughout", "tiny-light": "inside only"}
TOLD = {
    "tiny-controlnet-edges": "the edges of everything in the image, as thin white lines on black",
    "tiny-controlnet-layout": "a coarse depth map: where the things are and how large, not which shape or colour",
    "tiny-lora-neon": "neon signs: tubes of a thing's own colour that glow in the dark",
    "tiny-lora-blueprint": "blueprints: white lines on a blue sheet with a fine grid",
    "tiny-lora-mosaic": "mosaics: 16 by 16 tiles with dark joints",
}
FORMATS = (
    " The same LoRA lies here in kohya's format (`kohya/`) and in PEFT's (`peft/`) too; loaders are tested on them."
)
# known weaknesses, a line each, found by people in the samples and the figures
NEARLY_SAYS = "Captions state most of an image's content, so a condition adds little: compare heavy without it."
KNOWN_FAILURES: dict[str, tuple[str, ...]] = {
    "tiny-heavy": (
        "One colour in ten and one fill in thirteen are wrong; of scenes with three things half have something wrong.",
        "The content of an image is settled after about ten steps. More steps add only fine detail.",
    ),
    "tiny-light": (
        "Three of five scenes of one thing are as good as heavy's, one in nine of two things, hardly any of three: it "
        "was shown simple scenes more often.",
        "Half of the shapes are wrong, nearly half of the colours.",
    ),
    "tiny-flow": ("One shape in five is wrong, mostly where there are several things; outlines are ragged.",),
    "tiny-clip": (),
    "tiny-controlnet-edges": (NEARLY_SAYS,),
    "tiny-controlnet-layout": (NEARLY_SAYS,),
    "tiny-lora-neon": (
        "It must be there from the first steps: switched on after 10 of 50 a quarter of its strength is left, after 20 "
        "nothing.",
    ),
    "tiny-lora-blueprint": ("Switched on after 20 of 50 steps, half of its strength is left.",),
    "tiny-lora-mosaic": (),
    "tiny-discriminator": (
        "It tells light's images from real ones and ranks them below heavy's, but among light's images it does not "
        "find the ones as good as heavy's.",
    ),
}
# true of every model of a kind, at any figures
LIMITS = {
    "pipeline": (
        "Other objects, numbers, other words: it generates one of its scenes regardless.",
        f"{IMAGE_SIZE} px only: no other size was trained.",
    ),
    "dual_encoder": (
        "It knows its own captions' words; anything else is tokenised byte by byte and embedded without understanding.",
        "Similarities are spread wider than those of encoders trained on photographs: thresholds from papers need "
        "calibration.",
    ),
    "discriminator": ("It has seen only images of its cascade: another pair of models needs another discriminator.",),
}


def write_cards(
    weights: Path, work: Path = WORK, *, samples: bool = False, results: Path | None = RESULTS
) -> list[str]:
    """Write README.md and curves in each exported directory; return the models' names.

    Curves come from the logs of the work folder and stay unchanged without them. With `samples` the grids are generated
    again; without `results` nothing counts as measured.
    """
    figures = {} if results is None else read_figures(results, weights / "EVALUATION.json")
    names = [name for name in MODELS if (weights / name).is_dir()]
    for name in names:
        model, folder = MODELS[name], weights / name
        if samples and (sheet := example_grid(model, weights)) is not None:
            save_within(sheet, folder / SAMPLES)
        for part in trained_parts(model):
            if log := read_log(work / part):
                draw_curve(part, log, folder / curve_of(part))
        (folder / CARD).write_text(card(model, folder, work, figures), encoding="utf-8")
    return names


def card(model: ZooModel, folder: Path, work: Path, figures: dict[str, PartFigures]) -> str:
    template = string.Template((TEXTS / f"{model.kind}-{model.family}.md").read_text(encoding="utf-8"))
    curves = [part for part in trained_parts(model) if (folder / curve_of(part)).exists()]
    failures = (*KNOWN_FAILURES[model.name], *LIMITS.get(model.kind, ()))
    filled = {
        "name": model.name,
        "size_px": IMAGE_SIZE,
        "tokens": MAX_TOKENS,
        "prompt": PROMPTS[0],
        "steps": model.steps,
        "scale": model.guidance_scale,
        "data": data_in_words(model),
        "weights": weights_in_words(folder),
        "training": "\n".join(training_lines(part, work) for part in trained_parts(model)),
        "curves": "\n".join(f"![How the training of {part} went]({curve_of(part)})" for part in curves),
        "samples": samples_in_words(model, folder),
        "figures": "\n\n".join(figures_in_words(part, figures) for part in MEASURED.get(model.name, (model.part,))),
        "failures": "\n".join(f"- {line}" for line in failures) or "None has been written down yet.",
        "licence": LICENCE_TEXT,
    }
    text = template.substitute(filled | particulars(model, folder))
    return re.sub(r"\n{3,}", "\n\n", text.rstrip()) + "\n"


def data_in_words(model: ZooModel) -> str:
    counts = {"lora": TREATED_COUNT, "discriminator": DISCRIMINATED_COUNT}
    return DATA.replace("$count", f"{counts.get(model.kind, TRAIN_COUNT):,}")


def particulars(model: ZooModel, folder: Path) -> dict[str, object]:
    """Return the facts that only some kinds of card have."""
    told: dict[str, object] = {"told": TOLD.get(model.name, ""), "what": WHAT.get(model.name, "")}
    if model.kind == "pipeline" and model.family == "sd":
        unet = json.loads((folder / "unet" / "config.json").read_text(encoding="utf-8"))
        *most, last = map(str, unet["block_out_channels"])
        channels = f"{', '.join(most)} and {last}"
        told |= {"channels": channels, "attention": ATTENTION[model.name]}
        told |= {"latent_px": unet["sample_size"], "latent_channels": unet["in_channels"]}
    if model.kind == "lora":
        lora = import_module("zoo.train.lora")
        formats = FORMATS if (folder / "kohya").is_dir() else ""
        told |= {"rank": lora.RANK, "alpha": lora.ALPHA, "formats": formats}
    if model.cascade is not None:
        told["cascade"] = "`{}` before `{}`".format(*model.cascade)
    return told


def trained_parts(model: ZooModel) -> tuple[str, ...]:
    return TRAINED.get(model.name, (model.part,))


def curve_of(part: str) -> str:
    return f"training-{part}.png"


def samples_in_words(model: ZooModel, folder: Path) -> str:
    if not (folder / SAMPLES).exists():
        return "None generated yet: `pentimento zoo cards` does."
    return f"![Images by {model.name}]({SAMPLES})"


def training_lines(part: str, work: Path) -> str:
    """Return a part's training, from its checkpoint or else from its plan."""
    _, plan = part_and_plan(part)
    batch = import_module(PARTS[part][0]).BATCH
    steps, seed, took = plan.steps, plan.seed, ""
    if (work / part / CHECKPOINT).exists():
        state = read_state(work / part)
        steps, seed = int(str(state["step"])), int(str(state["seed"]))
        log = read_log(work / part)
        took = f", {log[-1]['seconds_per_step']:.2g} s a step" if log else ""
    return (
        f"- `pentimento zoo train {part}`: {steps:,} steps of {batch} images with seed {seed}{took}; AdamW, learning "
        f"rate {plan.peak_rate:g} falling over the last {plan.cooldown:.0%}, weight decay {plan.weight_decay:g}; the "
        f"weights are a moving average of {plan.ema_decay:g}."
    )


def weights_in_words(folder: Path) -> str:
    """Return parameters and size of a directory's safetensors files, by component if it has several."""
    counts: dict[str, int] = {}
    size_bytes = 0
    for path in sorted(folder.rglob("*.safetensors")):
        component = path.relative_to(folder).parts[0]
        if component in ("kohya", "peft"):
            continue
        with safe_open(path, "pt") as file:
            count = sum(prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
        counts[component] = counts.get(component, 0) + count
        size_bytes += path.stat().st_size
    parts = [f"{name} {count:,}" for name, count in counts.items() if (folder / name).is_dir()]
    by_component = f" ({', '.join(parts)})" if len(parts) > 1 else ""
    return f"{sum(counts.values()):,} parameters{by_component}, {size_bytes / 1e6:.1f} MB"
