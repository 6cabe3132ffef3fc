import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.fixtures.held_models import HELD
from pentimento.domain.adapters import AdapterKind, RejectedAdapter
from pentimento.domain.errors import FailedPrecondition, InvalidArgument, NotFound, PentimentoError, Unavailable
from pentimento.domain.fleet import AdapterPlacement, Capability
from pentimento.domain.generation import (
    ControlKind,
    ControlNetSelection,
    ImagePromptSelection,
    LoraSelection,
    ObjectReference,
    Preprocessor,
)
from pentimento.domain.image_request import AskedControlNet, AskedImagePrompt, AskedLora, ImageRequest, ResolvedRequest
from services.frontdoor.journal.recovery import JOURNALLED_REQUEST, resolved_from_bytes, resolved_to_bytes
from services.frontdoor.requests.resolution import resolve
from services.frontdoor.requests.selections import with_served_adapters
from services.frontdoor.settings import RequestLimits
from services.frontdoor.workers.catalogue import AdapterCatalogue
from tests.support.images import a_png
from tests.unit.frontdoor.adapters import EDGES, NEON, STYLE, credits, known_adapters, plan

LIMITS = RequestLimits()


def resolved(catalogue: AdapterCatalogue | None = None, **fields: Any) -> ResolvedRequest:
    known = known_adapters() if catalogue is None else catalogue
    return resolve(ImageRequest(**{"prompt": "a red circle", **fields}), HELD, known, LIMITS, drawn_seed=7)


def edges(image: bytes = b"", **fields: Any) -> dict[str, Any]:
    return {"controlnets": (AskedControlNet("edges", image or a_png(32, 32), **fields),)}


def union(**fields: Any) -> dict[str, Any]:
    return {"controlnets": (AskedControlNet("union", a_png(32, 32), **fields),)}


def test_selections_open_fields_are_filled_and_zero_is_kept() -> None:
    request = resolved(loras=(AskedLora("neon"),), **edges())
    named = edges(conditioning_scale=0.0, start_fraction=0.25, end_fraction=0.5, preprocessor="depth")
    spec = resolved(loras=(AskedLora("mosaic", 0.0), AskedLora("neon", -0.5)), **named).spec

    assert request.spec.loras == (LoraSelection("neon", 1.0, NEON.digest),)
    assert request.spec.controlnets == (ControlNetSelection("edges", a_png(32, 32), 1.0, 0.0, 1.0, EDGES.digest),)
    assert resolved_from_bytes(resolved_to_bytes(request), JOURNALLED_REQUEST) == request
    assert [(lora.name, lora.scale) for lora in spec.loras] == [("mosaic", 0.0), ("neon", -0.5)]
    (net,) = spec.controlnets
    assert (net.conditioning_scale, net.start_fraction, net.end_fraction) == (0.0, 0.25, 0.5)
    assert resolved(**union(kind="lines")).spec.controlnets[0].kind is ControlKind.LINES
    assert (net.preprocessor, net.preprocessor_digest) == (Preprocessor.DEPTH, EDGES.depth_digest)


def test_image_prompt_of_any_size_gets_digest_and_scale() -> None:
    request = resolved(**style(), **union(kind="pose", preprocessor="edges"))

    assert request.spec.image_prompts == (ImagePromptSelection("style", a_png(8, 40), 1.0, STYLE.digest),)
    assert resolved_from_bytes(resolved_to_bytes(request), JOURNALLED_REQUEST) == request


def test_rejected_lora_is_refused_with_its_reason() -> None:
    rejected = RejectedAdapter("loha", AdapterKind.LORA, "UNSUPPORTED_LORA", "loha.safetensors: it is a LoHa")
    catalogue = AdapterCatalogue()
    catalogue.learn(replace(credits(capabilities=frozenset()), rejected_adapters=(rejected,)))

    with pytest.raises(FailedPrecondition, match=r"loras\[0\].name: the LoRA loha .*: it is a LoHa") as refused:
        resolved(catalogue, loras=(AskedLora("loha"),))

    assert refused.value.reason == "UNSUPPORTED_LORA"


BAD_NAMES = ("", "../neon", "a/b", "neon\0", "Neon", "NEON", "ｎeon", "neon\u0301", "x" * 10_000, "%2e%2e")


def png_bomb() -> bytes:
    bomb = bytearray(a_png(32, 32))
    bomb[16:24] = (60_000).to_bytes(4, "big") * 2
    return bytes(bomb)


