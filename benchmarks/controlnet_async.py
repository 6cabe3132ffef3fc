"""Measure ControlNets with residuals from the step before (Katz, section 5): quality lost, and the cost of a slow link.

    python -m benchmarks.controlnet_async --scorer SCORERS [--only PART …]

- bounds: the first step after which residuals of the zoo's ControlNets resemble those of the step before (cosine above
  0.99 in nine prompts of ten, at all later steps), by the number of steps; writes zoo/weights/pipelining-bounds.json
- edges, layout: pipelined images, from the bound on, against synchronous images of the same seeds, by a worker and a
  replica of controlnet_svc: attribute scores (`pentimento zoo train judge --work SCORERS`), edges against the control
  image's, SSIM. Noise is estimated by the paired bootstrap and by another seed
- link: latency over an emulated link of 10 Gb/s on paced devices, as a share of the ideal with (C+E+D) overlapped and
  no transport: max(C, E) + D a step

Parts that `--only` leaves out stay unchanged in the result file.
"""

import argparse
import time
from functools import partial
from pathlib import Path

import torch

from benchmarks.pipelined_link import LinkSetting, link_part
from benchmarks.pipelined_quality import BOUNDS, TOLD, QualitySetting, bounds_part, quality_part
from lab.runs.measure import Options, parse_options
from lab.runs.parts import PartResult, publish_parts
from pentimento.domain.errors import NotFound

PARTS = ("bounds", *TOLD, "link")


def quality_setting(options: Options) -> QualitySetting:
    scorer, steps = options.rest["scorer"], options.rest["steps"]
    if options.quick:
        return QualitySetting(scorer, 2, 2, (steps,), steps, options.out.parent / "pipelining-bounds.json")
    return QualitySetting(scorer, options.rest["prompts"], 16, (20, 50), steps, BOUNDS)


def measure(options: Options, part: str) -> PartResult:
    quick = options.quick
    quality = quality_setting(options)
    parts = {
        "bounds": partial(bounds_part, quality),
        "link": partial(link_part, LinkSetting(1, 8, 2) if quick else LinkSetting(2, 50, 4)),
        **{name: partial(quality_part, quality, name) for name in TOLD},
    }
    began_at = time.monotonic()
    try:
        result = parts[part]()
    except NotFound as error:
        result = PartResult(missing=error.message)
    print(f"{part}: {result.missing or f'{len(result.figures)} figures'}, {time.monotonic() - began_at:.0f} s")
    return result


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--scorer", type=Path, required=True, metavar="DIR", help="folder of the attribute scorer")
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--prompts", type=int, default=32, help="prompts in each mode")
    parser.add_argument("--steps", type=int, default=50, help="steps of each image")


def main() -> int:
    options = parse_options("controlnet_async", __doc__, add_options)
    torch.set_num_threads(1)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    found = {part: measure(options, part) for part in options.rest["only"] or PARTS}
    return publish_parts(options, PARTS, found, {"threads": 1})


if __name__ == "__main__":
    raise SystemExit(main())
