"""Test the production mix against the printed figures of the papers and of the trace (MLoRA and Katz, section 3)."""

from collections import Counter, OrderedDict
from collections.abc import Iterable
from functools import cache

import numpy as np
import pytest

from lab.workloads import Content, from_production_log, production_mix
from lab.workloads.production import KATZ_A, KATZ_B, MLORA, MLORA_DRIFTING, Choice, Popularity, ProductionMix, choose
from lab.workloads.readers import ProductionRequest
from pentimento.domain.errors import InvalidArgument

COUNT = 6000
LOG_COUNT, DAY_COUNT = 16_000, 1_000


@cache
def chosen(mix: ProductionMix) -> list[Choice]:
    return choose(mix, COUNT, np.random.default_rng(11))


def share(values: Iterable[bool]) -> float:
    return float(np.mean(list(values)))


def lru_hit_ratio(keys: Iterable[str], slots: int) -> float:
    held: OrderedDict[str, None] = OrderedDict()
    hits = []
    for key in keys:
        hits.append(key in held)
        held[key] = None
        held.move_to_end(key)
        if len(held) > slots:
            held.popitem(last=False)
    return share(hits)


def test_popularity_has_the_two_requested_shares() -> None:
    weights = Popularity(97, 0.288, 5, 0.704).weights()

    assert weights.sum() == pytest.approx(1.0)
    assert weights[0] == pytest.approx(0.288, abs=1e-6) and weights[:5].sum() == pytest.approx(0.704, abs=1e-6)
    assert (np.diff(weights) <= 0).all()


def test_popularity_of_base_models_has_mloras_gini_coefficient() -> None:
    weights = np.sort(MLORA.models.weights())
    lorenz = np.cumsum(weights) - weights / 2

    assert 1 - 2 * lorenz.mean() == pytest.approx(0.876, abs=0.005)


def test_popularity_that_no_law_has_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="popularity: no Zipf law"):
        Popularity(24, 0.2, 2, 0.95).weights()


def test_lora_and_model_shares_are_the_printed_ones() -> None:
    made = chosen(MLORA)

    assert share(not choice.loras for choice in made) == pytest.approx(0.788, abs=0.03)
    assert max(len(choice.loras) for choice in made) <= 6
    models = Counter(choice.model for choice in made).most_common(5)
    assert models[0][1] / COUNT == pytest.approx(0.288, abs=0.03)
    assert sum(uses for _, uses in models) / COUNT == pytest.approx(0.704, abs=0.04)


def test_drifting_mix_has_mloras_combinations() -> None:
    logs = [choose(MLORA_DRIFTING, LOG_COUNT, np.random.default_rng(seed)) for seed in range(2)]
    found = [statistics_of_log(log) for log in logs]
    top, rare, loras, lost = np.mean(found, axis=0)

    assert top == pytest.approx(0.732, abs=0.02)
    assert rare == pytest.approx(0.893, abs=0.02)
    assert loras == pytest.approx(0.80, abs=0.03)
    assert 0.55 <= lost <= 0.75


def statistics_of_log(log: list[Choice]) -> tuple[float, float, float, float]:
    """Return the share of the top 50 combinations, that of combinations with fewer than five uses, that of the top 166
    LoRAs, and the share of uses that a day's top eight LoRAs lose within three days."""
    combinations = Counter((one.model, tuple(sorted(one.loras)), one.controlnets) for one in log)
    loras = Counter(name for one in log for name in one.loras)
    days = [
        Counter(name for one in log[begin : begin + DAY_COUNT] for name in one.loras)
        for begin in range(0, len(log), DAY_COUNT)
    ]
    before, after = 0, 0
    for day, later in zip(days, days[3:], strict=False):
        popular = day.most_common(8)
        before += sum(uses for _, uses in popular)
        after += sum(later[name] for name, _ in popular)
    return (
        sum(uses for _, uses in combinations.most_common(50)) / len(log),
        share(uses < 5 for uses in combinations.values()),
        sum(uses for _, uses in loras.most_common(166)) / loras.total(),
        1.0 - after / before,
    )


def test_users_come_back_as_in_the_trace() -> None:
    users = [choice.user for choice in chosen(MLORA)]

    assert share(users[i] in users[i - 10 : i] for i in range(10, COUNT)) == pytest.approx(0.65, abs=0.03)


@pytest.mark.parametrize(("slots", "ratio"), [(1, 0.25), (2, 0.43), (4, 0.66), (8, 0.85)])
def test_checkpoint_cache_hits_are_the_traces(slots: int, ratio: float) -> None:
    assert lru_hit_ratio((choice.model for choice in chosen(MLORA)), slots) == pytest.approx(ratio, abs=0.03)


@pytest.mark.parametrize(
    ("mix", "controlnets", "loras"),
    [
        (KATZ_A, (0.0, 0.305, 0.695), (0.002, 0.088, 0.91)),
        (KATZ_B, (0.019, 0.251, 0.699, 0.031), (0.072, 0.736, 0.192)),
    ],
)
def test_katz_services_use_its_tables_adapter_counts(
    mix: ProductionMix, controlnets: tuple[float, ...], loras: tuple[float, ...]
) -> None:
    made = chosen(mix)

    for count, expected in enumerate(controlnets):
        assert share(len(choice.controlnets) == count for choice in made) == pytest.approx(expected, abs=0.02)
    for count, expected in enumerate(loras):
        assert share(len(choice.loras) == count for choice in made) == pytest.approx(expected, abs=0.05)


@pytest.mark.parametrize(("mix", "first", "head", "printed"), [(KATZ_A, 0.567, 5, 0.98), (KATZ_B, 0.40, 8, 0.95)])
def test_drawn_controlnet_calls_have_printed_shares(
    mix: ProductionMix, first: float, head: int, printed: float
) -> None:
    calls = Counter(name for choice in chosen(mix) for name in choice.controlnets)
    shares = [uses / calls.total() for _, uses in calls.most_common()]

    assert shares[0] == pytest.approx(first, abs=0.01)
    assert sum(shares[:head]) == pytest.approx(printed, abs=0.004)


def test_adapters_of_a_request_differ_from_each_other() -> None:
    assert all(len(set(choice.controlnets)) == len(choice.controlnets) for choice in chosen(KATZ_B))


def test_the_workload_is_reproducible_and_labelled() -> None:
    times = np.arange(40.0)
    made, again = (production_mix(times, np.random.default_rng(2), Content(("a", "b"))) for _ in range(2))

    assert made == again
    assert made.provenance["composite"] is True and made.provenance["mix"]["source"] == MLORA.source
    assert {arrival.model for arrival in made.arrivals} <= {f"base-{index:03d}" for index in range(97)}


def test_users_may_be_the_tenants() -> None:
    made = production_mix(np.arange(40.0), np.random.default_rng(2), tenants_are_users=True)

    assert len({arrival.tenant for arrival in made.arrivals}) > 5


def test_production_log_keeps_users_models_adapters_and_times() -> None:
    first = ProductionRequest(100.0, "TXT_2_IMG", True, 30.0, "G1", 1, 30, "M1", (("L1", 0.8),))
    second = ProductionRequest(300.0, "TXT_2_IMG", True, 30.0, "G2", 1, None, "M2", ())

    made = from_production_log([first, second], np.random.default_rng(0), Content(("a", "b"), steps=50), compress=100.0)

    assert [(a.at_s, a.tenant, a.model, a.loras, a.steps, a.prompt) for a in made.arrivals] == [
        (0.0, "G1", "M1", ("L1",), 30, "a"),
        (2.0, "G2", "M2", (), 50, "b"),
    ]
    assert made.provenance["composite"] is True
