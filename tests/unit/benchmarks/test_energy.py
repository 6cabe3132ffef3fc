"""Test the causes of NIRVANA's device-seconds."""

from dataclasses import replace

import pytest

from benchmarks.energy import (
    BUSY,
    JOINT,
    NIRVANA,
    SANA,
    SDXL,
    SWAMPED,
    VANILLA,
    SpentSeconds,
    account_of,
    accounted,
    figures_of,
    load_of,
    loaded,
    spent_by,
    systems,
)
from benchmarks.paper_systems import run
from pentimento.policies.cache_selection import NIRVANA_LATENT_THRESHOLDS


def test_account_lines_change_one_cause_each() -> None:
    swamped, wide, single, unbounded, translated, adding = account_of(100).values()

    assert (swamped.closed_loop, wide.closed_loop) == (0, 16)
    assert single == replace(wide, closed_loop=1)
    assert unbounded.cache == replace(single.cache, capacity=10_000_000)
    rules = unbounded.cache.rules
    assert translated.cache.rules.latents[1:] == rules.latents[1:] == NIRVANA_LATENT_THRESHOLDS[1:]
    assert translated.cache.rules.latents[0].min_similarity < rules.latents[0].min_similarity
    assert adding.cache.rules == replace(translated.cache.rules, keeps_latents_of_hits=True)


def test_busy_load_is_closed_loop() -> None:
    vanilla = systems(100)["vanilla"]

    assert (loaded(vanilla, BUSY).closed_loop, loaded(vanilla, SWAMPED).closed_loop) == (32, 0)


def test_saved_counts_all_requests() -> None:
    """Half skip 25 of 50 steps, a tenth ten."""
    spent = SpentSeconds("a", 1, 1.0, 0.6, starts={0: 0.4, 25: 0.5, 10: 0.1})

    assert spent.saved == pytest.approx(0.27)
    assert [figure.value for figure in accounted([spent, replace(spent, seed=2, starts={0: 1.0})])] == [
        pytest.approx(0.135)
    ]


def test_spent_seconds_divide_by_answered_requests() -> None:
    """One device at a time by the large model, 91.5 s each; hits skip their steps."""
    load = load_of(30, 30, 1)
    single = account_of(30)["one at a time"]

    spent = spent_by("nirvana", run(single, load, 1), 1)

    assert spent.answered_share == 1.0
    assert spent.device_s == pytest.approx(91.5 * (1.0 - spent.saved), rel=0.02)
    assert spent.hit_share == pytest.approx(1.0 - (spent.starts or {})[0])


def test_figures_compare_vanilla_and_best_paper() -> None:
    seconds = {VANILLA: 100.0, NIRVANA: 80.0, SDXL: 50.0, SANA: 40.0, JOINT: 42.0}
    spent = [SpentSeconds(name, seed, value, 0.5) for seed in (1, 2) for name, value in seconds.items()]

    figures = {figure.name: figure for figure in figures_of(spent, BUSY)}

    assert figures["busy, MoDM-only, SDXL: device-seconds an image ÷ vanilla's"].ok
    assert not figures["busy, NIRVANA-only: device-seconds an image ÷ vanilla's"].ok
    joint = figures["busy, joint: device-seconds an image ÷ those of MoDM-only, SANA"]
    assert joint.value == pytest.approx(1.05) and not joint.ok
