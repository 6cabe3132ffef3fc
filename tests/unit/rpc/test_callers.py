"""Names of certificates against rules of callers, and the table of calls against the contracts."""

import subprocess
from pathlib import Path

import pytest
from cryptography import x509
from google.protobuf import descriptor_pool
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.fixtures.certificates import Authority
from pentimento.api.components.v1 import component_service_pb2  # noqa: F401
from pentimento.api.controller.v1 import controller_service_pb2  # noqa: F401
from pentimento.api.controlnet.v1 import controlnet_service_pb2  # noqa: F401
from pentimento.api.discriminator.v1 import discriminator_service_pb2  # noqa: F401
from pentimento.api.embedder.v1 import embedder_service_pb2  # noqa: F401
from pentimento.api.frontdoor.v1 import frontdoor_service_pb2  # noqa: F401
from pentimento.api.image.v1 import image_service_pb2  # noqa: F401
from pentimento.api.models.v1 import model_repository_service_pb2  # noqa: F401
from pentimento.api.safety.v1 import safety_service_pb2  # noqa: F401
from pentimento.api.vectordb.v1 import vectordb_gateway_service_pb2  # noqa: F401
from pentimento.api.worker.v1 import unet_worker_service_pb2  # noqa: F401
from pentimento.domain.errors import PermissionDenied
from pentimento.domain.tenants import Role
from pentimento.rpc.access import ALLOWED_CALLS, access_of, callers_of, declared_access
from pentimento.rpc.callers import REJECTED, CallerRules, CertificateNames, NamedServices, read_rules
from pentimento.settings import SettingsError
from tests.support.refusals import wrong_refusals

EDGE_URI = "spiffe://cluster.local/ns/images/sa/pentimento-edge"


def written(folder: Path, text: str) -> Path:
    file = folder / "callers.toml"
    file.write_text(text)
    return file


WRONG = (
    ("names = 1", "must hold the table"),
    ("", "must hold the table"),
    ("[names]\n", "must hold the table"),
    ('[names]\nedge = ["a"]\n[more]\n', "must hold the table"),
    ("[names", "not valid TOML"),
    ('[names]\nworker = ["a"]', "names.worker: must be one of administrator, client, controller, controlnet-svc"),
    ('[names]\nedge = "a"', "names.edge: must be a list of names"),
    ("[names]\nedge = [1]", r"names.edge\[0\]: must be a text of 1 to 253 characters"),
    ('[names]\nedge = ["a", ""]', r"names.edge\[1\]: must be a text of 1 to 253 characters"),
    (f'[names]\nedge = ["{"a" * 254}"]', r"names.edge\[0\]: must be a text of 1 to 253 characters"),
    *(
        (f'[names]\nedge = ["{name}"]', r"names.edge\[0\]: must be a DNS name")
        for name in (
            "*",
            "*.svc",
            "a.*.ns.svc",
            "w*.ns.images.svc",
            "*.*.ns.svc",
            "a..b",
            ".a",
            "a.",
            "-a",
            "spiffe://cluster.local",
            "spiffe://*/ns/a",
            "spiffe://cluster.local/ns/*/sa/b",
            "spiffe://user@host/a",
            "spiffe://host/a?b",
            "a b",
        )
    ),
)


def test_malformed_rules_are_rejected_by_their_place(tmp_path: Path) -> None:
    rows = [(text, rf"callers\.toml: .*{problem}") for text, problem in WRONG]

    assert wrong_refusals(SettingsError, lambda text: read_rules(written(tmp_path, text)), rows) == []


def test_missing_rules_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        CallerRules(tmp_path / "callers.toml")


RULES = f"""
[names]
edge = ["{EDGE_URI}", "Pentimento-Edge"]
unet-worker = ["*.workers.images.svc"]
frontdoor = ["pentimento-frontdoor", "*.workers.images.svc"]
embedder = []
"""
MATCHES = (
    (CertificateNames(uris=(EDGE_URI,)), {"edge"}),
    (CertificateNames(uris=(EDGE_URI.replace("spiffe://cluster", "SPIFFE://Cluster"),)), {"edge"}),
    (CertificateNames(uris=(EDGE_URI.replace("edge", "Edge"),)), set()),
    (CertificateNames(uris=(EDGE_URI + "/",)), set()),
    (CertificateNames(uris=(EDGE_URI + "-2",)), set()),
    # A name of the other kind is another name.
    (CertificateNames(dns=(EDGE_URI,)), set()),
    (CertificateNames(uris=("pentimento-edge",)), set()),
    (CertificateNames(dns=("pentimento-edge",)), {"edge"}),
    (CertificateNames(dns=("PENTIMENTO-EDGE",)), {"edge"}),
    (CertificateNames(dns=("pentimento-edge.images.svc",)), set()),
    (CertificateNames(dns=("worker-0.workers.images.svc",)), {"unet-worker", "frontdoor"}),
    # As cert-manager issues it for all pods of a headless Service.
    (CertificateNames(dns=("*.workers.images.svc",)), {"unet-worker", "frontdoor"}),
    (CertificateNames(dns=("a.worker-0.workers.images.svc",)), set()),
    (CertificateNames(dns=("workers.images.svc",)), set()),
    (CertificateNames(dns=("*.images.svc",)), set()),
    (CertificateNames(dns=("*",)), set()),
    (CertificateNames(dns=("*.workers.images.svc.",)), set()),
    (CertificateNames(dns=("worker 0.workers.images.svc",)), set()),
    (CertificateNames(dns=(".workers.images.svc",)), set()),
    (CertificateNames(("x.y.z", "pentimento-frontdoor"), (EDGE_URI,)), {"edge", "frontdoor"}),
    (CertificateNames(), set()),
)


