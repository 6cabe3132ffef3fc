"""Measure, on the zoo's models, the phenomena that approximate caching, cascades and adapters rely on.

- resume-latent, resume-image: quality against the similarity of prompts, for images that start from another prompt's
  latent (NIRVANA) or image (MoDM)
- controlnet-residuals: similarity of a ControlNet's residuals at adjacent steps (Katz)
- lora-switch: latents and style against the step at which a LoRA is switched on (Katz)
- steps: quality against the number of steps, heavy and light
- light-as-good: the share of prompts with a light image as good as the heavy one (DiffServe), of the images of
  `benchmarks.zoo_quality`: run that first, or this generates them

Every curve is plotted; its figures state the expected property. Prompts have
unseen combinations. `--only PART …` leaves the file's results of other parts unchanged.
"""

import argparse
import sys
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import torch

from benchmarks.zoo_curves.setting import CurveSetting
from lab.runs.measure import PLOTS, parse_options
from lab.runs.parts import PartResult, publish_parts
from pentimento.domain.errors import NotFound
from zoo.evaluate.studio import Studio
from zoo.registry import WEIGHTS
from zoo.train.parts import WORK

# Imported on use, so that one part's missing dependency stops no other part.
PARTS = {
    "resume-latent": ("benchmarks.zoo_curves.resuming", "latent_part"),
    "resume-image": ("benchmarks.zoo_curves.resuming", "image_part"),
    "controlnet-residuals": ("benchmarks.zoo_curves.adapting", "residuals_part"),
    "lora-switch": ("benchmarks.zoo_curves.adapting", "lora_part"),
    "steps": ("benchmarks.zoo_curves.stepping", "steps_part"),
    "light-as-good": ("benchmarks.zoo_curves.stepping", "as_good_part"),
}
QUICK = {"prompts": 12, "receivers": 8, "adapted": 4, "wide_prompts": 16, "wide_seeds": 1}


def main() -> int:
    options = parse_options("zoo_phenomena", __doc__, add_options)
    if find_spec("matplotlib") is None:
        print("plots need matplotlib: pip install matplotlib", file=sys.stderr)
        return 1
    rest = options.rest | (QUICK if options.quick else {})
    torch.set_num_threads(rest["threads"])
    setting = CurveSetting(
        Studio(rest["weights"], rest["work"], rest["prompts"], 1),
        Studio(rest["weights"], rest["work"], rest["wide_prompts"], rest["wide_seeds"]),
        rest["receivers"],
        rest["adapted"],
        rest["plots"] or PLOTS,
    )
    found = {part: measure(setting, part) for part in rest["only"] or PARTS}
    return publish_parts(options, list(PARTS), found, {"threads": rest["threads"]})


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--prompts", type=int, default=96, help="prompts at several numbers of steps")
    parser.add_argument("--receivers", type=int, default=32, help="prompts for donors of each kind")
    parser.add_argument("--adapted", type=int, default=16, help="prompts with each adapter")
    parser.add_argument("--wide-prompts", type=int, default=256, help="of light-as-good")
    parser.add_argument("--wide-seeds", type=int, default=3, help="images per prompt of light-as-good")
    parser.add_argument("--weights", type=Path, default=WEIGHTS)
    parser.add_argument("--work", type=Path, default=WORK, help="work folder of the scorers and of generated images")
    parser.add_argument("--plots", type=Path, help="folder of the plots (default: build/plots)")
    parser.add_argument("--threads", type=int, default=1)


def measure(setting: CurveSetting, part: str) -> PartResult:
    module, function = PARTS[part]
    started = time.monotonic()
    try:
        result: PartResult = getattr(import_module(module), function)(setting)
    except NotFound as error:
        result = PartResult(missing=error.message)
    state = f"missing: {result.missing}" if result.missing else f"{len(result.figures)} figures"
    print(f"{part}: {state}, {time.monotonic() - started:.0f} s", flush=True)
    return result


if __name__ == "__main__":
    raise SystemExit(main())
