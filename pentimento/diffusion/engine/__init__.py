"""Run denoising steps: one thread owns the model and runs one step at a time, over batches that requests join and leave
at any step. `pentimento.policies.step_batching` chooses the requests of the next step.

| module | contents |
| --- | --- |
| `thread` | the thread: takes requests, wakes, waits, closes |
| `loop` | one step of one batch, in ten lines |
| `rows` | the buffers of a group's forward passes, stacked residuals, LoRAs |
| `job` | one request inside the engine, the handle that stops it, listeners and observers |
| `pairing` | guidance halves computed on a peer |
| `denoiser` | the forward pass, eager or compiled |
| `split_passes` | parts of passes: until a residual is missing, or the outer layers on earlier deep features |
| `captured` | forward passes recorded as CUDA graphs |
| `probe` | how many requests fit, by the memory of a forward pass, measured before serving |
"""

from pentimento.diffusion.engine.captured import cuda_recorder, replaying
from pentimento.diffusion.engine.denoiser import CompiledDenoiser, Denoiser, batch_sizes_up_to
from pentimento.diffusion.engine.job import BatchReport, DenoisingListener, EngineJob, EngineObserver, FinishedDenoising
from pentimento.diffusion.engine.loop import EngineSettings, StepLoop
from pentimento.diffusion.engine.probe import (
    BatchLimits,
    Interrupted,
    MemoryBudget,
    MemoryModel,
    MemoryProbe,
    ProbedMemory,
)
from pentimento.diffusion.engine.split_passes import has_features, reused_step_share
from pentimento.diffusion.engine.thread import StepEngine

__all__ = [
    "BatchLimits",
    "BatchReport",
    "CompiledDenoiser",
    "Denoiser",
    "DenoisingListener",
    "EngineJob",
    "EngineObserver",
    "EngineSettings",
    "FinishedDenoising",
    "Interrupted",
    "MemoryBudget",
    "MemoryModel",
    "MemoryProbe",
    "ProbedMemory",
    "StepEngine",
    "StepLoop",
    "batch_sizes_up_to",
    "cuda_recorder",
    "has_features",
    "replaying",
    "reused_step_share",
]
