"""Compare final latents of a worker process with diffusers' own pipelines."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lab.fixtures.diffusers_reference import Case, DiffusersReference
from lab.fixtures.worker_under_test import WorkerUnderTest, await_serving, difference
from pentimento.devices.choices import DeviceChoice
from pentimento.domain.generation import Scheduler
from tests.integration.unet_worker.conftest import serve


async def compare(
    checkpoint: Path,
    cases_for: Callable[[Sequence[Scheduler]], list[Case]],
    device: str = "cpu",
    reference: Path | None = None,
    **settings: Any,
) -> tuple[int, dict[Case, float]]:
    """Return how many cases there are for the schedulers that the worker offers, and the largest absolute difference of
    each that diffusers itself can generate, from the checkpoint `reference` if one is given. `settings` go to the
    worker."""
    pipelines = DiffusersReference(reference or checkpoint, device)
    with tempfile.TemporaryDirectory(prefix="pmt-") as folder:
        async with serve(checkpoint, Path(folder), device=DeviceChoice(device), **settings) as served:
            worker = WorkerUnderTest(served.channel, (await await_serving(served.channel)).held)
            cases = cases_for([Scheduler(name) for name in worker.held.schedulers])
            answers = {case: await difference(worker, pipelines, case) for case in cases}
    return len(cases), {case: value for case, value in answers.items() if value is not None}
