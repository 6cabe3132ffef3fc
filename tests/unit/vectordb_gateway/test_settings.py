"""Thresholds as flags."""

import pytest

from pentimento.policies.cache_selection import SelectionRules, Threshold
from pentimento.policies.followed_cache import CacheChoice
from pentimento.settings import SettingsError, load_settings
from services.vectordb_gateway.settings import GatewaySettings

URLS = ("--index-url", "edge:///i", "--objects-url", "file:///o", "--ledger-url", "sqlite:////l")


def load(*flags: str) -> GatewaySettings:
    return load_settings(GatewaySettings, "vectordb_gateway", [*URLS, *flags], {})


def test_without_a_word_reuse_is_earned() -> None:
    """No threshold applies at first, and none at all if it is switched off."""
    assert load().selection.reuse().earns
    assert {row.min_similarity for row in load().selection.reuse().of("model", "encoder").latents.thresholds} == {1.0}
    settings = load("--no-earned-reuse")

    assert settings.selection.rules() == SelectionRules((), (), 0.9, renoised_share=1.0, retaken_share=0.2)
    assert not settings.selection.reuse().reuses_anything
    assert settings.choice() == CacheChoice()


def test_thresholds_are_pairs() -> None:
    settings = load("--thresholds", "latent:0.8:0.2, image:0.25:0.1, latent:0.9:0.4")

    rules = settings.selection.rules()
    assert rules.latents == (Threshold(0.8, 0.2), Threshold(0.9, 0.4))
    assert rules.images == (Threshold(0.25, 0.1),)


def test_admission_of_large_keeps_neither_hits_nor_light_stages() -> None:
    settings = load("--admission", "large", "--renoised-share", "0.2")

    rules = settings.selection.rules()
    assert (rules.keeps_images_of_hits, rules.renoised_share) == (False, 0.2)
    assert settings.choice() == CacheChoice(None, None, None, False)


@pytest.mark.parametrize("pair", ["0.8", "0.8:", "x:0.5", "2:0.5", "0.8:0", "0.8:1", "0.8:0.5:1", "nan:0.5"])
@pytest.mark.parametrize("kind", ["latent:", "image:"])
def test_thresholds_that_make_no_sense_refuse_to_start(kind: str, pair: str) -> None:
    with pytest.raises(SettingsError, match=f"--thresholds: '{kind}{pair}' must be latent: or image: and"):
        load("--thresholds", f"{kind}{pair}")


@pytest.mark.parametrize("entry", ["0.8:0.5", "residual:0.8:0.5"])
def test_thresholds_of_no_kind_refuse_to_start(entry: str) -> None:
    with pytest.raises(SettingsError, match=f"'{entry}' must be latent: or image: and similarity:share"):
        load("--thresholds", entry)


@pytest.mark.parametrize("missing", ["--index-url", "--objects-url", "--ledger-url"])
def test_the_stores_must_be_named(missing: str) -> None:
    given = [word for flag, url in zip(URLS[::2], URLS[1::2], strict=True) if flag != missing for word in (flag, url)]

    with pytest.raises(SettingsError, match=missing.removeprefix("--").replace("-", ".")):
        load_settings(GatewaySettings, "vectordb_gateway", given, {})


@pytest.mark.parametrize(("flags", "grace_s"), [((), 120.0), (("--grant-ttl-s", "20"), 20.0)])
def test_grace_of_evicted_objects_is_at_most_lifetime_of_reservations(flags: tuple[str, ...], grace_s: float) -> None:
    assert load(*flags).bounds().object_grace_s == grace_s


def test_alpha_of_profiles_is_the_operators_alpha_of_reuse() -> None:
    assert load("--profile-alpha", "0.97").choice().alpha == 0.97
