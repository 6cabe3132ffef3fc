"""Each wrong field is rejected by its name, with its limit."""

import math
import re
from dataclasses import replace
from typing import Any

import pytest

from pentimento.domain.errors import FailedPrecondition, InvalidArgument, NotFound, PentimentoError
from pentimento.domain.execution import LatentParallelPeer
from pentimento.domain.fleet import Capability
from pentimento.domain.generation import (
    ControlNetMode,
    ControlNetSelection,
    ImagePromptSelection,
    InitImage,
    LoraSelection,
    NoiseForm,
    ObjectReference,
    Scheduler,
    SigmaSpacing,
)
from pentimento.domain.prompt_syntax import PromptSyntax
from services.unet_worker.attempts.order import ExecuteOrder
from services.unet_worker.attempts.validation import MAX_PROMPT_CHARS, check_order
from tests.support.refusals import wrong_refusals
from tests.unit.unet_worker.orders import FROM_IMAGE, FROM_LATENT, HELD, ORDER, ROUTE, SPEC, order_with


def check(order: ExecuteOrder) -> None:
    check_order(order, HELD, NoiseForm.VARIANCE_PRESERVING)


def with_route(**changes: Any) -> ExecuteOrder:
    return replace(ORDER, route=replace(ROUTE, **changes))


def test_check_order_takes_sound_orders() -> None:
    orders = [
        ORDER,
        order_with(scheduler=Scheduler.EULER),
        order_with(scheduler=Scheduler.EULER, sigma_spacing=SigmaSpacing.KARRAS),
        order_with(prompt_syntax=PromptSyntax.A1111, prompt="a (red:1.2) circle"),
        order_with(eta=1.0),
        order_with(guidance_scale=0.0),
        order_with(width_px=64, height_px=8),
        order_with(num_inference_steps=100),
        order_with(seed=2**64 - 1),
        order_with(start=FROM_LATENT),
        order_with(start=replace(FROM_LATENT, renoised_steps=FROM_LATENT.resume_step - 1)),
        order_with(start=replace(FROM_LATENT, renoised_steps=FROM_LATENT.resume_step, retaken_steps=1)),
        order_with(start=FROM_IMAGE),
        with_route(full_steps=(1, 4)),
        order_with(init_image=InitImage(b"png", 0.5)),
        order_with(init_image=InitImage(b"png", 0.5, b"png")),
        replace(ORDER, image_format="webp", deadline_remaining_ms=1),
        replace(ORDER, image_format="jpeg", encoding_quality=0),
        replace(ORDER, image_format="webp", encoding_quality=100),
    ]
    for order in orders:
        check(order)


OUT_OF_LIMITS: list[tuple[ExecuteOrder, str]] = [
    (order_with(prompt="x" * (MAX_PROMPT_CHARS + 1)), "spec.prompt"),
    (order_with(prompt="a\0b"), "spec.prompt"),
    (order_with(negative_prompt="x" * (MAX_PROMPT_CHARS + 1)), "spec.negative_prompt"),
    (order_with(width_px=0), "spec.width_px"),
    (order_with(width_px=2**31), "spec.width_px"),
    (order_with(height_px=33), "spec.height_px"),
    (order_with(height_px=72), "spec.height_px"),
    (order_with(num_inference_steps=0), "spec.num_inference_steps"),
    (order_with(num_inference_steps=10**9), "spec.num_inference_steps"),
    (order_with(guidance_scale=math.nan), "spec.guidance_scale"),
    (order_with(guidance_scale=-1.0), "spec.guidance_scale"),
    (order_with(clip_skip=12), "spec.clip_skip"),
    (order_with(prompt_syntax=PromptSyntax.A1111, prompt="(x:1e9)"), "spec.prompt"),
    (order_with(prompt_syntax=PromptSyntax.A1111, negative_prompt="x)"), "spec.negative_prompt"),
    (order_with(eta=math.nan), "spec.eta"),
    (order_with(eta=1.5), "spec.eta"),
    (order_with(eta=0.5, scheduler=Scheduler.EULER), "spec.eta"),
    (order_with(sigma_spacing=SigmaSpacing.KARRAS, scheduler=Scheduler.DDIM), "spec.sigma_spacing"),
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
    (order_with(start=replace(FROM_LATENT, renoised_steps=2, retaken_steps=3)), "route.start.latent.retaken_steps"),
    (order_with(start=replace(FROM_IMAGE, renoised_steps=9, retaken_steps=1)), "route.start.image.renoised_steps"),
    (order_with(start=replace(FROM_LATENT, sigma=math.nan)), "route.start.latent.sigma"),
    (order_with(start=replace(FROM_LATENT, sigma=0.0)), "route.start.latent.sigma"),
    (
        order_with(start=replace(FROM_LATENT, latent=replace(FROM_LATENT.latent, size_bytes=2**40))),
        "route.start.latent.latent.size_bytes",
    ),
    (order_with(start=replace(FROM_IMAGE, start_step=9)), "route.start.image.start_step"),
    (order_with(start=replace(FROM_IMAGE, noise_form=NoiseForm.FLOW_MATCHING)), "route.start.image.noise_form"),
    *((with_route(full_steps=steps), "route.full_steps") for steps in ((0, 8), (2, 1), (3, 3))),
    (with_route(full_steps=(1, 4), thinned_steps=(2, 5)), "route.full_steps"),
    (replace(ORDER, image_format="gif"), "image_format"),
    (replace(ORDER, image_format="jpeg", encoding_quality=101), "encoding_quality"),
    (replace(ORDER, deadline_remaining_ms=-1), "deadline_remaining_ms"),
    (replace(ORDER, peer=LatentParallelPeer("peer", "")), "latent_parallel_peer.address"),
]