def loras(*asked: AskedLora) -> dict[str, Any]:
    return {"loras": asked}


def style(image: bytes = b"", **fields: Any) -> dict[str, Any]:
    return {"image_prompts": (AskedImagePrompt("style", image or a_png(8, 40), **fields),)}


NET = "controlnets[0]"
OUT_OF_BOUNDS: tuple[tuple[dict[str, Any], str, str], ...] = (
    *[(loras(AskedLora(name)), "loras[0].name", "") for name in BAD_NAMES],
    *[({"controlnets": (AskedControlNet(name, b""),)}, f"{NET}.name", "") for name in BAD_NAMES],
    *[
        (loras(AskedLora("neon"), AskedLora("mosaic", scale)), "loras[1].scale", "")
        for scale in (math.nan, math.inf, -math.inf, 10.5, -10.5, 1e308)
    ],
    (loras(AskedLora("neon", 0.5), AskedLora("neon", 1.0)), "loras[1].name", ""),
    (loras(*[AskedLora("neon")] * 9), "loras", "must be at most 8, got 9"),
    (loras(AskedLora("foreign")), "loras[0].name", ", foreign is for the family stable_diffusion_3"),
    ({"controlnets": edges()["controlnets"] * 5}, "controlnets", "must be at most 4, got 5"),
    *[(edges(conditioning_scale=scale), f"{NET}.conditioning_scale", "") for scale in (math.nan, math.inf, -0.1, 10.5)],
    *[(edges(start_fraction=start), f"{NET}.start_fraction", "") for start in (math.nan, -0.1, 1.0, 1.5)],
    *[(edges(end_fraction=end), f"{NET}.end_fraction", "") for end in (math.nan, -0.1, 1.1, math.inf)],
    (edges(end_fraction=0.0), f"{NET}.start_fraction", ""),
    (edges(start_fraction=0.5, end_fraction=0.5), f"{NET}.start_fraction", ""),
    (edges(start_fraction=0.6, end_fraction=0.5), f"{NET}.start_fraction", ""),
    *[
        (edges(image), f"{NET}.conditioning_image", "")
        for image in (
            b"GIF89a",
            a_png(32, 32)[:20],
            a_png(32, 32) + bytes(8 << 20),
            a_png(32, 40),
            a_png(8, 8),
            b"\xff\xd8\xff\x00",
        )
    ],
    (edges(png_bomb()), f"{NET}.conditioning_image", "must have at most 8388608 pixels"),
    ({"width_px": 64, **edges()}, f"{NET}.conditioning_image", ""),
    ({"controlnets": (AskedControlNet("edges", b""),)}, f"{NET}.conditioning_image", ""),
    (style(scale=math.nan), "image_prompts[0].scale", "must be between -10 and 10"),
    (style(b"GIF89a"), "image_prompts[0].image", ""),
    (style(a_png(8, 8) + bytes(8 << 20)), "image_prompts[0].image", "must have at most 8388608 bytes"),
    ({"image_prompts": style()["image_prompts"] * 5}, "image_prompts", "must be at most 4, got 5"),
    (edges(kind="depth"), f"{NET}.kind", "must be empty with edges, which is no ControlNet-Union"),
    (union(kind=""), f"{NET}.kind", "must be one of pose, depth, scribble, lines, normals, segments with union"),
    (union(kind="tile"), f"{NET}.kind", "must be one of pose, depth, scribble"),
    (edges(preprocessor="canny"), f"{NET}.preprocessor", "must be edges or depth, or empty"),
    (
        {"controlnets": (AskedControlNet("layout", a_png(32, 32), preprocessor="depth"),)},
        f"{NET}.preprocessor",
        "must be edges, or empty",
    ),
)


def test_selections_out_of_bounds_are_refused_by_name() -> None:
    for fields, field, words in OUT_OF_BOUNDS:
        with pytest.raises(InvalidArgument) as caught:
            resolved(**fields)

        assert [violation.field for violation in caught.value.violations] == [field], str(fields)[:200]
        assert words in caught.value.message
        assert len(caught.value.message) < 400


