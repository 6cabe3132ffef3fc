"""Each wrong field is refused by its name, with its limit."""

import math
from dataclasses import replace

import pytest

from pentimento.domain.errors import FailedPrecondition, InvalidArgument, NotFound
from pentimento.domain.execution import LatentParallelPeer
from pentimento.domain.fleet import Capability
from pentimento.domain.generation import (
    ControlNetMode,
    ControlNetSelection,
    InitImage,
    LoraSelection,
    NoiseForm,
    ObjectReference,
    Scheduler,
)
from services.unet_worker.attempts.order import ExecuteOrder
from services.unet_worker.attempts.validation import AttemptLimits, check_order
from tests.unit.unet_worker.orders import FROM_IMAGE, FROM_LATENT, HELD, ORDER, ROUTE, SPEC, order_with


def check(order: ExecuteOrder) -> None:
    check_order(order, HELD, NoiseForm.VARIANCE_PRESERVING, AttemptLimits(max_prompt_chars=100))


@pytest.mark.parametrize(
    "order",
    [
        ORDER,
        order_with(scheduler=Scheduler.EULER),
        order_with(eta=1.0),
        order_with(guidance_scale=0.0),
        order_with(width_px=64, height_px=8),
        order_with(num_inference_steps=100),
        order_with(seed=2**64 - 1),
        order_with(start=FROM_LATENT),
        order_with(start=replace(FROM_LATENT, renoised_steps=FROM_LATENT.resume_step - 1)),
        order_with(start=replace(FROM_LATENT, renoised_steps=FROM_LATENT.resume_step, retaken_steps=1)),
        order_with(start=FROM_IMAGE),
        order_with(init_image=InitImage(b"png", 0.5)),
        order_with(init_image=InitImage(b"png", 0.5, b"png")),
        replace(ORDER, image_format="webp", deadline_remaining_ms=1),
        replace(ORDER, image_format="jpeg", encoding_quality=0),
        replace(ORDER, image_format="webp", encoding_quality=100),
    ],
)
def test_sound_orders_are_taken(order: ExecuteOrder) -> None:
    check(order)


