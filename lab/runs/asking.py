"""An arrival as the public API takes it."""

from lab.workloads import Arrival, Workload
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.image_request import AskedControlNet, AskedLora, CacheMode, ImageRequest

LARGEST_SEED = 2**63 - 1


def check_askable(workload: Workload, conditioning_image: bytes) -> None:
    """Raise InvalidArgument for a workload with ControlNets: it has no condition images."""
    for number, arrival in enumerate(workload.arrivals):
        if arrival.controlnets and not conditioning_image:
            raise InvalidArgument.of(f"arrivals[{number}].controlnets", "need a conditioning image, got none")
        if not 0 <= arrival.seed <= LARGEST_SEED:
            raise InvalidArgument.of(f"arrivals[{number}].seed", f"must be between 0 and 2^63 - 1, got {arrival.seed}")


def request_of(
    arrival: Arrival, left_s: float | None, cache: CacheMode | None = None, conditioning_image: bytes = b""
) -> ImageRequest:
    """Return the request. `left_s` is the rest of the deadline; None sends none."""
    return ImageRequest(
        prompt=arrival.prompt,
        model=arrival.model,
        num_inference_steps=arrival.steps or None,
        seed=arrival.seed,
        loras=tuple(AskedLora(name) for name in arrival.loras),
        controlnets=tuple(AskedControlNet(name, conditioning_image) for name in arrival.controlnets),
        cache=cache,
        deadline_ms=None if left_s is None else max(1, round(left_s * 1000)),
    )