@pytest.mark.parametrize(
    ("fields", "lacking", "error", "reason"),
    [
        (loras(AskedLora("no-such")), set(), NotFound, "UNKNOWN_LORA"),
        (loras(AskedLora("edges")), set(), NotFound, "UNKNOWN_LORA"),
        ({"controlnets": (AskedControlNet("no-such", a_png(32, 32)),)}, set(), NotFound, "UNKNOWN_CONTROLNET"),
        ({"controlnets": (AskedControlNet("neon", a_png(32, 32)),)}, set(), NotFound, "UNKNOWN_CONTROLNET"),
        (
            loras(AskedLora("neon")),
            {Capability.LORA, Capability.UPLOADED_LORA},
            FailedPrecondition,
            "LORAS_NOT_SERVED",
        ),
        (edges(), {Capability.CONTROLNET}, FailedPrecondition, "CONTROLNETS_NOT_SERVED"),
        (style(), {Capability.IP_ADAPTER}, FailedPrecondition, "IP_ADAPTERS_NOT_SERVED"),
        ({"image_prompts": (AskedImagePrompt("neon", b""),)}, set(), NotFound, "UNKNOWN_IP_ADAPTER"),
    ],
)
def test_selections_unknown_or_not_served_name_reason(
    fields: dict[str, Any], lacking: set[Capability], error: type[PentimentoError], reason: str
) -> None:
    catalogue = known_adapters()
    if lacking:
        catalogue.learn(credits(NEON, capabilities=frozenset(Capability) - lacking))

    with pytest.raises(error) as caught:
        resolved(catalogue, **fields)

    assert caught.value.reason == reason
    if lacking:
        catalogue.learn(credits(NEON, worker_id="w2"))
        assert resolved(catalogue, **fields)


def test_selections_controlnet_without_replica_may_come_back() -> None:
    with pytest.raises(Unavailable) as caught:
        resolved(controlnets=(AskedControlNet("gone", a_png(32, 32)),))

    assert caught.value.retry_after_ms is not None


def test_a_replay_needs_the_weights_of_the_first_time() -> None:
    catalogue = known_adapters()
    spec = resolved(catalogue, loras=(AskedLora("neon"),), **edges()).spec
    with_served_adapters(spec, catalogue)

    for missing in (AdapterCatalogue(), _with_newer_neon()):
        with pytest.raises(FailedPrecondition) as caught:
            with_served_adapters(spec, missing)
        assert caught.value.reason == "ADAPTER_CHANGED"


def test_replayed_lora_has_the_entry_that_is_signed_now() -> None:
    catalogue = AdapterCatalogue()
    stored = replace(NEON, object=ObjectReference("adapters/neon", NEON.digest, 9))
    then = LoraSelection("neon", 0.5, NEON.digest, stored.object, "signed then")
    recorded = replace(resolved().spec, loras=(then,))
    catalogue.learn(credits(capabilities=frozenset({Capability.UPLOADED_LORA})))
    for entry in ("signed before", "signed now"):
        catalogue.follow(plan(AdapterPlacement(replace(stored, signed_entry=entry), ("w1",))))

    spec = with_served_adapters(recorded, catalogue)

    assert spec == replace(recorded, loras=(replace(then, signed_entry="signed now"),))
    assert resolved(catalogue, loras=(AskedLora("neon"),)).spec.loras[0].signed_entry == "signed now"


def _with_newer_neon() -> AdapterCatalogue:
    catalogue = AdapterCatalogue()
    catalogue.learn(credits(replace(NEON, digest="sha256:newer")))
    return catalogue


floats = st.one_of(st.none(), st.floats())
names = st.one_of(st.sampled_from(["neon", "mosaic", "edges", "layout"]), st.text(max_size=10))
asked_loras = st.lists(st.builds(AskedLora, names, floats), max_size=3).map(tuple)
asked_controlnets = st.lists(
    st.builds(AskedControlNet, names, st.sampled_from([a_png(32, 32), a_png(8, 8), b"x"]), floats, floats, floats),
    max_size=3,
).map(tuple)


@given(asked_loras, asked_controlnets)
def test_any_selection_is_within_limits_or_rejected(
    loras: tuple[AskedLora, ...], controlnets: tuple[AskedControlNet, ...]
) -> None:
    try:
        spec = resolved(loras=loras, controlnets=controlnets).spec
    except PentimentoError:
        return

    assert [lora.name for lora in spec.loras] == [lora.name for lora in loras]
    assert all(lora.digest and abs(lora.scale) <= 10.0 for lora in spec.loras)
    for net in spec.controlnets:
        assert net.digest and 0.0 <= net.start_fraction < net.end_fraction <= 1.0
        assert 0.0 <= net.conditioning_scale <= 10.0
