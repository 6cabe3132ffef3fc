"""Plans of shadows: model and steps of a hit that is generated again, and hits that never are."""

import struct
from dataclasses import replace

import pytest

from lab.fixtures.held_models import HELD
from pentimento.domain.embedding import Embedding
from pentimento.domain.errors import FailedPrecondition, NotFound
from pentimento.domain.generation import (
    Donor,
    FromImage,
    FromLatent,
    FromNoise,
    GenerationSpec,
    LoraSelection,
    NoiseForm,
    ObjectReference,
    Provenance,
    Route,
    Scheduler,
    SpecInput,
)
from pentimento.domain.image_request import ImageFormat
from pentimento.domain.online_quality import ReuseQuality
from services.frontdoor.quality.comparison import cosine
from services.frontdoor.quality.shadow_plans import (
    LightImage,
    may_be_compared,
    plan_better,
    plan_shadow,
    plan_trial,
)
from services.frontdoor.requests.pins import Recorded
from services.frontdoor.routing.starts import Trial
from services.frontdoor.workers.catalogue import Catalogue

OBJECT = ObjectReference("key", "sha256:0", 10)
DONOR = Donor("entry", "sha256:0", 0.91)
LATENT = FromLatent(OBJECT, 20, 50, 4.5, DONOR)
IMAGE = FromImage(OBJECT, 10, NoiseForm.VARIANCE_PRESERVING, DONOR)
SPEC = GenerationSpec("a red circle", "", "tiny", 32, 32, 50, 3.0, Scheduler.EULER, seed=7)
HEAVY = replace(HELD, model="heavy", model_digest="sha256:heavy", default_steps=30, default_guidance_scale=5.0)


