"""Test the manifests for single values of the chart."""

import importlib.util
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab.fixtures.charts.combinations import EXTERNAL
from lab.fixtures.charts.release import RenderedRelease, component
from lab.fixtures.charts.rendering import CHART, NAMESPACE, RELEASE, TOOLS, Manifest, run_helm
from lab.fixtures.charts.rules import LED
from lab.fixtures.charts.starting import SETTINGS, environments
from pentimento.stores.ledger.database import open_engine
from services.controller.scaler import target_of

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


def test_cells_have_own_databases_and_prefixes_and_know_each_other(rendered: Rendering) -> None:
    cells = {"names": ["frontdoor", "b"], "former": [["frontdoor"]], "databases": {"b": "other"}}
    manifests = rendered(EXTERNAL, {"cells": cells})
    variables = environments(manifests)
    frontdoors = [variables[name] for name in ("frontdoor", "frontdoor-b")]

    def of(name: str) -> list[str]:
        return [one[f"PENTIMENTO_FRONTDOOR_{name}"] for one in frontdoors]

    assert of("FRONTDOOR_ID") == ["frontdoor", "b"]
    assert [open_engine(url).url.database for url in of("LEDGER_URL")] == ["pentimento", "other"]
    assert [open_engine(url).url.database for url in of("TENANTS_URL")] == ["pentimento", "pentimento"]
    assert [url.partition("?")[0] for url in of("OBJECTS_URL")] == ["s3://images/objects", "s3://images/objects-b"]
    addresses = "frontdoor=pentimento-frontdoor:50051,b=pentimento-frontdoor-b:50051"
    assert {*of("CELLS"), variables["edge"]["PENTIMENTO_EDGE_CELLS"]} == {addresses}
    assert {*of("CELL_LISTS"), variables["edge"]["PENTIMENTO_EDGE_CELL_LISTS"]} == {"frontdoor+b,frontdoor"}
    (job,) = RenderedRelease(manifests).of("Job")
    urls = job["spec"]["template"]["spec"]["containers"][0]["command"][3:]
    assert [open_engine(url).url.database for url in urls] == ["pentimento", "other"]


def test_database_of_a_cell_is_of_its_journal_only(rendered: Rendering) -> None:
    cells = {"names": ["frontdoor", "b"], "databases": {"frontdoor": "first"}}
    variables = environments(rendered(EXTERNAL, {"cells": cells}))
    urls = {
        key.removeprefix("PENTIMENTO_"): open_engine(url).url.database
        for name in ("frontdoor", "controller", "vectordb-gateway")
        for key, url in variables[name].items()
        if key.endswith(("LEDGER_URL", "TENANTS_URL"))
    }

    assert urls == {
        "FRONTDOOR_LEDGER_URL": "first",
        "FRONTDOOR_TENANTS_URL": "pentimento",
        "CONTROLLER_LEDGER_URL": "pentimento",
        "VECTORDB_GATEWAY_LEDGER_URL": "pentimento",
    }


@pytest.mark.parametrize(
    ("settings", "is_open"),
    [({}, False), ({"webhook_hosts": ["a.b"]}, True), ({"c2pa_timestamp_url": "https://a.b"}, True)],
)
def test_frontdoor_reaches_receivers_and_timestamp_authority(
    settings: dict[str, Any], is_open: bool, rendered: Rendering
) -> None:
    values = {"frontdoor": {"settings": settings}, "networkPolicy": {"webhookPorts": [8443]}}
    release = RenderedRelease(rendered(EXTERNAL, values))
    (policy,) = [one for one in release.of("NetworkPolicy") if one["metadata"]["name"] == "pentimento-frontdoor"]

    assert ({"ports": [{"port": 8443, "protocol": "TCP"}]} in policy["spec"]["egress"]) is is_open


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


def test_schema_has_no_setting_that_the_chart_gives(rendered: Rendering) -> None:
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


KEDA = {"kind": "keda", "minReplicas": 0, "maxReplicas": 50}


def test_keda_asks_the_controller_for_each_pool_and_service(rendered: Rendering) -> None:
    scaled = {"workerDefaults": {"autoscaling": KEDA}, "edge": {"autoscaling": {"kind": "keda", "callsPerReplica": 64}}}
    manifests = rendered(EXTERNAL, scaled)
    found = {
        one["spec"]["scaleTargetRef"]["name"]: (one["spec"]["minReplicaCount"], one["spec"]["triggers"][0]["metadata"])
        for one in RenderedRelease(manifests).of("ScaledObject")
    }
    address = {"scalerAddress": "pentimento-controller.images.svc:50053", "dwellSeconds": "300"}
    worker = {**address, "service": "unet_worker", "startSeconds": "60"}

    assert found == {
        "pentimento-unet-worker-heavy": (0, {**worker, "models": "tiny-heavy"}),
        "pentimento-unet-worker-light": (0, {**worker, "models": "tiny-light"}),
        "pentimento-edge": (1, {**address, "service": "edge", "callsPerReplica": "64"}),
    }
    assert not RenderedRelease(manifests).of("TriggerAuthentication")
    controller = environments(manifests)["controller"]
    assert controller["PENTIMENTO_CONTROLLER_SCALER_LISTEN"] == "0.0.0.0:50053"
    assert controller["PENTIMENTO_CONTROLLER_SCALED_MODELS"] == "tiny-heavy,tiny-light"