def test_check_order_names_the_field_outside_its_limits() -> None:
    rows = [(order, f"^{re.escape(field)}: ") for order, field in OUT_OF_LIMITS]

    assert wrong_refusals(InvalidArgument, check, rows) == []


def test_check_order_of_pipelined_controlnets_needs_mode_and_step() -> None:
    pipelined = ControlNetMode.PIPELINED
    modes = ((None, 1), (ControlNetMode.SYNCHRONOUS, 1), (pipelined, 0), (pipelined, SPEC.num_inference_steps))
    rows = [
        (with_route(controlnet_mode=mode, pipelined_from_step=step), r"route\.pipelined_from_step")
        for mode, step in modes
    ]

    assert wrong_refusals(InvalidArgument, check, rows) == []
    check(with_route(controlnet_mode=pipelined, pipelined_from_step=1))


OF_OTHERS: list[tuple[ExecuteOrder, type[PentimentoError], str]] = [
    (replace(ORDER, worker_generation=4), FailedPrecondition, "WORKER_GENERATION_MISMATCH"),
    (order_with(model="other"), FailedPrecondition, "MODEL_MISMATCH"),
    (replace(ORDER, route=replace(ROUTE, model="other")), FailedPrecondition, "MODEL_MISMATCH"),
    (
        replace(ORDER, route=replace(ROUTE, model_digest="sha256:other")),
        FailedPrecondition,
        "MODEL_DIGEST_MISMATCH",
    ),
    (order_with(loras=(LoraSelection("../../etc/passwd"),)), NotFound, "UNKNOWN_LORA"),
    (order_with(controlnets=(ControlNetSelection("canny", b"png"),)), NotFound, "UNKNOWN_CONTROLNET"),
    (order_with(image_prompts=(ImagePromptSelection("style", b"png"),)), NotFound, "UNKNOWN_IP_ADAPTER"),
]


def test_check_order_refuses_other_model_and_unknown_adapters() -> None:
    for order, error, reason in OF_OTHERS:
        with pytest.raises(error) as refused:
            check(order)
        assert refused.value.reason == reason, order


DIGEST = "sha256:" + "a" * 64
FETCHES = frozenset({Capability.UPLOADED_LORA})


def uploaded_order(**changes: object) -> ExecuteOrder:
    reference = replace(ObjectReference("adapters/a", DIGEST, 100), **changes)  # type: ignore[arg-type]
    return order_with(loras=(LoraSelection("ink", 1.0, DIGEST, reference),))


def test_check_order_lora_of_object_store_needs_sound_reference() -> None:
    def check_fetching(order: ExecuteOrder) -> None:
        check_order(order, HELD, NoiseForm.VARIANCE_PRESERVING, FETCHES)

    check_fetching(uploaded_order())
    with pytest.raises(NotFound, match="'ink'"):
        check(uploaded_order())
    wrong: list[dict[str, object]] = [{"digest": "sha256:" + "b" * 64}, {"size_bytes": 0}, {"size_bytes": 2**33}]
    for changes in wrong:
        with pytest.raises(InvalidArgument) as refused:
            check_fetching(uploaded_order(**changes))
        assert refused.value.violations[0].field == f"spec.loras.object.{next(iter(changes))}"
