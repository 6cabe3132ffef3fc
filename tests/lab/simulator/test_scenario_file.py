import json
from pathlib import Path

import numpy as np
import pytest

from lab.emulation.fleet_file import read_fleet
from lab.planners.registry import POLICIES
from lab.simulator.__main__ import main
from lab.simulator.scenario_file import read_scenario
from lab.simulator.synthetic_log import synthetic_log
from pentimento.domain.errors import InvalidArgument, NotFound
from pentimento.profiles.costs import costs_to_json
from tests.lab.simulator.scenarios import arrivals, run
from tests.support.refusals import wrong_refusals

SCENARIOS = Path(__file__).parents[3] / "scenarios"

FLEET = """
batching = "requests"
default_model = "heavy"
[[models]]
name = "light"
steps = 1
latency_s = { 1 = 0.1 }
quality = 0.7
[[models]]
name = "heavy"
steps = 50
latency_s = { 1 = 2.0, 2 = 3.0 }
quality = 0.8
[[devices]]
name = "a"
count = 4
models = ["heavy", "light"]
"""

SCENARIO = """
fleet = "fleet.toml"
policies = ["diffserve", "clipper-light"]
seed = 3
[workload]
kind = "poisson"
rate = 1.0
duration_s = 20.0
deadline_s = 5.0
[policy]
light = "light"
heavy = "heavy"
slo_s = 5.0
expected_per_s = 1.0
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    (tmp_path / "fleet.toml").write_text(FLEET)
    path = tmp_path / "scenario.toml"
    path.write_text(SCENARIO)
    return path


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.toml")), ids=lambda path: path.stem)
def test_scenarios_that_ship_are_read(path: Path) -> None:
    file = read_scenario(path)

    assert file.workload.arrivals
    assert all(scenario.device_count == 16 for scenario in file.scenarios)


def test_the_page_of_scenarios_names_every_policy() -> None:
    lines = (SCENARIOS / "README.md").read_text().splitlines()

    (names,) = (line.split(" names: ")[1].removesuffix(" |") for line in lines if line.startswith("| `policies` |"))

    assert sorted(names.split(", ")) == sorted(POLICIES)


def test_a_file_becomes_a_scenario_for_each_policy(scenario: Path) -> None:
    file = read_scenario(scenario)

    assert [one.policy.name for one in file.scenarios] == ["diffserve", "clipper-light"]
    assert file.scenarios[0].device_settings.steps is False
    assert file.workload.arrivals[0].deadline_s == 5.0


def test_what_a_start_from_the_cache_keeps_of_the_quality_is_the_fleet_s(scenario: Path) -> None:
    fleet = scenario.with_name("fleet.toml")
    fleet.write_text(FLEET.replace("quality = 0.8", "quality = 0.8\nreuse_quality = 0.95"))

    light, heavy = read_scenario(scenario).scenarios[0].models

    assert (light.reuse_quality, heavy.reuse_quality) == (1.0, 0.95)


def test_a_run_takes_the_steps_that_the_fleet_asks_for_not_those_that_were_profiled(scenario: Path) -> None:
    fleet = scenario.with_name("fleet.toml")
    heavy = read_fleet(fleet).model("heavy")
    scenario.with_name("heavy.json").write_text(costs_to_json(heavy.profile))
    published = "steps = 50\nlatency_s = { 1 = 2.0, 2 = 3.0 }"
    fleet.write_text(FLEET.replace(published, 'profile = "heavy.json"\nsteps = 25'))

    costs = read_scenario(scenario).scenarios[0].model("heavy").costs

    assert costs.run_s(2) == pytest.approx(1.5)


def test_a_share_of_quality_that_cannot_be_is_named_with_file_and_line(scenario: Path) -> None:
    for value in ("-0.1", "95", "'high'", "nan"):
        scenario.with_name("fleet.toml").write_text(FLEET.replace("quality = 0.8", f"reuse_quality = {value}"))

        with pytest.raises(InvalidArgument, match=r"fleet\.toml:13: models\[1\]\.reuse_quality: must be"):
            read_scenario(scenario)


def test_the_fleet_s_cascade_is_for_policies_that_plan_none(scenario: Path) -> None:
    fleet = scenario.with_name("fleet.toml")
    fleet.write_text('cascade = ["light", "heavy"]\nconfidence_threshold = 0.4\n' + FLEET)

    resident, planned = read_scenario(scenario, ["resident", "clipper-heavy"]).scenarios

    assert resident.dataplane.confidence_threshold == 0.4
    assert planned.dataplane.confidence_threshold == 0.0
    assert {record.model for record in run(planned, arrivals([0.0, 0.1], steps=50))} == {"heavy"}


def test_the_command_line_may_choose_policy_and_seed(scenario: Path) -> None:
    file = read_scenario(scenario, ["vanilla"], seed=9)

    assert [one.policy.name for one in file.scenarios] == ["vanilla"]
    assert file.seed == 9
    assert file.workload != read_scenario(scenario).workload


WRONG = [
    ("rate = 1.0", "rate = -1.0", r"scenario.toml:7: workload.rate: must be at least"),
    ('kind = "poisson"', 'kind = "gauss"', r"scenario.toml:6: workload.kind: must be one of .*got 'gauss'"),
    ("duration_s = 20.0", "duration = 20.0", r"workload.duration_s: must be given"),
    ("deadline_s = 5.0", "deadline_s = 5.0\nhaste = 1", r"scenario.toml:10: workload.haste: is no field"),
    ('light = "light"', 'light = "tiny"', r"scenario.toml:11: policy.light: must be models of the fleet"),
    ('"clipper-light"]', '"clipper-dark"]', r"scenario.toml:3: policies: must be some of .*got 'clipper-dark'"),
    ("seed = 3", "[[outages]]\nworker = 'b-0'\nat_s = 1\nfor_s = 1", r"worker: must be a worker of the fleet"),
    ("seed = 3", "[cache.images]\nsimilarity = [0.5]\nsaved_share = []", r"saved_share: must be one for each"),
    ("seed = 3", "[cache.images]\nsimilarity = [0.5]\nsaved_share = [1.5]", r"saved_share must be above 0"),
    ("seed = 3", "seed = ", r"scenario.toml: must be TOML"),
    ("fleet.toml", "none.toml", r"scenario.toml:2: fleet: must be there, but .*none.toml is not"),
    ("seed = 3", "[cache.images]\nsimilarity = [0.5, 0.4]\nsaved_share = [0.1, 0.2]", r"similarity: must ascend"),
    ('light = "light"\n', "", r"scenario.toml:10: policy.light: must name a model for diffserve"),
    ("slo_s = 5.0", "", r"policy.slo_s: must be above 0 and finite for diffserve"),
    ("slo_s = 5.0", "slo_s = 5.0\nbatch_sizes = [1.5]", r"policy.batch_sizes: must be whole numbers"),
    ("rate = 1.0", 'rate = 1.0\nprompts = "p.txt"', r"scenario.toml:8: workload.prompts: must be there"),
]


def test_a_wrong_field_is_named_with_its_line(scenario: Path) -> None:
    def read(before: str, after: str) -> None:
        scenario.write_text(SCENARIO.replace(before, after, 1))
        read_scenario(scenario)

    assert wrong_refusals(InvalidArgument, read, WRONG) == []


def test_a_wrong_policy_of_the_command_line_is_not_blamed_on_the_file(scenario: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"^--policy: must be some of .*, got 'nobody'$"):
        read_scenario(scenario, ["nobody"])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"nothing\.toml"):
        read_scenario(tmp_path / "nothing.toml")


def test_the_command_prints_policies_side_by_side_and_saves_what_it_made(
    scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"

    code = main([str(scenario), "--out", str(out)])

    told = capsys.readouterr()
    assert code == 0
    assert "diffserve" in told.out and "clipper-light" in told.out and "simulated" in told.out
    assert "pentimento: playing clipper-light, " in told.err and f"and the records are in {out}" in told.err
    assert {"diffserve.jsonl.gz", "diffserve.json", "report.html", "report.txt"} <= {p.name for p in out.iterdir()}
    assert json.loads((out / "diffserve.json").read_text())["provenance"]["kind"] == "simulated"


def test_a_folder_that_cannot_be_made_is_named(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (scenario.parent / "file").write_text("")

    code = main([str(scenario), "--out", str(scenario.parent / "file")])

    assert code == 1
    assert capsys.readouterr().err == f"pentimento: {scenario.parent / 'file'}: File exists\n"


def test_command_reports_a_fault_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main([str(tmp_path / "nothing.toml")])

    assert code == 1
    assert capsys.readouterr().err.startswith("pentimento: ")


def test_a_seed_that_nothing_can_be_drawn_with_is_refused_by_name(
    scenario: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main([str(scenario), "--seed", "-1"])

    assert code == 1
    assert capsys.readouterr().err == "pentimento: --seed: must be at least 0, got -1\n"


@pytest.fixture(scope="module")
def made_up() -> np.ndarray:
    """Similarities of each prompt of the second half to those before it; -1 to itself and those after."""
    vectors = synthetic_log(3_500, np.random.default_rng(0))
    similarities: np.ndarray = np.where(np.tri(3_500, k=-1, dtype=bool), vectors @ vectors.T, -1.0)[1_750:]
    return similarities


def test_a_made_up_log_has_diffusiondb_s_locality(made_up: np.ndarray) -> None:
    found = [(made_up.max(axis=1) > similarity).mean() for similarity in (0.47, 0.65, 0.75, 0.85, 0.90, 0.95)]

    assert found == pytest.approx([0.93, 0.74, 0.61, 0.50, 0.43, 0.32], abs=0.03)


def test_a_made_up_log_is_looked_back_into_as_far(made_up: np.ndarray) -> None:
    shares = {
        **{(0.5, 10): 0.62, (0.5, 100): 0.80},
        **{(0.65, 10): 0.48, (0.65, 30): 0.57, (0.65, 300): 0.68, (0.65, 1_000): 0.71},
    }
    found = {
        (similarity, window): np.mean(
            [(row[index - window : index] >= similarity).any() for index, row in enumerate(made_up, start=1_750)]
        )
        for similarity, window in shares
    }

    assert found == pytest.approx(shares, abs=0.1)


def test_a_made_up_log_has_something_near_without_its_newest_prompts(made_up: np.ndarray) -> None:
    shares = {
        **{(0.5, 40): 0.86, (0.5, 1_000): 0.80},
        **{(0.65, 5): 0.68, (0.65, 40): 0.56, (0.65, 300): 0.45, (0.65, 1_000): 0.40},
    }
    found = {
        (similarity, missing): np.mean(
            [(row[: index - missing] >= similarity).any() for index, row in enumerate(made_up, start=1_750)]
        )
        for similarity, missing in shares
    }

    assert found == pytest.approx(shares, abs=0.1)


def test_the_rule_of_eviction_is_the_file_s_or_the_command_line_s(scenario: Path) -> None:
    scenario.write_text(SCENARIO + '[cache]\neviction = "lfu"\n')

    assert {one.cache.eviction for one in read_scenario(scenario).scenarios} == {"lfu"}
    assert {one.cache.eviction for one in read_scenario(scenario, eviction="aged").scenarios} == {"aged"}


def test_scenario_cache_states_how_latents_are_noised_again(scenario: Path) -> None:
    scenario.write_text(SCENARIO + "[cache]\nrenoised_share = 1.0\nretaken_share = 0.2\n")

    rules = {one.cache.rules for one in read_scenario(scenario).scenarios}

    assert {(one.renoised_share, one.retaken_share) for one in rules} == {(1.0, 0.2)}


def test_an_unknown_rule_of_eviction_is_named_with_file_and_line(scenario: Path) -> None:
    scenario.write_text(SCENARIO + '[cache]\neviction = "random"\n')

    with pytest.raises(InvalidArgument, match=r"cache\.eviction: must be one of fifo, lru, lfu, lcbfu, aged"):
        read_scenario(scenario)


def test_adapters_are_simulated_where_a_table_asks_for_them(scenario: Path) -> None:
    assert read_scenario(scenario).scenarios[0].adapters.resident_count == 0
    scenario.write_text(f"{SCENARIO}[adapters]\nresident_count = 3\nload_s = 0.5\n")

    adapters = read_scenario(scenario).scenarios[0].adapters

    assert (adapters.resident_count, adapters.load.mean_s) == (3, 0.5)
    scenario.write_text(f"{SCENARIO}[adapters]\nresident_count = 0\n")
    with pytest.raises(InvalidArgument, match="resident_count"):
        read_scenario(scenario)