def test_scaler_knows_every_trigger_of_the_chart(rendered: Rendering) -> None:
    keys = ("embedder", "gateway", "controlnet", "discriminator", "edge", "workerDefaults")
    scaled = {key: {"autoscaling": {"kind": "keda"}} for key in keys}
    manifests = rendered(EXTERNAL, scaled, {"serving": {"imageEncoder": "tiny-dual"}})
    triggers = [one["spec"]["triggers"][0]["metadata"] for one in RenderedRelease(manifests).of("ScaledObject")]

    targets = {target_of(metadata).service for metadata in triggers}

    services = {
        "embedder",
        "image_embedder",
        "vectordb_gateway",
        "controlnet_svc",
        "discriminator",
        "edge",
        "unet_worker",
    }
    assert targets == services
    assert "PENTIMENTO_CONTROLLER_SCALED_MODELS" in environments(manifests)["controller"]


def test_example_of_fifty_gpus_scales_all_but_frontdoors_and_controller(rendered: Rendering) -> None:
    release = RenderedRelease(rendered(CHART / "examples" / "fifty-gpus.yaml"))
    counts = {
        one["metadata"]["name"].removeprefix("pentimento-"): (
            one["spec"]["minReplicaCount"],
            one["spec"]["maxReplicaCount"],
            target_of(one["spec"]["triggers"][0]["metadata"]).service,
        )
        for one in release.of("ScaledObject")
    }

    # The first three need all 50 GPUs.
    assert counts == {
        "unet-worker-heavy": (4, 36, "unet_worker"),
        "unet-worker-light": (2, 8, "unet_worker"),
        "controlnet-svc": (1, 6, "controlnet_svc"),
        "embedder": (2, 8, "embedder"),
        "vectordb-gateway": (2, 8, "vectordb_gateway"),
        "discriminator": (2, 6, "discriminator"),
        "edge": (2, 16, "edge"),
    }
    fixed = [one for kind in ("Deployment", "StatefulSet") for one in release.of(kind) if "replicas" in one["spec"]]
    assert {one["metadata"]["name"]: one["spec"]["replicas"] for one in fixed} == {
        "pentimento-controller": 2,
        "pentimento-frontdoor-a": 2,
        "pentimento-frontdoor-b": 2,
        "pentimento-frontdoor-c": 2,
        "pentimento-frontdoor-d": 2,
    }


@pytest.mark.parametrize(
    ("tls", "secret"),
    [
        ({"secret": "certificates"}, "certificates"),
        ({"secret": "certificates", "mutual": True}, "certificates"),
        ({"issuer": {"name": "suite"}, "mutual": True}, "pentimento-controller-tls"),
    ],
)
def test_keda_shows_certificate_of_controller_with_mutual_tls(
    tls: dict[str, Any], secret: str, rendered: Rendering
) -> None:
    manifests = rendered(EXTERNAL, {"workerDefaults": {"autoscaling": KEDA}}, {"tls": tls})
    (authentication,) = RenderedRelease(manifests).of("TriggerAuthentication")
    mutual = {"tlsClientCert": (secret, "tls.crt"), "tlsClientKey": (secret, "tls.key")} if "mutual" in tls else {}

    assert {one["parameter"]: (one["name"], one["key"]) for one in authentication["spec"]["secretTargetRef"]} == {
        "caCert": (secret, "ca.crt"),
        **mutual,
    }
    required = environments(manifests)["controller"].get("PENTIMENTO_COMMON_MUTUAL_TLS")
    assert required == ("true" if mutual else None)


def test_controller_without_keda_has_no_scaler(rendered: Rendering) -> None:
    manifests = rendered(EXTERNAL)
    release = RenderedRelease(manifests)
    ports = [port["name"] for one in release.of("Service") for port in one["spec"]["ports"]]

    assert not release.of("ScaledObject") and "scaler" not in ports
    assert "PENTIMENTO_CONTROLLER_SCALER_LISTEN" not in environments(manifests)["controller"]


def test_helm_does_not_wait_for_standbys(rendered: Rendering) -> None:
    several = {"frontdoor": {"replicas": 3}, "controller": {"replicas": 2}}
    led = [one for one in RenderedRelease(rendered(EXTERNAL, several)).workloads if component(one) in LED]

    # Helm 3 and `--wait=legacy` expect `replicas` less `maxUnavailable` ready pods.
    assert {one["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] for one in led} == {"100%"}
    assert sorted(one["spec"]["replicas"] for one in led) == [2, 3]
