"""Refuse prompts and images that the operator's classifiers call unsafe; without a verdict nothing is returned."""

from collections.abc import Awaitable, Callable
from itertools import cycle

from pentimento.clients.safety import SafetyClient
from pentimento.domain.errors import InvalidArgument, PentimentoError, Unavailable
from pentimento.domain.reasons import Reason
from pentimento.domain.safety import IMAGE, PROMPT, SafetyVerdict
from services.frontdoor.metrics import UNSAFE

TIMEOUT_S = 5.0
RETRY_MS = 1000


class SafetyGate:
    """Ask classifiers in turn, and another one where one fails. `subjects`: prompts, images or both are checked."""

    def __init__(self, clients: tuple[SafetyClient, ...], subjects: frozenset[str]) -> None:
        self._clients = clients
        self._subjects = subjects
        self._turns = cycle(range(len(clients))) if clients else None

    @property
    def checks_images(self) -> bool:
        """Return whether images are checked: previews are then withheld, since they come before a verdict."""
        return IMAGE in self._subjects

    async def check_prompt(self, prompt: str) -> None:
        """Raise InvalidArgument UNSAFE_PROMPT for an unsafe one, Unavailable SAFETY_UNAVAILABLE without a verdict."""
        if PROMPT in self._subjects:
            verdict = await self._asked(lambda one: one.check_prompt(prompt, TIMEOUT_S))
            self._refuse_unsafe(PROMPT, Reason.UNSAFE_PROMPT, verdict)

    async def check_image(self, image: bytes) -> None:
        """Raise InvalidArgument UNSAFE_IMAGE for an unsafe one, Unavailable SAFETY_UNAVAILABLE without a verdict."""
        if IMAGE in self._subjects:
            verdict = await self._asked(lambda one: one.check_image(image, TIMEOUT_S))
            self._refuse_unsafe(IMAGE, Reason.UNSAFE_IMAGE, verdict)

    async def _asked(self, ask: Callable[[SafetyClient], Awaitable[SafetyVerdict]]) -> SafetyVerdict:
        last = "no classifier has an address"
        for _ in self._clients:
            assert self._turns is not None
            try:
                return await ask(self._clients[next(self._turns)])
            except PentimentoError as error:
                last = error.reason
        message = f"no classifier gives a verdict ({last}), and nothing is returned without one"
        raise Unavailable(Reason.SAFETY_UNAVAILABLE, message, retry_after_ms=RETRY_MS)

    def _refuse_unsafe(self, subject: str, reason: Reason, verdict: SafetyVerdict) -> None:
        if not verdict.unsafe:
            return
        UNSAFE.labels(subject).inc()
        message = f"{subject}: refused as {verdict.label!r} by this deployment's classifier"
        told = {"label": verdict.label, "probability": f"{verdict.probability:.3f}", "limit": f"{verdict.limit:g}"}
        raise InvalidArgument(reason, message, metadata=told)
