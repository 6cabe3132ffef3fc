"""Ask discriminators about a cascade's light image, before and after it runs, and decide whether its stage pays."""

from collections.abc import Sequence
from dataclasses import dataclass

from pentimento.dataplane import Dataplane
from pentimento.dataplane.cascade import own_threshold
from pentimento.dataplane.predictions import predicted_wait_s
from pentimento.domain.embedding import Embedding, PromptEmbedding
from pentimento.domain.foresight import PromptForesight
from pentimento.domain.generation import Start
from pentimento.domain.image_request import ResolvedRequest
from pentimento.policies.light_stages import leaves_out_light, needs_no_score
from pentimento.policies.plan.entry import NOISE, Stage
from pentimento.policies.worth import Worth
from services.frontdoor.requests.jobs import Execution
from services.frontdoor.routing.bounded_calls import Note
from services.frontdoor.routing.discriminators import Discriminators
from services.frontdoor.routing.prompts import PromptEmbedder
from services.frontdoor.routing.start_choice import StartChoice
from services.frontdoor.routing.starts import discriminator_of, kind_of, may_be_scored

# Seconds that a request waits for a prediction from its prompt, times the wait factor.
FORESEE_S = 0.25
# Seconds until the next discriminator is called for a score, times the wait factor.
SCORE_S = 1.0


@dataclass(frozen=True)
class Foresight:
    """Predict from prompt and prices whether a cascade's light stage is worth running, and score its images. `worth` is
    that of predictions, by cascade. Methods that take a `price` expect that of `light_price`."""

    dataplane: Dataplane
    choice: StartChoice
    prompts: PromptEmbedder
    discriminators: Discriminators
    worth: Worth
    wait_factor: float

    def light_price(self, resolved: ResolvedRequest, stages: Sequence[Stage]) -> float:
        """Return the device seconds of the light stage, prediction and score included, ÷ those of the next one.

        Return 0, for a stage that pays, if a plan decides, if no speed is known, if the next stage has no worker, or if
        the services have separate processors and the next stage has a queue: then the light workers take load off it.
        """
        state, shared_s = self.dataplane.state, self.worth.cost_s
        if not may_be_scored(stages) or state.index.routes_requests:
            return 0.0
        following = state.pools.get(stages[1].pool)
        if following is None or not following.workers:
            return 0.0
        if not shared_s and predicted_wait_s(state, stages[1].pool) > 0.0:
            return 0.0
        light_s, next_s = (self.choice.noise_s(resolved, stage) for stage in stages[:2])
        return (light_s + shared_s) / next_s if light_s is not None and next_s else 0.0

    def why_left_out(self, resolved: ResolvedRequest, stages: Sequence[Stage], price: float) -> str:
        """Return why the cascade does not pay for most requests, at the price of its light stage; "" if it does."""
        if not 0.0 < price < 1.0:
            return ""
        return self.worth.why_left_out(discriminator_of(stages, 0), self.choice.noise_s(resolved, stages[1]))

    def asks_cascade(self, resolved: ResolvedRequest, stages: Sequence[Stage]) -> bool:
        return self.worth.asks(discriminator_of(stages, 0), self.choice.noise_s(resolved, stages[1]))

    def note_gain(self, stages: Sequence[Stage], price: float, start: Start, foreseen: PromptForesight | None) -> None:
        """Note the share of the next stage's seconds that a prediction saves: the probability that the light image is
        accepted minus the light stage's price; 0 where the light stage is skipped."""
        if foreseen is None or not 0.0 < price < 1.0:
            return
        skipped = self.is_left_out(stages, price, start, foreseen)
        self.worth.note(discriminator_of(stages, 0), 0.0 if skipped else foreseen.probability - price)

    def foresees(self, stages: Sequence[Stage], price: float) -> bool:
        """Return whether the discriminator predicts from the prompt if the light image would be accepted."""
        if len(stages) < 2 or price >= 1.0 or self.dataplane.state.settings.skip_light_below == 0.0:
            return False
        return self.prompts.texts is not None and self.discriminators.may_read_prompts(discriminator_of(stages, 0))

    async def foresee(
        self, stages: Sequence[Stage], price: float, start: Start, embedding: PromptEmbedding | None, note: Note
    ) -> PromptForesight | None:
        """Return the prediction from the prompt for the light image from that start.

        None if such a start is not predicted, and with a note if no discriminator answered in time. Raises nothing.
        """
        if not self.foresees(stages, price) or self._threshold(stages[0], start, None) is None:
            return None
        told: PromptForesight | None = None
        first, cascade = stages[0], discriminator_of(stages, 0)
        if (prompt := self.prompts.scored(embedding)) is not None:
            own, timeout_s = self.dataplane.state.settings.confidence_threshold, FORESEE_S * self.wait_factor
            threshold = first.threshold(NOISE) if first.cascade else own
            told = await self.discriminators.foresee(cascade, prompt, timeout_s, first.discriminator_digest, threshold)
        if told is None and self.discriminators.may_read_prompts(cascade):
            note("foresight skipped: no discriminator answered")
        return told

    async def score(self, stages: Sequence[Stage], execution: Execution, prompt: Embedding | None) -> float | None:
        """Return the confidence in an attempt's image; None if no discriminator answers in time."""
        assert execution.result is not None
        cascade, digest = discriminator_of(stages, execution.stage), stages[execution.stage].discriminator_digest
        key = (execution.attempt.request_id, execution.attempt.fencing_token)
        timeout_s = SCORE_S * self.wait_factor
        return await self.discriminators.score(cascade, key, execution.result.image, prompt, timeout_s, digest)

    def is_left_out(
        self, stages: Sequence[Stage], price: float, start: Start, foreseen: PromptForesight | None
    ) -> bool:
        """Return whether the dataplane would skip the light stage now."""
        if len(stages) < 2:
            return False
        bound = self.dataplane.state.settings.skip_light_below
        return leaves_out_light(foreseen, bound, self._threshold(stages[0], start, foreseen), price)

    def unscored_note(self, stages: Sequence[Stage], start: Start, foreseen: PromptForesight | None) -> str:
        """Return the provenance's note that the light image needs no score now, and why; "" if it is scored."""
        threshold = self._threshold(stages[0], start, foreseen) if len(stages) > 1 else None
        if foreseen is None or threshold is None or not needs_no_score(foreseen, threshold):
            return ""
        predicted = f"the prompt predicts a good image with probability {foreseen.probability:.3f}"
        return f"{stages[0].model} needs no score: {predicted}"

    def _threshold(self, first: Stage, start: Start, foreseen: PromptForesight | None) -> float | None:
        """Return the confidence that a light image must exceed; None if images from that start are not scored."""
        if kind_of(start) != NOISE:
            return None
        if first.cascade:
            return first.threshold(NOISE)
        state = self.dataplane.state
        return None if state.index.routes_requests else own_threshold(state, foreseen)


def left_out_note(model: str, foreseen: PromptForesight | None, price: float, left_out: str = "") -> str:
    """Return the provenance's note that a light model was skipped, and why. `left_out`: why the cascade is."""
    if left_out:
        return f"{model} skipped: {left_out}"
    costs = f"it takes {price:.2f} of the next stage's device seconds" if price else ""
    if foreseen is None:
        return f"{model} skipped: {costs}"
    predicted = f"the prompt predicts a good image with probability {foreseen.probability:.3f}"
    return f"{model} skipped: " + ", ".join(filter(None, (predicted, costs)))
