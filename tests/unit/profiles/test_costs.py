"""Cost profiles: values survive writing and reading, and errors name the damaged field."""

import json
import statistics
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pentimento.domain.errors import InvalidArgument
from pentimento.profiles.costs import BatchProfile, Cost, ModelProfile, SizeProfile, costs_from_json, costs_to_json

samples = st.lists(st.floats(0.001, 10), min_size=1, max_size=20)
costs = samples.map(Cost.of)
sides = st.integers(8, 4096)
profiles = st.builds(
    ModelProfile,
    *[st.text(max_size=20) for _ in range(4)],
    st.integers(1, 64),
    st.sampled_from(["eager", "compile", "graphs"]),
    st.integers(1, 1000),
    st.lists(st.builds(SizeProfile, sides, sides, costs, costs, costs), max_size=3).map(tuple),
    st.lists(
        st.builds(
            BatchProfile,
            sides,
            sides,
            st.booleans(),
            st.integers(1, 64),
            st.lists(costs, min_size=1, max_size=3).map(tuple),
            st.none() | st.integers(1, 2**40),
        ),
        max_size=3,
    ).map(tuple),
    st.none() | st.integers(1, 2**40),
)


@settings(deadline=None)
@given(profiles)
def test_costs_from_json_of_written_profile_returns_it(profile: ModelProfile) -> None:
    assert costs_from_json(costs_to_json(profile)) == profile


@settings(deadline=None)
@given(st.lists(samples, min_size=1, max_size=5))
def test_pooled_cost_equals_cost_of_all_samples(groups: list[list[float]]) -> None:
    together = [sample for group in groups for sample in group]

    pooled = Cost.pooled([Cost.of(group) for group in groups])

    assert pooled.sample_count == len(together)
    assert pooled.mean_s == pytest.approx(statistics.fmean(together))
    variance = statistics.variance(together) if len(together) > 1 else 0.0
    assert pooled.variance_s2 == pytest.approx(variance, abs=1e-9)


ONE = Cost(1.0, 0.0, 5)
PROFILE = ModelProfile(
    "tiny", "sha256:0", "cpu", "float32", 1, "eager", 2,
    (SizeProfile(32, 32, ONE, ONE, ONE),),
    tuple(BatchProfile(32, 32, True, size, (Cost(mean, mean / 10, 5),)) for size, mean in ((1, 1.0), (4, 2.5))),
)  # fmt: skip


def test_step_seconds_between_measured_batches_are_linear() -> None:
    sizes = (1, 2, 4, 5, 0)

    found = [PROFILE.step_seconds(32, 32, guided=True, batch_size=size) for size in sizes]

    assert found == [1.0, 1.5, 2.5, None, None]
    assert PROFILE.step_cost(32, 32, guided=True, batch_size=2) == Cost(1.5, pytest.approx(0.15), 5)


def test_profile_of_unmeasured_size_has_no_cost() -> None:
    assert PROFILE.step_seconds(64, 32, guided=True, batch_size=1) is None
    assert PROFILE.batch(32, 32, guided=False, batch_size=1) is None
    assert PROFILE.batch(32, 32, guided=True, batch_size=4) == PROFILE.batches[1]


def edited(path: list[Any], value: Any) -> str:
    document = json.loads(costs_to_json(replace(PROFILE, build_version="1")))
    place = document if path == ["format"] else document["profiles"][0]
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    return json.dumps(document)


BROKEN: list[tuple[list[Any], Any, str]] = [
    (["format"], 3, "format"),
    (["model"], 3, "profile.model"),
    (["threads"], True, "profile.threads"),
    (["threads"], 0, "profile.threads"),
    (["batches"], {}, "profile.batches"),
    (["batches", 1, "steps"], [], "profile.batches[1].steps"),
    (["batches", 0, "guided"], 1, "profile.batches[0].guided"),
    (["batches", 0, "steps", 0, "mean_s"], -1, "profile.batches[0].steps[0].mean_s"),
    (["batches", 0, "steps", 0, "mean_s"], float("nan"), "profile.batches[0].steps[0].mean_s"),
    (["batches", 0, "steps", 0, "variance_s2"], "0", "profile.batches[0].steps[0].variance_s2"),
    (["sizes", 0, "decode"], None, "profile.sizes[0].decode"),
    (["idle_memory_bytes"], 1.5, "profile.idle_memory_bytes"),
]


def test_costs_from_json_names_broken_field() -> None:
    for path, value, named in BROKEN:
        with pytest.raises(InvalidArgument) as refused:
            costs_from_json(edited(path, value))
        assert refused.value.violations[0].field == named.replace("profile.", "profiles[0].")
    for text in ("", "{", "[]", "3"):
        with pytest.raises(InvalidArgument, match="profile"):
            costs_from_json(text)
