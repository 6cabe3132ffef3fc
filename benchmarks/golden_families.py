"""Compare the worker's latents with diffusers' pipelines, family by family: same weights, seed and scheduler, float32.

A worker process returns its final latents over gRPC; the family's pipeline and its img2img sibling run in this process.
Cases are every scheduler that the worker offers for a checkpoint, with guidance off, moderate and strong, from text and
from an image. The figure is the largest absolute difference of any element in any case. Checkpoints are the zoo's, and
tiny ones with random weights that diffusers writes during the run.
"""

import argparse
import asyncio
import itertools
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from lab.fixtures.checkpoints import (
    write_checkpoint,
    write_flow_checkpoint,
    write_xl_checkpoint,
)
from lab.fixtures.diffusers_reference import Case, DiffusersReference
from lab.fixtures.flow_checkpoints import (
    write_flux_2_checkpoint,
    write_flux_checkpoint,
    write_klein_checkpoint,
    write_qwen_image_checkpoint,
    write_z_image_checkpoint,
)
from lab.fixtures.sana_checkpoints import write_sana_checkpoint
from lab.fixtures.worker_process import worker_process
from lab.fixtures.worker_under_test import WorkerUnderTest, await_serving, difference
from lab.runs.measure import Figure, Notes, Options, at_most, measured, parse_options, publish
from pentimento.domain.generation import Scheduler
from pentimento.rpc import RpcChannelSettings, open_channel

WEIGHTS = Path(__file__).parent.parent / "zoo" / "weights"
TARGET = at_most(1e-4)
Compared = list[tuple[Case, float | None]]
PROMPTS = ("a red circle above a blue square", "three small green stars", "")
NEGATIVE_PROMPTS = ("", "blurred", "a circle")
STRENGTHS = (0.3, 0.8, 1.0)

RANDOM_CHECKPOINTS: dict[str, Callable[[Path], Path]] = {
    "random-sd-epsilon": lambda path: write_checkpoint(path, beta_schedule="scaled_linear", vae="kl"),
    "random-sd-v": lambda path: write_checkpoint(path, prediction_type="v_prediction", timestep_spacing="trailing"),
    "random-sdxl": lambda path: write_xl_checkpoint(path, beta_schedule="scaled_linear"),
    "random-sdxl-v": lambda path: write_xl_checkpoint(path, prediction_type="v_prediction", zeros=False),
    "random-sd3": lambda path: write_flow_checkpoint(path, max_sequence_length=0),
    "random-flux-dev": lambda path: write_flux_checkpoint(path, size=(24, 40)),
    "random-flux-schnell": lambda path: write_flux_checkpoint(path, takes_scale=False),
    "random-flux-2-klein": lambda path: write_klein_checkpoint(path, size=(24, 40)),
    "random-flux-2-klein-base": lambda path: write_klein_checkpoint(path, is_distilled=False),
    "random-flux-2-dev": write_flux_2_checkpoint,
    "random-z-image": write_z_image_checkpoint,
    "random-qwen-image": write_qwen_image_checkpoint,
    "random-sana": write_sana_checkpoint,
    "random-sana-sprint": lambda path: write_sana_checkpoint(path, is_sprint=True),
    "random-sd3-t5": lambda path: write_flow_checkpoint(path, t5=True, max_sequence_length=12, dual_layers=(0,)),
}


def all_cases(schedulers: Sequence[Scheduler], quick: bool) -> list[Case]:
    """Return every scheduler with no, moderate and strong guidance, from text with each number of steps, and from an
    image. Prompts and strengths take turns, so that each meets every guidance scale and number of steps."""
    steps, guidances = ((13,), (1.0, 3.0)) if quick else ((5, 21, 51), (1.0, 3.0, 7.5))
    finite = [
        Case(PROMPTS[turn], NEGATIVE_PROMPTS[turn], scheduler, turn, _taken(scheduler, count), guidance)
        for (scheduler, count, guidance), turn in _in_turn(schedulers, steps, guidances)
    ]
    stochastic = [Case(PROMPTS[0], eta=eta, seed=11) for eta in (0.5, 1.0) if Scheduler.DDIM in schedulers]
    changed = [
        Case(PROMPTS[0], "blurred", scheduler, 21, 13 if quick else 31, guidance, strength=STRENGTHS[turn])
        for (scheduler, guidance), turn in _in_turn(schedulers, guidances)
    ]
    return finite + stochastic + changed


def _in_turn(*axes: Sequence[Any]) -> Iterator[tuple[tuple[Any, ...], int]]:
    """Yield the combinations, each with a number from 0 to 2 that differs between neighbours on every axis."""
    for places in itertools.product(*(range(len(axis)) for axis in axes)):
        yield tuple(axis[place] for axis, place in zip(axes, places, strict=True)), sum(places) % 3


def _taken(scheduler: Scheduler, count: int) -> int:
    """Return a number of steps within what models were distilled at."""
    return min(count, 50) if scheduler in (Scheduler.LCM, Scheduler.TCD) else count


async def compare(model: Path, quick: bool) -> Compared:
    reference = DiffusersReference(model)
    with worker_process(model) as address:
        async with open_channel(address, RpcChannelSettings()) as channel:
            status = await await_serving(channel)
            worker = WorkerUnderTest(channel, status.held)
            schedulers = [Scheduler(name) for name in status.held.schedulers]
            return [(case, await difference(worker, reference, case)) for case in all_cases(schedulers, quick)]


@contextmanager
def checkpoint(name: str) -> Iterator[Path]:
    """Yield a directory of the zoo, or a temporary random checkpoint."""
    if name not in RANDOM_CHECKPOINTS:
        yield WEIGHTS / name
        return
    with tempfile.TemporaryDirectory(prefix="pmt-") as folder:
        yield RANDOM_CHECKPOINTS[name](Path(folder) / name)


def zoo_pipelines() -> list[str]:
    """Return the zoo's checkpoints that exist."""
    entries = json.loads((WEIGHTS / "registry.json").read_text(encoding="utf-8"))["models"]
    return [entry["path"] for entry in entries if entry["kind"] == "pipeline" and (WEIGHTS / entry["path"]).is_dir()]


def figures_of(compared: dict[str, Compared]) -> list[Figure]:
    """Return the figures over all first, then by checkpoint and kind of start, without images that diffusers cannot
    generate."""
    finite = {name: [(c, value) for c, value in pairs if value is not None] for name, pairs in compared.items()}
    groups = {"max abs difference of the final latents": [value for pairs in finite.values() for _, value in pairs]}
    for name, pairs in finite.items():
        groups[f"{name}, text to image"] = [value for case, value in pairs if case.strength is None]
        groups[f"{name}, from an image"] = [value for case, value in pairs if case.strength is not None]
    return [measured(name, values, max, TARGET) for name, values in groups.items()]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--models", nargs="+", default=[], help="names in zoo/weights, or of random checkpoints; all of both otherwise"
    )


def main() -> int:
    options: Options = parse_options("golden_families", __doc__, add_options)
    torch.set_num_threads(1)
    compared = {}
    for name in options.rest["models"] or [*zoo_pipelines(), *RANDOM_CHECKPOINTS]:
        with checkpoint(name) as model:
            compared[name] = asyncio.run(compare(model, options.quick))
    not_finite = sum(value is None for pairs in compared.values() for _, value in pairs)
    notes: Notes = {"dtype": "float32", "threads": 1, "not_finite_in_diffusers": not_finite}
    return publish(options, figures_of(compared), notes=notes)


if __name__ == "__main__":
    raise SystemExit(main())
