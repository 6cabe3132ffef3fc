"""Pools and cascades are called by their models, light first."""

import pytest

from pentimento.cli.allocation_samples import plain_cascade, plain_pool, plain_stage

MODELS = {"heavy": "heavy", "heavy.1": "heavy", "sd-1.5": "sd-1.5", "sd-1.5.1": "sd-1.5"}


@pytest.mark.parametrize(
    ("pool", "plain"),
    [
        ("heavy", "heavy"),
        ("heavy.1", "heavy (pool 2)"),
        ("sd-1.5", "sd-1.5"),
        ("sd-1.5.1", "sd-1.5 (pool 2)"),
        ("unplanned.1", "unplanned.1"),
    ],
)
def test_plain_pool_is_called_by_its_model(pool: str, plain: str) -> None:
    assert plain_pool(pool, MODELS) == plain


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("light>heavy", "light → heavy"),
        ("a>b>c", "a → b → c"),
        ("noise:light>heavy#0", "light → heavy from noise"),
        ("latent:light>heavy#1", "light → heavy from latent, threshold 2"),
        ("image:light~heavy", "light → heavy from image, unscored"),
    ],
)
def test_plain_cascade_is_light_to_heavy(name: str, plain: str) -> None:
    assert plain_cascade(name) == plain


def test_plain_stage_names_cascade_and_pool() -> None:
    assert plain_stage("noise:light>heavy#0 heavy.1", MODELS) == "light → heavy from noise, at heavy (pool 2)"
