"""What the chart does with single values."""

import importlib.util
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.fixtures.charts.combinations import EXTERNAL
from lab.fixtures.charts.rendering import CHART, NAMESPACE, RELEASE, TOOLS, Manifest, run_helm
from lab.fixtures.charts.rules import RenderedRelease, component
from lab.fixtures.charts.starting import SETTINGS, environments
from pentimento.stores.ledger.database import open_engine

Rendering = Callable[..., list[Manifest]]


def test_scaled_workload_has_no_replicas(rendered: Rendering) -> None:
    scaled = {"workerDefaults": {"autoscaling": {"kind": "external"}}, "edge": {"autoscaling": {"kind": "hpa"}}}
    workloads = RenderedRelease(rendered(EXTERNAL, scaled)).workloads

    without = {component(one) for one in workloads if "replicas" not in one["spec"]}

    assert without == {"unet-worker", "edge"}


def test_upgrade_migrates_the_ledger_of_the_services(rendered: Rendering) -> None:
    manifests = rendered(EXTERNAL)
    (job,) = RenderedRelease(manifests).of("Job")
    *_, flag, module, url = job["spec"]["template"]["spec"]["containers"][0]["command"]

    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-upgrade"
    assert flag == "-m" and importlib.util.find_spec(module) is not None
    variables = environments(manifests)
    for name in ("frontdoor", "vectordb-gateway", "controller"):
        section = name.upper().replace("-", "_")
        assert variables[name][f"PENTIMENTO_{section}_LEDGER_URL"] == url
    assert open_engine(url).url.username == "pentimento"


def test_tls_names_every_replica(rendered: Rendering) -> None:
    variables = environments(rendered(EXTERNAL, {"tls": {"secret": "certificates"}}))
    advertised = {
        name: next((value for key, value in given.items() if key.endswith("_ADVERTISE_ADDRESS")), "")
        for name, given in variables.items()
    }

    # A certificate cannot name an address that a pod gets at its start.
    assert not [name for name, address in advertised.items() if "POD_IP" in address]
    assert advertised["embedder"] == "$(POD_NAME).pentimento-embedder.images.svc:50051"
    assert advertised["frontdoor"] == "pentimento-frontdoor:50051"


def test_kustomize_takes_the_manifests(tmp_path: Path) -> None:
    example = str(CHART / "examples" / "trial.yaml")
    text = run_helm("template", RELEASE, str(CHART), "--namespace", NAMESPACE, "--no-hooks", "--values", example)
    (tmp_path / "pentimento.yaml").write_text(text)
    (tmp_path / "kustomization.yaml").write_text("resources: [pentimento.yaml]\nnamespace: elsewhere\n")

    built = subprocess.run(
        [TOOLS / "kubectl", "kustomize", tmp_path], capture_output=True, text=True, check=True
    ).stdout

    assert built.count("\nkind: ") == text.count("\nkind: ")
    assert "namespace: elsewhere" in built and "kind: Job" not in built


@pytest.mark.parametrize(("version", "api"), [("1.33", "v1beta2"), ("1.34", "v1")])
def test_claims_are_of_the_cluster_s_version(version: str, api: str, rendered: Rendering) -> None:
    claims = {"workerDefaults": {"accelerator": {"kind": "claim", "selectors": ["true"]}}}
    release = RenderedRelease(rendered(EXTERNAL, claims, version=version))

    templates = release.of("ResourceClaimTemplate")

    assert {one["apiVersion"] for one in templates} == {f"resource.k8s.io/{api}"}
    assert len(templates) == 2
    worker = next(one for one in release.workloads if component(one) == "unet-worker")
    (container,) = worker["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["claims"] == [{"name": "accelerator"}]
    assert container["image"].endswith("unet-worker-cuda:0.1.0")


def test_whole_numbers_have_no_exponent(rendered: Rendering) -> None:
    settings = {"frontdoor": {"settings": {"min_free_bytes": 134217728, "quality_sample_share": 0.05}}}

    environment = environments(rendered(EXTERNAL, settings))["frontdoor"]

    assert environment["PENTIMENTO_FRONTDOOR_MIN_FREE_BYTES"] == "134217728"
    assert environment["PENTIMENTO_FRONTDOOR_QUALITY_SAMPLE_SHARE"] == "0.05"


def test_settings_of_the_schema_are_none_that_the_chart_gives(rendered: Rendering) -> None:
    definitions = json.loads((CHART / "values.schema.json").read_text())["$defs"]
    everything = {
        "tls": {"secret": "certificates", "mutual": True},
        "frontdoor": {"admin": True},
        "workerDefaults": {"accelerator": {"kind": "plugin"}},
    }
    for name, environment in environments(rendered(EXTERNAL, everything)).items():
        section, _ = SETTINGS["unet-worker" if name.startswith("unet-worker") else name]
        for key in definitions[section]["properties"]:
            assert f"PENTIMENTO_{section}_{key}".upper() not in environment
            assert f"PENTIMENTO_COMMON_{key}".upper() not in environment
