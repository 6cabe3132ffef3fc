"""The chart's examples against every check, and each check against faults that it must notice."""

from collections.abc import Callable
from pathlib import Path

import pytest

from lab.fixtures.charts.combinations import EXTERNAL, combinations_of_values, every_pair, pairs, values_of
from lab.fixtures.charts.faults import PLANTED, WRONG_VALUES, planted
from lab.fixtures.charts.release import RenderedRelease
from lab.fixtures.charts.rendering import CHART, EXAMPLES, NAMESPACE, RELEASE, HelmRefusal, Manifest, lint, run_helm
from lab.fixtures.charts.rules import volumes_of_the_host
from lab.fixtures.charts.starting import findings

Rendering = Callable[..., list[Manifest]]


@pytest.mark.parametrize("version", ["1.33", "1.37"])
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda file: file.stem)
def test_example_has_no_findings(example: Path, version: str, rendered: Rendering, tmp_path: Path) -> None:
    assert findings(rendered(example, version=version), version, tmp_path) == []


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda file: file.stem)
def test_example_passes_strict_lint(example: Path, tmp_path: Path) -> None:
    lint([example], tmp_path)


@pytest.mark.parametrize(
    "rows", [*combinations_of_values(4, seed=1)], ids=lambda rows: "".join(map(str, rows.values()))
)
def test_combination_has_no_findings(rows: dict[str, int], rendered: Rendering, tmp_path: Path) -> None:
    assert findings(rendered(values_of(rows)), "1.37", tmp_path) == []


def test_drawn_combinations_have_every_pair() -> None:
    assert {pair for rows in combinations_of_values(72) for pair in pairs(rows)} == every_pair()


@pytest.mark.parametrize("fault", PLANTED)
def test_planted_fault_is_found(fault: str, rendered: Rendering, tmp_path: Path) -> None:
    sound = rendered(EXTERNAL)

    assert findings(planted(sound, fault), "1.37", tmp_path)


@pytest.mark.parametrize("field", WRONG_VALUES)
def test_wrong_value_is_rejected_by_its_name(field: str, rendered: Rendering) -> None:
    with pytest.raises(HelmRefusal) as refused:
        rendered(EXTERNAL, WRONG_VALUES[field])

    assert field in str(refused.value)


def test_older_kubernetes_is_rejected() -> None:
    values = ["--values", str(CHART / "examples" / "trial.yaml")]

    with pytest.raises(HelmRefusal, match=r"incompatible with Kubernetes v1\.32\.0"):
        run_helm("template", RELEASE, str(CHART), "--namespace", NAMESPACE, "--kube-version", "1.32.0", *values)


def test_pods_use_volumes_of_the_host_only_by_value(rendered: Rendering) -> None:
    place = {"models": {"kind": "hostPath", "path": "/srv/models"}}

    assert volumes_of_the_host(RenderedRelease(rendered(EXTERNAL))) == []
    assert len(volumes_of_the_host(RenderedRelease(rendered(EXTERNAL, place)))) == 5
