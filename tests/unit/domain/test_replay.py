"""What is painted when a picture is painted again, and what is refused."""

import hashlib
from dataclasses import replace

import pytest

from pentimento.domain.errors import FailedPrecondition, InvalidArgument
from pentimento.domain.generation import (
    CascadeStage,
    ControlNetMode,
    Donor,
    FromImage,
    FromLatent,
    FromNoise,
    GenerationSpec,
    InitImage,
    NoiseForm,
    ObjectReference,
    Provenance,
    Route,
    Scheduler,
    SpecInput,
    Start,
)
from pentimento.domain.replay import ancestor_of, replayed_route, start_taken, thinned_steps_of, with_replayed_inputs

SPEC = GenerationSpec("a red circle", "", "tiny", 32, 32, 10, 3.0, Scheduler.DDIM, 7)
DONOR = Donor("entry", "sha256:1", 0.9)
OBJECT = ObjectReference("latents/x", "sha256:1", 2048)
LATENT = FromLatent(OBJECT, 5, 10, 1.5, DONOR)
IMAGE = FromImage(OBJECT, 4, NoiseForm.VARIANCE_PRESERVING, DONOR)
DATA = b"a picture"
INPUT = SpecInput("init_image.image", ObjectReference("", f"sha256:{hashlib.sha256(DATA).hexdigest()}", len(DATA)))


def provenance(start: Start, steps_saved: int = 0) -> Provenance:
    stages = (CascadeStage("light", "light>tiny", 0.5), CascadeStage("tiny"))
    route = Route("route", start, "tiny", "sha256:model", stages, reason="as it was")
    return Provenance("r-1", SPEC, route, "sha256:model", "w", 1, 1, 10 - steps_saved, steps_saved, "build")


@pytest.mark.parametrize(("start", "saved", "taken"), [(FromNoise(), 0, (6, 8)), (LATENT, 5, (6, 8)), (LATENT, 0, ())])
def test_a_start_that_is_passed_over_leaves_nothing_out(start: Start, saved: int, taken: tuple[int, ...]) -> None:
    assert thinned_steps_of(Route("r", start, "tiny", "sha256:model", thinned_steps=(6, 8)), saved) == taken


@pytest.mark.parametrize(
    ("start", "saved"), [(FromNoise(), 0), (LATENT, 5), (replace(LATENT, renoised_steps=2), 3), (IMAGE, 4)]
)
def test_a_replay_starts_where_the_picture_did_and_is_one_stage(start: Start, saved: int) -> None:
    route = replayed_route(provenance(start, saved), "sha256:model")

    assert (route.start, route.model, route.model_digest) == (start, "tiny", "sha256:model")
    assert (route.replay_of, route.stages) == ("r-1", ())


@pytest.mark.parametrize("planned", [LATENT, IMAGE])
def test_a_worker_that_passed_over_the_donor_painted_from_noise(planned: Start) -> None:
    assert start_taken(provenance(planned, steps_saved=0)) == FromNoise()


def test_an_image_that_saved_no_step_was_used_all_the_same() -> None:
    image = replace(IMAGE, start_step=0)

    assert start_taken(provenance(image, steps_saved=0)) == image


def test_a_pipelined_picture_is_painted_again_with_the_residuals_that_it_had() -> None:
    recorded = provenance(FromNoise())
    pipelined = replace(recorded.route, controlnet_mode=ControlNetMode.PIPELINED, pipelined_from_step=4)

    route = replayed_route(replace(recorded, route=pipelined), "sha256:model")

    assert (route.controlnet_mode, route.pipelined_from_step) == (ControlNetMode.PIPELINED, 4)


def test_a_model_with_other_weights_is_refused() -> None:
    with pytest.raises(FailedPrecondition) as caught:
        replayed_route(provenance(FromNoise()), "sha256:newer")

    assert caught.value.reason == "MODEL_CHANGED"
    assert "sha256:newer" in caught.value.message and "sha256:model" in caught.value.message


@pytest.mark.parametrize(("start", "ancestor"), [(FromNoise(), None), (LATENT, OBJECT), (IMAGE, OBJECT)])
def test_the_ancestor_is_the_object_that_the_start_reads(start: Start, ancestor: ObjectReference | None) -> None:
    assert ancestor_of(start) == ancestor


def test_what_the_request_came_with_is_put_back() -> None:
    bare = replace(SPEC, init_image=InitImage(b"", 0.5))

    whole = with_replayed_inputs(bare, (INPUT,), {"init_image.image": DATA})

    assert whole.init_image == InitImage(DATA, 0.5)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "which are not kept here"),
        ({"init_image.image": b"another"}, hashlib.sha256(b"another").hexdigest()),
        ({"init_image.image": DATA, "loras": b""}, "must hold only what the request came with"),
    ],
)
def test_other_bytes_than_the_first_time_are_refused(given: dict[str, bytes], said: str) -> None:
    bare = replace(SPEC, init_image=InitImage(b"", 0.5))

    with pytest.raises(InvalidArgument) as caught:
        with_replayed_inputs(bare, (INPUT,), given)

    assert said in caught.value.message and caught.value.violations[0].field == "inputs"