def test_names_belong_to_the_services_of_the_file(tmp_path: Path) -> None:
    rules = read_rules(written(tmp_path, RULES))

    # The second answer is remembered.
    for _ in range(2):
        assert [(names, rules.services(names)) for names, _ in MATCHES] == list(MATCHES)


def test_rejected_call_names_method_and_names_and_is_counted(tmp_path: Path) -> None:
    rules = CallerRules(written(tmp_path, RULES))
    method = "/pentimento.api.worker.v1.UnetWorkerService/Execute"
    before = REJECTED._value.get()

    rules.check(method, frozenset({"edge"}), CertificateNames(uris=(EDGE_URI,)))
    with pytest.raises(PermissionDenied) as rejected:
        rules.check(method, frozenset({"frontdoor"}), CertificateNames(("x.y",), (EDGE_URI,)))
    with pytest.raises(PermissionDenied, match="is not for a certificate without DNS names and URIs"):
        rules.check(method, frozenset({"frontdoor"}), CertificateNames())

    assert rejected.value.reason == "CALLER_NOT_ALLOWED"
    assert rejected.value.message == f"{method} is not for {EDGE_URI}, x.y"
    assert rejected.value.metadata == {"method": method, "names": f"{EDGE_URI}, x.y"}
    assert REJECTED._value.get() == before + 2


LABELS = st.sampled_from(["worker-0", "workers", "W0rkers", "images", "svc", "xn--caf-dma", "0", "a"])
NAMES = st.lists(LABELS, min_size=1, max_size=5).map(".".join)
PATTERNS = st.one_of(NAMES, NAMES.filter(lambda name: "." in name).map(lambda name: f"*.{name}"))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"), "authority")


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(pattern=PATTERNS, name=NAMES, data=st.data())
def test_wildcards_match_as_openssl_matches_them(
    pattern: str, name: str, data: st.DataObject, authority: Authority
) -> None:
    """The pattern as the name in a certificate that OpenSSL compares with a host's name."""
    if pattern.startswith("*.") and data.draw(st.booleans()):
        name = data.draw(LABELS) + pattern[1:].swapcase()
    certificate = authority.issue("pattern", x509.DNSName(pattern)).certificate
    command = ["openssl", "x509", "-noout", "-checkhost", name, "-in", str(certificate)]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout

    found = NamedServices({"edge": (pattern.lower(),)}).services(CertificateNames(dns=(name,)))

    assert "match" in said
    assert found == (frozenset() if "NOT match" in said else {"edge"})


def table() -> list[tuple[str, str, str, str]]:
    return [
        (caller, called, service, method)
        for caller, calls in ALLOWED_CALLS.items()
        for called, methods in calls.items()
        for service, names in methods.items()
        for method in names
    ]


def test_each_call_of_the_table_is_one_of_a_contract() -> None:
    for caller, called, service, method in table():
        assert called in ALLOWED_CALLS, (caller, called)
        descriptor = descriptor_pool.Default().FindServiceByName(service)
        assert method in descriptor.methods_by_name, (caller, service, method)


def test_services_make_only_calls_that_their_tokens_allow() -> None:
    """The edge calls with its callers' tokens, every other service with a token of the role `service`."""
    for caller, _, service, method in table():
        own = {Role.USER, Role.ADMIN} if caller == "edge" else {Role.SERVICE}
        options = descriptor_pool.Default().FindServiceByName(service).methods_by_name[method].GetOptions()
        assert own & access_of(options).roles, (caller, service, method)


CONTRACTS = sorted({service for _, _, service, _ in table()})


def test_methods_for_services_only_are_in_the_table() -> None:
    """Without a caller in it, a method that only services may call could be called by none."""
    left = [
        f"{service}/{method}"
        for service in CONTRACTS
        for method, access in declared_access(service).items()
        if access.roles == {Role.SERVICE} and not access.callers
    ]

    assert left == []


def test_edge_may_call_all_of_the_image_api() -> None:
    """Its methods are for clients too, so that the calls of services only do not show one that is left out."""
    (contract,) = (name for name in CONTRACTS if name.endswith(".ImageService"))

    left = [method for method, access in declared_access(contract).items() if "edge" not in (access.callers or ())]

    assert left == []


def test_callers_of_a_method_are_services_and_roles() -> None:
    found = {
        path: sorted(callers_of(path, frozenset(roles)))
        for path, roles in (
            ("/pentimento.api.worker.v1.UnetWorkerService/Execute", {Role.SERVICE}),
            ("/pentimento.api.worker.v1.UnetWorkerService/PredictHalf", {Role.SERVICE}),
            ("/pentimento.api.controller.v1.ControllerService/GetFleet", {Role.SERVICE, Role.ADMIN}),
            ("/pentimento.api.image.v1.ImageService/Generate", {Role.USER, Role.ADMIN}),
            ("/pentimento.api.models.v1.ModelRepositoryService/RegisterModel", {Role.ADMIN}),
            ("/pentimento.api.tenants.v1.TenantService/CreateKey", {Role.TENANT_ADMIN}),
            ("/pentimento.api.embedder.v1.EmbedderService/Execute", {Role.SERVICE}),
        )
    }

    assert list(found.values()) == [
        ["frontdoor"],
        ["unet-worker"],
        ["administrator", "edge"],
        ["administrator", "client", "edge"],
        ["administrator"],
        ["administrator"],
        [],
    ]
