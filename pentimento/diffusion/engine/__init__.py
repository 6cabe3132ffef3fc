"""The step engine: one thread owns the model and runs one denoising step at a time, over batches that requests join and
leave at any step. Whose step is next, `pentimento.policies.step_batching` says.

| module | what |
| --- | --- |
| `thread` | the thread: takes requests, wakes, waits, closes |
| `loop` | one step of one batch, in ten lines |
| `limits` | how many requests fit |
| `rows` | the buffers of a group's forward passes |
| `job` | one request inside the engine |
| `pairing` | pictures whose other half of the guidance a peer computes |
| `seams` | ControlNet residuals and LoRAs, by rows |
| `denoiser` | the forward pass, eager or compiled |
| `captured` | forward passes recorded as CUDA graphs |
| `probe` | what a forward pass takes, measured before serving |
| `listening` | what is asked and told |
"""

from pentimento.diffusion.engine.captured import cuda_recorder, replaying
from pentimento.diffusion.engine.denoiser import (
    CompiledDenoiser,
    CompileMode,
    Denoiser,
    EagerDenoiser,
    batch_sizes_up_to,
)
from pentimento.diffusion.engine.limits import BatchLimits, MemoryBudget, MemoryModel
from pentimento.diffusion.engine.listening import (
    BatchReport,
    EngineObserver,
    FinishedPainting,
    PaintingListener,
    PaintingTicket,
    SilentListener,
    SilentObserver,
)
from pentimento.diffusion.engine.loop import StepLoop
from pentimento.diffusion.engine.probe import Interrupted, MemoryProbe
from pentimento.diffusion.engine.settings import EngineSettings
from pentimento.diffusion.engine.thread import StepEngine

__all__ = [
    "BatchLimits",
    "BatchReport",
    "CompileMode",
    "CompiledDenoiser",
    "Denoiser",
    "EagerDenoiser",
    "EngineObserver",
    "EngineSettings",
    "FinishedPainting",
    "Interrupted",
    "MemoryBudget",
    "MemoryModel",
    "MemoryProbe",
    "PaintingListener",
    "PaintingTicket",
    "SilentListener",
    "SilentObserver",
    "StepEngine",
    "StepLoop",
    "batch_sizes_up_to",
    "cuda_recorder",
    "replaying",
]
