"""Before anybody asks: memory is measured, what is to be compiled is compiled, and a first picture is painted. Health
says SERVING only when the whole path has run once."""

import logging

from pentimento.diffusion.engine import (
    BatchLimits,
    CompiledDenoiser,
    Denoiser,
    MemoryBudget,
    batch_sizes_up_to,
    measure_memory,
)
from pentimento.diffusion.families import BatchKey, DiffusionModel
from pentimento.domain.fleet import HeldModel
from pentimento.domain.generation import Attempt, FromNoise, GenerationSpec, Route, Scheduler
from services.unet_worker.execution import AttemptRunner
from services.unet_worker.order import ExecuteOrder

logger = logging.getLogger(__name__)
_MIB = 2**20


def prepare_denoiser(
    model: DiffusionModel, denoiser: Denoiser, limits: BatchLimits, key: BatchKey, budget_bytes: int
) -> None:
    """On the engine's thread: finds how many requests of `key` fit the budget, and compiles for that many. Raises
    InvalidArgument, naming the budget, when not even one of the model's own size fits."""
    _measure(model, denoiser, limits, key, budget_bytes)
    limits.check(key)
    if isinstance(denoiser, CompiledDenoiser):
        denoiser.warm(key, batch_sizes_up_to(limits.limit(key)))
        _measure(model, denoiser, limits, key, budget_bytes)  # graphs keep memory of their own


def _measure(model: DiffusionModel, denoiser: Denoiser, limits: BatchLimits, key: BatchKey, budget_bytes: int) -> None:
    memory = measure_memory(model, denoiser.predict, key, batch_sizes_up_to(limits.max_batch))
    if memory is None:
        logger.warning("memory cannot be measured here: batches are bounded by --max-batch alone")
        return
    limits.set_budget(MemoryBudget(budget_bytes, memory))
    logger.info(
        "batches of %d fit",
        limits.limit(key),
        extra={"budget_mib": budget_bytes // _MIB, "weights_mib": int(memory.fixed_bytes) // _MIB},
    )


async def warm_up(runner: AttemptRunner, held: HeldModel) -> None:
    """Two guided steps at the model's own size, decoded and encoded. Raises what a request would get."""
    spec = GenerationSpec(
        prompt="",
        negative_prompt="",
        model=held.model,
        width_px=held.default_width_px,
        height_px=held.default_height_px,
        num_inference_steps=min(2, held.max_steps),
        guidance_scale=2.0,
        scheduler=Scheduler(held.schedulers[0]),
        seed=0,
    )
    route = Route("warm-up", FromNoise(), held.model, held.model_digest)
    attempt = Attempt("warm-up", 0, 0, "", 0, "")
    await runner.run(ExecuteOrder(attempt, spec, route, held.worker_generation), lambda event: None)
