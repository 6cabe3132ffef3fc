"""Choose the steps between the previews of a streamed image."""

import time

from pentimento.clients.image import ImageClient

FRESH_S = 10.0
LIST_TIMEOUT_S = 5.0
MAX_INTERVAL_STEPS = 1000


class UsualSteps:
    """Cache the models' default steps, as the frontdoor last reported them."""

    def __init__(self) -> None:
        self._steps: dict[str, int] = {}
        self._asked_at = float("-inf")

    async def of(self, model: str, client: ImageClient) -> int:
        """Return a model's default steps; without a known model the fewest of all models."""
        now = time.monotonic()
        if now - self._asked_at > FRESH_S:
            self._steps = {one.name: one.default_steps for one in await client.list_models(LIST_TIMEOUT_S)}
            self._asked_at = now
        return self._steps.get(model) or min(self._steps.values(), default=1)


def preview_interval(steps: int, partial_images: int) -> int:
    """Return the steps between previews for a number of previews before the image; 0 for none."""
    if not partial_images:
        return 0
    return min(max(steps // (partial_images + 1), 1), MAX_INTERVAL_STEPS)
