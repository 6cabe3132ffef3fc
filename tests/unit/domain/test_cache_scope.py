from dataclasses import replace

import pytest

from pentimento.domain.cache import CacheScope, image_key, latent_key, latent_keys

SCOPE = CacheScope("tenant", "m", "v", "s", "epsilon", 64, 64, 3.0, "", 50)
CONTROLLED = replace(SCOPE, conditioning_digest="sha256:edges-of-a", control_digest="sha256:scale-1")


def test_keys_without_adapters_are_recorded_ones() -> None:
    """With other keys the content of existing caches would be lost."""
    assert latent_key(SCOPE, 10) == "96d18c75a54c8bd27e6776b6ccaf8756a84a15e0f235df73c4b69bb3c3eb4695"
    assert image_key(SCOPE) == "ace72f1b7d5c802d7beb09ef5a9e500dbf5b24f1a2b31966fe177f1b60fab44a"


@pytest.mark.parametrize("changed", ["conditioning_digest", "control_digest"])
def test_latent_keys_differ_by_controlnet_and_conditioning_image(changed: str) -> None:
    other = replace(CONTROLLED, **{changed: "sha256:other"})

    assert not set(latent_keys(CONTROLLED)) & set(latent_keys(other))
    assert not set(latent_keys(CONTROLLED)) & set(latent_keys(SCOPE))


def test_image_key_differs_by_conditioning_image_only() -> None:
    assert image_key(CONTROLLED) != image_key(SCOPE)
    assert image_key(CONTROLLED) != image_key(replace(CONTROLLED, conditioning_digest="sha256:edges-of-b"))
    assert image_key(CONTROLLED) == image_key(replace(CONTROLLED, control_digest="sha256:scale-0.5"))


def test_latent_key_before_lora_takes_effect_is_shared() -> None:
    neon = replace(SCOPE, adapters_digest="sha256:neon", adapters_from_step=10)

    assert latent_key(neon, 10) == latent_key(SCOPE, 10)
    assert latent_key(neon, 11) != latent_key(SCOPE, 11)
    assert latent_key(neon, 11) != latent_key(replace(neon, adapters_digest="sha256:mosaic"), 11)
    assert image_key(neon) == image_key(SCOPE)
