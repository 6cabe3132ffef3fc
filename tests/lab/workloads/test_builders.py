"""Test workloads by name, and their contents."""

from collections import Counter

import numpy as np
import pytest

from lab.workloads import Content, Segment, SloClass, Workload, fluctuating, from_trace, poisson
from lab.workloads.builders import MODM_FLUCTUATION
from pentimento.domain.errors import InvalidArgument
from tests.support.refusals import wrong_refusals

PROMPTS = tuple(f"prompt {number}" for number in range(7))


def build(name: str, seed: int) -> Workload:
    rng = np.random.default_rng(seed)
    content = Content(PROMPTS)
    return {
        "poisson": lambda: poisson(2.0, 30.0, rng, content),
        "fluctuating": lambda: fluctuating(rng, content, [Segment(10, 1), Segment(10, 4)]),
        "trace": lambda: from_trace([0, 1, 4, 4.5, 9], rng, content, scale=2.5, source="a log"),
    }[name]()


@pytest.mark.parametrize("name", ["poisson", "fluctuating", "trace"])
def test_workloads_repeat_by_seed(name: str) -> None:
    assert build(name, 3) == build(name, 3)
    assert build(name, 3).arrivals != build(name, 4).arrivals


def test_prompts_keep_their_order_and_begin_again() -> None:
    made = from_trace(range(10), np.random.default_rng(0), Content(PROMPTS, first_prompt=5))

    assert [arrival.prompt for arrival in made.arrivals[:4]] == ["prompt 5", "prompt 6", "prompt 0", "prompt 1"]


def test_embedding_rows_are_the_prompts_rows() -> None:
    vectors = np.eye(7, 8, dtype=np.float32)

    made = from_trace(range(9), np.random.default_rng(0), Content(PROMPTS, vectors))

    assert made.embeddings is vectors
    assert all(PROMPTS[arrival.embedding_row] == arrival.prompt for arrival in made.arrivals)


def test_requests_of_a_workload_get_other_times() -> None:
    first = from_trace(range(5), np.random.default_rng(0), Content(PROMPTS, np.eye(7, 8, dtype=np.float32)))

    again = poisson(1.0, 30.0, np.random.default_rng(1), Content.of_workload(first, steps=20))

    assert [arrival.prompt for arrival in again.arrivals[:5]] == [arrival.prompt for arrival in first.arrivals]
    assert again.embeddings is not None and again.embeddings.shape == (5, 8) and again.arrivals[0].steps == 20
    assert Content.of_workload(from_trace([0.0], np.random.default_rng(0))).embeddings is None


def test_classes_and_tenants_come_by_their_shares() -> None:
    content = Content(
        PROMPTS, slo_classes=(SloClass("fast", 5.0, 3.0), SloClass("slow", 60.0, 1.0)), tenants={"a": 1.0, "b": 9.0}
    )

    made = poisson(50.0, 100.0, np.random.default_rng(1), content)

    assert {(arrival.slo_class, arrival.deadline_s) for arrival in made.arrivals} == {("fast", 5.0), ("slow", 60.0)}
    shares = Counter(arrival.slo_class for arrival in made.arrivals), Counter(a.tenant for a in made.arrivals)
    assert shares[0]["fast"] / len(made.arrivals) == pytest.approx(0.75, abs=0.03)
    assert shares[1]["b"] / len(made.arrivals) == pytest.approx(0.9, abs=0.03)


def test_the_fluctuation_spans_modms_rates() -> None:
    rates = [segment.rate * 60 for segment in MODM_FLUCTUATION]

    assert (min(rates), max(rates)) == pytest.approx((6, 26))


def test_texts_of_another_log_make_a_composite() -> None:
    rng = np.random.default_rng(0)

    assert not from_trace([0, 1], rng, Content(PROMPTS, sources=("log",)), source="log").provenance["composite"]
    assert from_trace([0, 1], rng, Content(PROMPTS, sources=("other",)), source="log").provenance["composite"]


def test_a_prompt_stays_out_of_repr() -> None:
    made = from_trace([0.0], np.random.default_rng(0), Content(("a secret wish",)))

    assert "secret" not in repr(made)


def test_the_first_arrivals_and_the_rate() -> None:
    made = from_trace([0, 1, 2, 4], np.random.default_rng(0), Content(PROMPTS))

    assert made.mean_rate == 1.0
    assert made.first(2).arrivals == made.arrivals[:2] and made.first(2).provenance["first"] == 2


WRONG: list[tuple[str, dict[str, object]]] = [
    ("prompts", {"prompts": ()}),
    ("steps", {"steps": 0}),
    ("first_prompt", {"first_prompt": -1}),
    ("slo_classes", {"slo_classes": ()}),
    ("slo_classes.deadline_s", {"slo_classes": (SloClass("now", 0.0),)}),
    ("tenants", {"tenants": {"a": -1.0}}),
    ("tenants", {"tenants": {"a": float("nan")}}),
    ("embeddings", {"embeddings": np.zeros((6, 2), np.float32)}),
]


def test_wrong_content_names_the_field() -> None:
    rows = [(values, f"^{field}: must") for field, values in WRONG]

    assert wrong_refusals(InvalidArgument, lambda values: Content(**({"prompts": PROMPTS} | values)), rows) == []
