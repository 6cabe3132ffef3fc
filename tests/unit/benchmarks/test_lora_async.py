"""Test a load's cost beyond the part that does not fit in K steps."""

import pytest

from benchmarks.lora_async import LateImage, LoadRound, beyond, latency_figures

STEP_S = 0.1


def found(load_steps: float, latency_steps: float, steps: int = 10) -> LoadRound:
    """Return a round with steps of a tenth of a second, and a load and an image of these numbers of steps."""
    return LoadRound((steps + 1) * STEP_S, {1.0: LateImage(latency_steps * STEP_S, load_steps * STEP_S)})


def test_load_within_k_steps_costs_nothing() -> None:
    assert beyond(found(load_steps=8, latency_steps=11), 1.0, 10) == pytest.approx(0.0)


def test_longer_load_costs_only_excess() -> None:
    assert beyond(found(load_steps=15, latency_steps=16), 1.0, 10) == pytest.approx(0.0)
    assert beyond(found(load_steps=20, latency_steps=23), 1.0, 10) == pytest.approx(0.1)


def test_loader_waiting_from_start_exceeds_allowance() -> None:
    """If the image had waited for its LoRA from the start, the latency would include the whole load."""
    assert beyond(found(load_steps=5, latency_steps=16), 1.0, 10) == pytest.approx(1.0)


def test_load_without_k_is_fully_allowed() -> None:
    assert beyond(found(load_steps=5, latency_steps=6, steps=0), 1.0, 0) == pytest.approx(0.0)


def test_late_lora_figure_is_worst_load() -> None:
    late = {0.2: 11.0, 0.5: 11.0, 1.0: 12.0, 1.5: 16.0, 2.0: 21.0, 3.0: 31.0}
    rounds = [
        LoadRound(1.1, {share: LateImage(latency * STEP_S, share * 10 * STEP_S) for share, latency in late.items()})
        for _ in range(3)
    ]

    worst, *others = latency_figures("neon", 10, rounds, 50)

    assert "worst (1)" in worst.name
    assert worst.value == pytest.approx(0.1)
    assert not worst.ok
    assert [round(figure.value or 0.0, 3) for figure in others[:6]] == [1.0, 1.0, 0.9, 0.667, 0.5, 0.333]
