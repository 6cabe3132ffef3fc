"""A first picture before anybody asks: health says SERVING only when the whole path has run once."""

from pentimento.domain.fleet import HeldModel
from pentimento.domain.generation import Attempt, FromNoise, GenerationSpec, Route, Scheduler
from services.unet_worker.execution import AttemptRunner
from services.unet_worker.order import ExecuteOrder


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