@pytest.mark.parametrize(
    ("order", "field"),
    [
        (order_with(prompt="x" * 101), "spec.prompt"),
        (order_with(prompt="a\0b"), "spec.prompt"),
        (order_with(negative_prompt="x" * 101), "spec.negative_prompt"),
        (order_with(width_px=0), "spec.width_px"),
        (order_with(width_px=-8), "spec.width_px"),
        (order_with(width_px=2**31), "spec.width_px"),
        (order_with(height_px=33), "spec.height_px"),
        (order_with(height_px=72), "spec.height_px"),
        (order_with(num_inference_steps=0), "spec.num_inference_steps"),
        (order_with(num_inference_steps=-1), "spec.num_inference_steps"),
        (order_with(num_inference_steps=10**9), "spec.num_inference_steps"),
        (order_with(guidance_scale=math.nan), "spec.guidance_scale"),
        (order_with(guidance_scale=math.inf), "spec.guidance_scale"),
        (order_with(guidance_scale=-1.0), "spec.guidance_scale"),
        (order_with(eta=math.nan), "spec.eta"),
        (order_with(eta=1.5), "spec.eta"),
        (order_with(eta=0.5, scheduler=Scheduler.EULER), "spec.eta"),
        (order_with(seed=-1), "spec.seed"),
        (order_with(scheduler=Scheduler.DPM_SOLVER_PP_2M), "spec.scheduler"),
        (order_with(init_image=InitImage(b"", 0.5)), "spec.init_image.image"),
        (order_with(init_image=InitImage(b"png", 0.5, b"x" * (16 * 1024 * 1024 + 1))), "spec.init_image.mask"),
        (order_with(init_image=InitImage(b"png", math.nan)), "spec.init_image.strength"),
        (order_with(init_image=InitImage(b"png", 0.1)), "spec.init_image.strength"),
        (order_with(init_image=InitImage(b"png", 1.1)), "spec.init_image.strength"),
        (order_with(init_image=InitImage(b"png", 0.5), start=FROM_IMAGE), "route.start"),
        (order_with(start=replace(FROM_LATENT, resume_step=0)), "route.start.latent.resume_step"),
        (order_with(start=replace(FROM_LATENT, resume_step=9)), "route.start.latent.resume_step"),
        (
            order_with(start=replace(FROM_LATENT, renoised_steps=FROM_LATENT.resume_step)),
            "route.start.latent.renoised_steps",
        ),
        (
            order_with(start=replace(FROM_LATENT, renoised_steps=2, retaken_steps=3)),
            "route.start.latent.retaken_steps",
        ),
        (order_with(start=replace(FROM_IMAGE, renoised_steps=9, retaken_steps=1)), "route.start.image.renoised_steps"),
        (order_with(start=replace(FROM_LATENT, sigma=math.nan)), "route.start.latent.sigma"),
        (order_with(start=replace(FROM_LATENT, sigma=0.0)), "route.start.latent.sigma"),
        (
            order_with(start=replace(FROM_LATENT, latent=replace(FROM_LATENT.latent, size_bytes=2**40))),
            "route.start.latent.latent.size_bytes",
        ),
        (order_with(start=replace(FROM_IMAGE, start_step=8)), "route.start.image.start_step"),
        (order_with(start=replace(FROM_IMAGE, noise_form=NoiseForm.FLOW_MATCHING)), "route.start.image.noise_form"),
        (replace(ORDER, image_format="gif"), "image_format"),
        (replace(ORDER, image_format="jpeg", encoding_quality=101), "encoding_quality"),
        (replace(ORDER, deadline_remaining_ms=-1), "deadline_remaining_ms"),
        (replace(ORDER, peer=LatentParallelPeer("peer", "")), "latent_parallel_peer.address"),
    ],
)
def test_a_field_outside_its_limits_is_named(order: ExecuteOrder, field: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        check(order)
    assert refused.value.violations[0].field == field


@pytest.mark.parametrize(
    ("mode", "from_step"),
    [
        (None, 1),
        (ControlNetMode.SYNCHRONOUS, 1),
        (ControlNetMode.PIPELINED, 0),
        (ControlNetMode.PIPELINED, SPEC.num_inference_steps),
    ],
)
def test_a_mode_of_controlnets_and_the_step_from_which_it_holds_belong_together(
    mode: ControlNetMode | None, from_step: int
) -> None:
    with pytest.raises(InvalidArgument, match=r"route\.pipelined_from_step"):
        check(replace(ORDER, route=replace(ROUTE, controlnet_mode=mode, pipelined_from_step=from_step)))

    check(replace(ORDER, route=replace(ROUTE, controlnet_mode=ControlNetMode.PIPELINED, pipelined_from_step=1)))


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        (replace(ORDER, worker_generation=4), "WORKER_GENERATION_MISMATCH"),
        (order_with(model="other"), "MODEL_MISMATCH"),
        (replace(ORDER, route=replace(ROUTE, model="other")), "MODEL_MISMATCH"),
        (replace(ORDER, route=replace(ROUTE, model_digest="sha256:other")), "MODEL_DIGEST_MISMATCH"),
    ],
)
def test_an_order_for_another_model_or_start_is_fenced_off(order: ExecuteOrder, reason: str) -> None:
    with pytest.raises(FailedPrecondition) as refused:
        check(order)
    assert refused.value.reason == reason


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        (order_with(loras=(LoraSelection("../../etc/passwd"),)), "UNKNOWN_LORA"),
        (order_with(controlnets=(ControlNetSelection("canny", b"png"),)), "UNKNOWN_CONTROLNET"),
    ],
)
def test_adapters_that_are_not_here_are_not_found(order: ExecuteOrder, reason: str) -> None:
    with pytest.raises(NotFound) as refused:
        check(order)
    assert refused.value.reason == reason


DIGEST = "sha256:" + "a" * 64
FETCHES = frozenset({Capability.UPLOADED_LORA})


def uploaded_order(**changes: object) -> ExecuteOrder:
    reference = replace(ObjectReference("adapters/a", DIGEST, 100), **changes)  # type: ignore[arg-type]
    return order_with(loras=(LoraSelection("ink", 1.0, DIGEST, reference),))


def test_a_lora_of_the_object_store_need_not_be_here() -> None:
    limits = AttemptLimits(max_prompt_chars=100)

    check_order(uploaded_order(), HELD, NoiseForm.VARIANCE_PRESERVING, limits, FETCHES)
    with pytest.raises(NotFound, match="'ink'"):
        check(uploaded_order())


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"digest": "sha256:" + "b" * 64}, "spec.loras.object.digest"),
        ({"size_bytes": 0}, "spec.loras.object.size_bytes"),
        ({"size_bytes": 2**33}, "spec.loras.object.size_bytes"),
    ],
)
def test_a_reference_that_cannot_be_the_loras_is_refused(changes: dict[str, object], field: str) -> None:
    limits = AttemptLimits(max_prompt_chars=100)

    with pytest.raises(InvalidArgument) as refused:
        check_order(uploaded_order(**changes), HELD, NoiseForm.VARIANCE_PRESERVING, limits, FETCHES)

    assert refused.value.violations[0].field == field
