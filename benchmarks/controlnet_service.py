"""Compare images through the ControlNet service with diffusers' ControlNet pipelines, float32.

    python -m benchmarks.controlnet_service

Ours: a worker process and a replica of controlnet_svc that share memory; the image's latents go to the replica at each
step and residuals return, while the worker runs the first half of the step. Theirs: the family's ControlNet pipeline in
this process, with the same weights, control images, seed and scheduler. Models, ControlNets and control images are
those of `controlnet_golden`; for SD3 the worker encodes the images to latents. The figure is the largest absolute
difference of any element of the final latents.
"""

import asyncio
import tempfile
from itertools import chain
from pathlib import Path

import torch

from benchmarks.controlnet_golden import EVERYWHERE, PROMPTS, SEVERAL, SUBJECTS, TARGET, ControlledSubject, largest
from lab.fixtures.controlled_generation import ControlledByDiffusers, ControlledCase
from lab.fixtures.controlnet_serving import controlled_by_service
from lab.fixtures.diffusers_reference import Case
from lab.runs.measure import measured, parse_options, publish
from pentimento.domain.generation import Scheduler

SERVED = tuple(SUBJECTS)
QUICK = ("random-sd", "random-sd3")
DIFFUSION = (Scheduler.DDIM, Scheduler.EULER, Scheduler.DPM_SOLVER_PP_2M)
FLOW = (Scheduler.FLOW_MATCH_EULER,)


def cases_for(schedulers: tuple[Scheduler, ...], most: int, quick: bool) -> list[ControlledCase]:
    """Return images with one ControlNet and with `most`, also in shares of the schedule; with both halves of guidance,
    and without guidance."""
    steps = 4 if quick else 10
    several, first, last = SEVERAL[:most], schedulers[0], schedulers[-1]
    cases = [
        ControlledCase(Case(*PROMPTS[1], first, 1, steps, 3.0), several),
        ControlledCase(Case(*PROMPTS[0], first, 2, steps, 1.0), several),
    ]
    if not quick:
        cases += [
            ControlledCase(Case(*PROMPTS[0], first, 3, steps, 7.5), (EVERYWHERE,)),
            ControlledCase(Case(*PROMPTS[1], schedulers[len(schedulers) // 2], 4, steps, 3.0), (EVERYWHERE,)),
            ControlledCase(Case(*PROMPTS[0], last, 5, steps, 3.0), several),
        ]
    return cases


async def differences(name: str, subject: ControlledSubject, quick: bool) -> list[float]:
    """Return the difference of each image that is finite in diffusers."""
    found = []
    theirs = ControlledByDiffusers(subject.model, subject.controlnets)
    async with controlled_by_service(subject.model, subject.controlnets) as ours:
        schedulers = FLOW if "sd3" in name else DIFFUSION
        for case in cases_for(schedulers, len(subject.controlnets), quick):
            # 256 levels, as in the images that the service receives
            conditions = [(told * 255.0).round() / 255.0 for told in subject.conditions[: len(case.settings)]]
            difference = largest(theirs.controlled(case, conditions), await ours.controlled(case, conditions))
            if difference is not None:
                found.append(difference)
    return found


async def all_differences(quick: bool) -> dict[str, list[float]]:
    """Return the differences by model."""
    found = {}
    for name in QUICK if quick else SERVED:
        with tempfile.TemporaryDirectory(prefix="pmt-") as folder:
            found[name] = await differences(name, SUBJECTS[name](Path(folder)), quick)
    return found


def main() -> int:
    options = parse_options("controlnet_service", __doc__)
    torch.set_num_threads(1)
    by_model = asyncio.run(all_differences(options.quick))
    every = list(chain.from_iterable(by_model.values()))
    figures = [measured("max abs difference of the final latents, through controlnet_svc", every, max, TARGET)]
    figures += [measured(name, own, max, TARGET) for name, own in by_model.items()]
    return publish(options, figures, notes={"dtype": "float32", "threads": 1})


if __name__ == "__main__":
    raise SystemExit(main())
