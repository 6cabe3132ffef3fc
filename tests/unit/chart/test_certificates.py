"""The certificates that the chart asks cert-manager for, and the rules that read their names."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab.fixtures.charts.combinations import EXTERNAL
from lab.fixtures.charts.release import RenderedRelease, component
from lab.fixtures.charts.rendering import CHART, Manifest
from lab.fixtures.charts.starting import environments
from pentimento.rpc.access import ALLOWED_CALLS, CALLERS
from pentimento.rpc.callers import CertificateNames, read_rules

Rendering = Callable[..., list[Manifest]]
OPERATOR = "spiffe://cluster.local/ns/ops/sa/operator"
NAMES = {"frontdoor": ["images.example"], "administrator": [OPERATOR], "unet-worker": ["*.spare.images.svc"]}
ISSUED = {
    "tls": {"issuer": {"name": "suite"}, "mutual": True, "names": NAMES},
    "serving": {"imageEncoder": "tiny-dual"},
}
SHARED = {"tls": {"secret": "certificates", "mutual": True}}
RULES_FILE = "/run/secrets/tls/callers.toml"


def rules_of(manifests: list[Manifest], folder: Path) -> Any:
    (found,) = [one for one in RenderedRelease(manifests).of("ConfigMap") if "callers.toml" in one["data"]]
    file = folder / "callers.toml"
    file.write_text(found["data"]["callers.toml"])
    return read_rules(file)


def service_of(manifest: Manifest) -> str:
    found = component(manifest)
    return "embedder" if found == "image-embedder" else found


def test_certificate_names_only_its_own_service(rendered: Rendering, tmp_path: Path) -> None:
    manifests = rendered(EXTERNAL, ISSUED)
    rules = rules_of(manifests, tmp_path)
    certificates = RenderedRelease(manifests).of("Certificate")

    for one in certificates:
        dns, uris = one["spec"]["dnsNames"], one["spec"]["uris"]
        # Another namespace may have a Service of the short name.
        assert rules.services(CertificateNames(dns=(one["metadata"]["name"],))) == set()
        assert one["metadata"]["name"] == dns[0]
        for names in (*(CertificateNames(dns=(name,)) for name in dns[1:]), CertificateNames(uris=tuple(uris))):
            assert rules.services(names) == {service_of(one)}, names
    worker = "pentimento-unet-worker-heavy-0.pentimento-unet-worker-heavy.images.svc"
    assert rules.services(CertificateNames(dns=(worker,))) == {"unet-worker"}
    assert rules.services(CertificateNames(uris=(OPERATOR,))) == {"administrator"}
    assert len(certificates) == 10


def test_each_pod_shows_the_certificate_of_its_component(rendered: Rendering) -> None:
    release = RenderedRelease(rendered(EXTERNAL, ISSUED))
    secrets = {one["metadata"]["name"]: one["spec"]["secretName"] for one in release.of("Certificate")}

    for one in release.workloads:
        (volume,) = [each for each in one["spec"]["template"]["spec"]["volumes"] if each["name"] == "tls"]
        secret, rules = volume["projected"]["sources"]
        assert secret == {"secret": {"name": secrets[one["metadata"]["name"]]}}
        assert rules == {"configMap": {"name": "pentimento-callers"}}


def test_frontdoor_certificate_has_further_name(rendered: Rendering) -> None:
    release = RenderedRelease(rendered(EXTERNAL, ISSUED))
    (frontdoor,) = [one for one in release.of("Certificate") if component(one) == "frontdoor"]

    assert frontdoor["spec"]["dnsNames"] == [
        "pentimento-frontdoor",
        "pentimento-frontdoor.images.svc",
        "images.example",
    ]
    assert frontdoor["spec"]["issuerRef"] == {"name": "suite", "kind": "Issuer", "group": "cert-manager.io"}


@pytest.mark.parametrize("values", [ISSUED, SHARED], ids=["issuer", "secret"])
def test_services_with_mutual_tls_read_the_rules(values: dict[str, Any], rendered: Rendering) -> None:
    given = {
        name: tuple(variables.get(f"PENTIMENTO_COMMON_{key}") for key in ("TLS_DIR", "MUTUAL_TLS", "TLS_CALLERS_FILE"))
        for name, variables in environments(rendered(EXTERNAL, values)).items()
    }

    # Clients of frontdoor and edge need no certificate; both show theirs to the other services.
    clients = {name: given.pop(name) for name in ("frontdoor", "edge")}
    assert set(clients.values()) == {("/run/secrets/tls", None, None)}
    assert set(given.values()) == {("/run/secrets/tls", "true", RULES_FILE)}
    assert len(given) > 5


def test_rules_can_be_turned_off(rendered: Rendering) -> None:
    manifests = rendered(EXTERNAL, {"tls": {"secret": "certificates", "mutual": True, "callerRules": False}})

    assert not [one for one in RenderedRelease(manifests).of("ConfigMap") if "callers.toml" in one["data"]]
    assert "PENTIMENTO_COMMON_TLS_CALLERS_FILE" not in environments(manifests)["controller"]


def test_certificate_of_all_services_may_make_the_calls_of_each(rendered: Rendering, tmp_path: Path) -> None:
    """docs/kubernetes.md lists the names of the one Secret."""
    rules = rules_of(rendered(EXTERNAL, SHARED), tmp_path)
    page = (CHART.parents[2] / "docs" / "kubernetes.md").read_text()
    names = tuple(page.partition("Its names are:\n```text\n")[2].partition("\n```")[0].splitlines())

    assert len(names) > 8
    assert rules.services(CertificateNames(dns=names)) == ALLOWED_CALLS.keys()


def test_certificate_names_match_caller_rules() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())

    assert schema["properties"]["tls"]["properties"]["names"]["properties"].keys() == CALLERS


def test_network_policies_allow_the_calls_of_the_table(rendered: Rendering) -> None:
    release = RenderedRelease(rendered(EXTERNAL))
    selectors = [(service_of(one), one["spec"]["template"]["metadata"]["labels"]) for one in release.workloads]
    allowed: dict[str, set[str]] = {name: set() for name, _ in selectors}
    for policy in release.of("NetworkPolicy"):
        caller = policy["metadata"]["labels"].get("app.kubernetes.io/component")
        if caller is None or caller == "migrate":
            continue
        for rule in policy["spec"].get("egress") or ():
            for peer in rule.get("to") or ():
                labels = peer["podSelector"]["matchLabels"]
                allowed[service_of(policy)] |= {name for name, own in selectors if labels.items() <= own.items()}

    assert allowed == {caller: {*called} for caller, called in ALLOWED_CALLS.items()}
