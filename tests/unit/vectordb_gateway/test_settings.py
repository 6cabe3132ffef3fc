"""Thresholds as flags."""

import pytest

from pentimento.policies.cache_selection import NIRVANA_LATENT_THRESHOLDS, SelectionRules, Threshold
from pentimento.settings import SettingsError, load_settings
from services.vectordb_gateway.settings import EvictionChoice, GatewaySettings

URLS = ("--index-url", "edge:///i", "--objects-url", "file:///o", "--ledger-url", "sqlite:////l")


def load(*flags: str) -> GatewaySettings:
    return load_settings(GatewaySettings, "vectordb_gateway", [*URLS, *flags], {})


def test_defaults_are_nirvanas_for_latents_and_none_for_images() -> None:
    settings = load()

    assert settings.selection.rules() == SelectionRules(NIRVANA_LATENT_THRESHOLDS, (), 0.9)
    assert settings.capacity.eviction is EvictionChoice.FIFO


def test_thresholds_are_pairs() -> None:
    settings = load("--latent-thresholds", "0.8:0.2, 0.9:0.4", "--image-thresholds", "0.25:0.1")

    rules = settings.selection.rules()
    assert rules.latents == (Threshold(0.8, 0.2), Threshold(0.9, 0.4))
    assert rules.images == (Threshold(0.25, 0.1),)


@pytest.mark.parametrize("pair", ["0.8", "0.8:", "x:0.5", "2:0.5", "0.8:0", "0.8:1", "0.8:0.5:1", "nan:0.5"])
def test_pairs_that_make_no_sense_refuse_to_start(pair: str) -> None:
    with pytest.raises(SettingsError, match="latent-thresholds"):
        load("--latent-thresholds", pair)


@pytest.mark.parametrize("missing", ["--index-url", "--objects-url", "--ledger-url"])
def test_the_stores_must_be_named(missing: str) -> None:
    given = [word for flag, url in zip(URLS[::2], URLS[1::2], strict=True) if flag != missing for word in (flag, url)]

    with pytest.raises(SettingsError, match=missing.removeprefix("--").replace("-", ".")):
        load_settings(GatewaySettings, "vectordb_gateway", given, {})
