"""Refuse prompts and images that the operator's classifiers call unsafe; without a verdict nothing is returned."""

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic

from pentimento.clients.discriminator import SafetyClient
from pentimento.clients.replicas import ServiceReplicas
from pentimento.domain.errors import PentimentoError, Unavailable, UnsafeContent
from pentimento.domain.reasons import Reason
from pentimento.domain.safety import IMAGE, PROMPT, SafetyVerdict
from services.frontdoor.metrics import UNSAFE

TIMEOUT_S = 5.0
RETRY_MS = 1000
# A process that has just started is called for so long: gRPC waits up to 2 s before it connects again.
STARTS_S, AGAIN_S = 3.0, 0.1


class SafetyGate:
    """Ask the least busy process that may have the classifier, and another one where one fails. `subjects`: prompts,
    images or both are checked."""

    def __init__(
        self,
        open_client: Callable[[str], SafetyClient],
        addresses: tuple[str, ...],
        may_check: Callable[[str, str], bool],
        subjects: frozenset[str],
    ) -> None:
        self._replicas = ServiceReplicas(open_client)
        self._replicas.follow(addresses)
        self._addresses = addresses
        self._may_check = may_check
        self._subjects = subjects

    @property
    def checks_images(self) -> bool:
        """Return whether images are checked: previews are then withheld, since they come before a verdict."""
        return IMAGE in self._subjects

    async def check_prompt(self, prompt: str) -> SafetyVerdict | None:
        """Return the verdict, None if prompts are not checked. Raise UnsafeContent UNSAFE_PROMPT for an unsafe one,
        Unavailable SAFETY_UNAVAILABLE without a verdict."""
        return await self._check(PROMPT, Reason.UNSAFE_PROMPT, lambda one: one.check_prompt(prompt, TIMEOUT_S))

    async def check_image(self, image: bytes) -> SafetyVerdict | None:
        """Return the verdict as `check_prompt`. Raise UnsafeContent UNSAFE_IMAGE, Unavailable SAFETY_UNAVAILABLE."""
        return await self._check(IMAGE, Reason.UNSAFE_IMAGE, lambda one: one.check_image(image, TIMEOUT_S))

    async def _check(
        self, subject: str, reason: Reason, ask: Callable[[SafetyClient], Awaitable[SafetyVerdict]]
    ) -> SafetyVerdict | None:
        if subject not in self._subjects:
            return None
        try:
            verdict = await self._verdict(subject, ask)
        except PentimentoError as error:
            message = f"no classifier gives a verdict ({error.reason}), and nothing is returned without one"
            raise Unavailable(Reason.SAFETY_UNAVAILABLE, message, retry_after_ms=RETRY_MS) from None
        if not verdict.unsafe:
            return verdict
        UNSAFE.labels(subject).inc()
        message = f"{subject}: refused as {verdict.label!r} by this deployment's classifier"
        raise UnsafeContent(reason, message, verdict)

    async def _verdict(self, subject: str, ask: Callable[[SafetyClient], Awaitable[SafetyVerdict]]) -> SafetyVerdict:
        """Return the first verdict. Raises the last error of the processes, Unavailable ones after `STARTS_S`."""
        until_s = monotonic() + STARTS_S
        while True:
            able = [at for at in self._addresses if self._may_check(at, subject)]
            addresses = self._replicas.least_busy(able or self._addresses, self._addresses.index)
            try:
                return await self._replicas.ask(addresses, ask, lambda address, error: True)
            except Unavailable:
                if monotonic() > until_s:
                    raise
            await asyncio.sleep(AGAIN_S)
