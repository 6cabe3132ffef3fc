"""A scope of the cache tells apart what was painted otherwise."""

from dataclasses import replace

from lab.fixtures.held_models import HELD
from pentimento.domain.cache import image_key, latent_key
from pentimento.domain.generation import (
    ControlKind,
    ControlNetSelection,
    GenerationSpec,
    ImagePromptSelection,
    Preprocessor,
    Scheduler,
)
from pentimento.domain.image_request import CacheMode, ImageFormat, ResolvedRequest
from pentimento.domain.prompt_syntax import PromptSyntax
from services.frontdoor.routing.starts import repeat_key_of, scope_of

SPEC = GenerationSpec("a red circle", "", HELD.model, 32, 32, 50, 3.0, Scheduler.DDIM, 7)
CONTROLLED = replace(SPEC, controlnets=(ControlNetSelection("edges", b"png", digest="sha256:edges"),))
RESOLVED = ResolvedRequest(CONTROLLED, CacheMode.READ_WRITE, ImageFormat.PNG, None, 1000, 0)


def test_latents_of_pipelined_pictures_are_not_those_of_synchronous_ones_and_images_serve_both() -> None:
    synchronous, early, late = (scope_of("tenant", RESOLVED, HELD, 0, first) for first in (0, 4, 8))

    assert len({latent_key(scope, 10) for scope in (synchronous, early, late)}) == 3
    assert len({image_key(scope) for scope in (synchronous, early, late)}) == 1


def test_scope_of_other_weights_or_syntax_differs() -> None:
    prompts = ("a (red) circle", "a (red:1.1) circle", "a ((red)) circle", "a red (circle)", "a red circle")
    plain = [replace(SPEC, prompt=prompt) for prompt in prompts]
    weighted = [replace(spec, prompt_syntax=PromptSyntax.A1111) for spec in plain]

    scopes = [
        scope_of("tenant", ResolvedRequest(spec, CacheMode.READ_WRITE, ImageFormat.PNG, None, 1000), HELD, 0, 0)
        for spec in (*plain, *weighted)
    ]

    keys = [latent_key(scope, 10) for scope in scopes]
    assert [keys.index(key) for key in keys] == [0, 0, 0, 0, 0, 5, 5, 7, 8, 9]
    assert len({image_key(scope) for scope in scopes}) == 1
    assert {spec.plain_prompt for spec in weighted} == {"a red circle"}
    assert len({repeat_key_of(spec) for spec in weighted}) == 5


def test_keys_differ_by_kind_preprocessor_and_depth_model() -> None:
    net = CONTROLLED.controlnets[0]
    nets = [
        net,
        *(replace(net, kind=kind) for kind in (ControlKind.LINES, ControlKind.TILE)),
        replace(net, preprocessor=Preprocessor.EDGES),
        *(replace(net, preprocessor=Preprocessor.DEPTH, preprocessor_digest=digest) for digest in ("one", "other")),
    ]

    scopes = [scope_of("tenant", replace(RESOLVED, spec=replace(SPEC, controlnets=(one,))), HELD, 0, 0) for one in nets]

    assert len({latent_key(scope, 10) for scope in scopes}) == len({image_key(scope) for scope in scopes}) == 6


def test_keys_differ_by_image_prompt_and_latents_also_by_its_scale() -> None:
    prompt = ImagePromptSelection("style", b"png", digest="sha256:style")
    specs = [
        replace(SPEC, image_prompts=prompts)
        for prompts in ((), (prompt,), (replace(prompt, image=b"other"),), (replace(prompt, digest="sha256:other"),))
    ]
    weaker = replace(SPEC, image_prompts=(replace(prompt, scale=0.5),))

    *scopes, scaled = [scope_of("tenant", replace(RESOLVED, spec=one), HELD, 0, 0) for one in (*specs, weaker)]

    assert len({latent_key(scope, 10) for scope in (*scopes, scaled)}) == 5
    assert len({image_key(scope) for scope in scopes}) == 4
    assert image_key(scaled) == image_key(scopes[1])