def provenance_of(
    start: FromNoise | FromLatent | FromImage = LATENT, steps_saved: int = 20, **changes: object
) -> Provenance:
    made = Provenance(
        request_id="r-1",
        spec=SPEC,
        route=Route("route", start, "tiny", "sha256:model"),
        model_digest="sha256:model",
        worker_id="w1",
        worker_generation=1,
        attempt_number=1,
        steps_run=50 - steps_saved,
        steps_saved=steps_saved,
        build_version="0",
        device_seconds=3.0,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


class Rows:
    """A gateway that has these rows."""

    def __init__(self, *rows: ReuseQuality) -> None:
        self.rows = rows

    async def reuse_quality(self, model_digest: str, timeout_s: float | None = None) -> tuple[ReuseQuality, ...]:
        return self.rows if model_digest == "sha256:model" else ()


def row(*, from_image: bool, reference: str) -> ReuseQuality:
    return ReuseQuality(from_image, 0.4, 0.8, 0.8, 0.9, "a profile", reference)


ROWS = Rows(row(from_image=False, reference="sha256:model"), row(from_image=True, reference="sha256:heavy"))


def catalogue() -> Catalogue:
    found = Catalogue("")
    found.learn(HELD)
    found.learn(HEAVY)
    return found


def recorded(provenance: Provenance) -> Recorded:
    return Recorded(provenance, ImageFormat.PNG, "sha256:0")


def test_hit_with_kept_start_may_be_compared() -> None:
    assert may_be_compared(provenance_of())
    assert may_be_compared(provenance_of(IMAGE, 10))


@pytest.mark.parametrize(
    "changed",
    [
        provenance_of(FromNoise(), 0),
        provenance_of(steps_saved=0),
        provenance_of(inputs=(SpecInput("init_image.image", OBJECT),)),
        provenance_of(spec=replace(SPEC, loras=(LoraSelection("neon"),))),
        provenance_of(route=replace(provenance_of().route, replay_of="r-0")),
        provenance_of(route=replace(provenance_of().route, thinned_steps=(12, 14, 16))),
    ],
    ids=["from noise", "the start could not be read", "images of its own", "a LoRA", "a replay", "steps left out"],
)
def test_other_images_are_not(changed: Provenance) -> None:
    assert not may_be_compared(changed)


LIGHT = LightImage("light", 0.8, "light", "heavy")


def test_accepted_light_image_may_be_compared_if_from_noise() -> None:
    assert may_be_compared(provenance_of(FromNoise(), 0), LIGHT)
    assert not may_be_compared(provenance_of(), LIGHT)
    assert not may_be_compared(provenance_of(FromNoise(), 0, spec=replace(SPEC, loras=(LoraSelection("neon"),))), LIGHT)


def test_accepted_light_image_is_compared_with_next_stage() -> None:
    plan = plan_better("t", recorded(provenance_of(FromNoise(), 0)), LIGHT, catalogue())

    assert (plan.held, plan.light) == (HEAVY, LIGHT)
    assert (plan.spec.model, plan.spec.num_inference_steps, plan.spec.seed) == ("heavy", 30, SPEC.seed)
    with pytest.raises(NotFound, match="next stage"):
        plan_better("t", recorded(provenance_of(FromNoise(), 0)), replace(LIGHT, better_model="away"), catalogue())


def test_trial_from_image_is_generated_by_small_model_and_compared_with_served_image() -> None:
    trial = Trial(replace(IMAGE, start_step=18, reference_model_digest="sha256:model"), "sha256:heavy", 28)
    plan = plan_trial("t", recorded(provenance_of(FromNoise(), 0)), trial, catalogue())
    seen = plan.compared_hit("sha256:clip", 0.2, 0.3)

    assert (plan.held, plan.spec.model, plan.spec.num_inference_steps) == (HEAVY, "heavy", 28)
    assert (seen.model_digest, seen.reference_model_digest) == ("sha256:heavy", "sha256:model")
    assert (seen.from_image, seen.skipped_steps, seen.step_count, seen.similarity) == (True, 18, 28, 0.91)
    # The request has 30 default steps of 0.06 s, and 10/28 remain.
    assert plan.expected_s == pytest.approx(30 * 0.06 * 10 / 28)


@pytest.mark.parametrize(
    ("trial", "reason"),
    [
        (Trial(LATENT, "sha256:heavy", 50), "NOT_WATCHED"),
        (Trial(replace(IMAGE, reference_model_digest="sha256:other"), "sha256:heavy", 50), "NOT_WATCHED"),
        (Trial(replace(IMAGE, reference_model_digest="sha256:model"), "sha256:away", 50), "MODEL_GONE"),
    ],
    ids=["a latent of another model", "a pair with another model", "a model without a worker"],
)
def test_plan_trial_rejects_image_of_other_comparison(trial: Trial, reason: str) -> None:
    with pytest.raises(NotFound) as refused:
        plan_trial("t", recorded(provenance_of(FromNoise(), 0)), trial, catalogue())

    assert refused.value.reason == reason


async def test_latents_are_compared_with_their_own_model_of_the_same_seed_and_steps() -> None:
    plan = await plan_shadow("t", recorded(provenance_of()), ROWS, catalogue())  # type: ignore[arg-type]

    assert (plan.spec, plan.held) == (SPEC, HELD)
    # Three seconds for 30 of its 50 steps.
    assert plan.expected_s == pytest.approx(5.0)


@pytest.mark.parametrize("pair", ["", "sha256:heavy"], ids=["of a start that names no pair", "of its pair"])
async def test_image_is_compared_with_large_model_of_profile(pair: str) -> None:
    image = replace(IMAGE, reference_model_digest=pair)
    others = (row(from_image=True, reference="sha256:other"), row(from_image=True, reference="sha256:heavy"))
    rows = Rows(*(others if pair else reversed(others)))
    plan = await plan_shadow("t", recorded(provenance_of(image, 10)), rows, catalogue())  # type: ignore[arg-type]
    seen = plan.compared_hit("sha256:clip", 0.2, 0.3)

    assert plan.held == HEAVY
    assert (plan.spec.model, plan.spec.num_inference_steps, plan.spec.guidance_scale) == ("heavy", 30, 5.0)
    assert (plan.spec.seed, plan.spec.prompt) == (SPEC.seed, SPEC.prompt)
    assert (seen.model_digest, seen.reference_model_digest) == ("sha256:model", "sha256:heavy")
    # The hit's own steps, not the compared image's.
    assert (seen.from_image, seen.skipped_steps, seen.step_count) == (True, 10, 50)
    assert (seen.similarity, seen.quality, seen.scratch_quality) == (0.91, 0.2, 0.3)


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (Rows(), "NOT_WATCHED"),
        (Rows(row(from_image=True, reference="sha256:heavy")), "NOT_WATCHED"),
        (Rows(row(from_image=False, reference="sha256:away")), "MODEL_GONE"),
    ],
)
async def test_no_image_without_threshold_or_model(rows: Rows, reason: str) -> None:
    with pytest.raises(NotFound) as refused:
        await plan_shadow("t", recorded(provenance_of()), rows, catalogue())  # type: ignore[arg-type]
    assert refused.value.reason == reason


def vector(*values: float) -> Embedding:
    return Embedding(struct.pack(f"<{len(values)}f", *values), len(values), "sha256:clip")


def test_cosine_of_unit_vectors() -> None:
    assert cosine(vector(0.6, 0.8), vector(0.8, 0.6)) == pytest.approx(0.96)
    assert cosine(vector(1.0, 0.0), vector(-1.0, 0.0)) == -1.0
    assert cosine(vector(1.0000001, 0.0), vector(1.0, 0.0)) <= 1.0
    with pytest.raises(FailedPrecondition):
        cosine(vector(1.0), vector(1.0, 0.0))
