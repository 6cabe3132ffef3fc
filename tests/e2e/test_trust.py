"""Real processes over mutual TLS with a certificate each, rules of callers, a signed model and signed LoRAs."""

import json
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from cryptography import x509

from lab.fixtures.certificates import Authority
from pentimento.api.controller.v1 import controller_service_pb2 as controller_pb
from pentimento.api.controller.v1.controller_service_pb2_grpc import ControllerServiceStub
from pentimento.api.embedder.v1 import embedder_service_pb2 as embedder_pb
from pentimento.api.embedder.v1.embedder_service_pb2_grpc import EmbedderServiceStub
from pentimento.domain.errors import FailedPrecondition
from pentimento.domain.image_request import AskedControlNet, AskedLora, CacheMode, ImageRequest
from pentimento.sdk import Client
from tests.support.images import a_png
from tests.support.processes import ROOT, StartedProcesses
from tests.support.waiting import wait_until
from tests.unit.files.test_signed_entries import Keys

WEIGHTS = ROOT / "zoo" / "weights"
SERVICES = ("controller", "embedder", "vectordb-gateway", "unet-worker", "controlnet-svc", "frontdoor", "edge")
OUTSIDE = ("client", "administrator")


def uri(service: str) -> str:
    return f"spiffe://cluster.local/ns/images/sa/pentimento-{service}"


class TrustedSuite:
    """Run the processes, each with a certificate of its service name, on free ports of this host."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.keys = Keys(folder)
        self.processes = StartedProcesses()
        authority = Authority(folder, "authority")
        self.authority = authority.certificate
        self.pairs = {
            name: authority.issue(name, x509.UniformResourceIdentifier(uri(name))) for name in (*SERVICES, *OUTSIDE)
        }
        self.rules = folder / "callers.toml"
        self.rules.write_text("[names]\n" + "".join(f'{name} = ["{uri(name)}"]\n' for name in self.pairs))
        self.ports = {name: free_port() for name in (*SERVICES, "second-worker", "metrics")}

    def address(self, name: str) -> str:
        return f"127.0.0.1:{self.ports[name]}"

    def start(self, name: str, *flags: str, service: str = "") -> "subprocess.Popen[bytes]":
        service = service or name
        given = ["--tls-dir", str(self.pairs[service].directory), "--listen"]
        if service == "edge":
            given += [f"unix:{self.folder / 'edge.sock'}"]
        else:
            given += [self.address(name), "--mutual-tls", "--tls-callers-file", str(self.rules)]
        if service not in ("controller", "edge"):
            given += ["--controller-address", self.address("controller")]
        module = f"services.{service.replace('-', '_')}"
        return self.processes.start(module, *given, *flags, log=self.folder / f"{name}.log")

    def worker(self, name: str, model: str) -> "subprocess.Popen[bytes]":
        flags = ["--model", model, "--device", "cpu", "--objects-url", f"file://{self.folder / 'objects'}"]
        flags += ["--component-cache-dir", str(self.folder / "components")]
        flags += ["--registry-public-keys", str(self.keys.public("release"))]
        return self.start(name, *flags, service="unet-worker")

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def serves(self, *names: str) -> None:
        for name in names:
            wait_until(lambda name=name: ": serving\n" in self.log(name))  # type: ignore[misc]

    def command(self, *words: str) -> str:
        """Return what a command at the controller prints, with the administrator's certificate."""
        command = [sys.executable, "-m", "pentimento.cli", *words, "--controller-address", self.address("controller")]
        command += ["--tls-dir", str(self.pairs["administrator"].directory)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def channel(self, caller: str, called: str) -> grpc.Channel:
        pair = self.pairs[caller]
        files = (self.authority, pair.key, pair.certificate)
        return grpc.secure_channel(
            self.address(called), grpc.ssl_channel_credentials(*(file.read_bytes() for file in files))
        )


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def suite() -> Iterator[TrustedSuite]:
    with tempfile.TemporaryDirectory(prefix="pmt-") as name:
        made = TrustedSuite(Path(name))
        try:
            start(made, Path(name))
            yield made
        finally:
            made.processes.end()


def start(suite: TrustedSuite, folder: Path) -> None:
    objects, key = f"file://{folder / 'objects'}", str(suite.keys.private("release"))
    shutil.copytree(WEIGHTS, folder / "models")
    registry = folder / "models" / "registry.json"
    ledgers = {name: f"sqlite:///{folder / name}.sqlite" for name in SERVICES}
    suite.start("controller", "--ledger-url", ledgers["controller"], "--objects-url", objects)
    suite.serves("controller")
    suite.command("models", "add", "mine", str(WEIGHTS / "tiny-heavy"), "--licence", "MIT", "--signing-key", key)
    suite.command("models", "add", "plain", str(WEIGHTS / "tiny-light"), "--licence", "MIT")
    sign = [sys.executable, "-m", "pentimento.cli", "models", "sign", str(registry), "--signing-key", key]
    subprocess.run(sign, check=True, capture_output=True, cwd=ROOT)
    suite.start("embedder", "--encoder", str(WEIGHTS / "tiny-clip"))
    suite.start(
        "vectordb-gateway",
        *("--index-url", f"edge://{folder / 'index'}", "--objects-url", objects),
        *("--ledger-url", ledgers["vectordb-gateway"]),
    )
    suite.start("controlnet-svc", "--controlnets", str(registry), "--device", "cpu")
    suite.worker("unet-worker", "mine")
    suite.serves("embedder", "vectordb-gateway")
    suite.start(
        "frontdoor",
        *("--ledger-url", ledgers["frontdoor"], "--objects-url", objects, "--cascade", "mine"),
        *("--embedder-address", suite.address("embedder"), "--gateway-address", suite.address("vectordb-gateway")),
    )
    places = {"frontdoor": "frontdoor", "controller": "controller", "gateway": "vectordb-gateway"}
    flags = [part for name, called in places.items() for part in (f"--{name}-address", suite.address(called))]
    suite.start("edge", "--http-listen", suite.address("edge"), *flags)
    suite.serves(*SERVICES)


def test_uploaded_lora_is_used_with_a_signature_of_a_known_key_only(suite: TrustedSuite) -> None:
    names = {"plain": (), "known": signed_by(suite, "release"), "stranger": signed_by(suite, "stranger")}
    for name, words in names.items():
        add_lora(suite, name, *words)
    request = ImageRequest("a large red circle on a white background", seed=3, num_inference_steps=4)
    asked = {name: replace(request, cache=CacheMode.OFF, loras=(AskedLora(name),)) for name in names}
    reasons = {}
    with Client(suite.address("frontdoor"), tls_dir=suite.pairs["client"].directory) as client:
        wait_until(lambda: names.keys() <= {one.name for one in client.list_adapters()})
        image = client.generate(replace(request, cache=CacheMode.OFF))
        known = client.generate(asked["known"])
        for name in ("plain", "stranger"):
            with pytest.raises(FailedPrecondition) as refused:
                client.generate(asked[name])
            reasons[name] = refused.value.reason
        # The same file once more, with a signature.
        add_lora(suite, "plain", *signed_by(suite, "release"))
        wait_until(lambda: any(one.name == "plain" and one.signed_entry for one in client.list_adapters()))
        signed = client.generate(asked["plain"])

    assert reasons == {"plain": "UNSIGNED_ENTRY", "stranger": "UNKNOWN_SIGNING_KEY"}
    assert signed.data == known.data != image.data


def signed_by(suite: TrustedSuite, key: str) -> tuple[str, str]:
    return ("--signing-key", str(suite.keys.private(key)))


def add_lora(suite: TrustedSuite, name: str, *words: str) -> None:
    file = WEIGHTS / "tiny-lora-neon" / "pytorch_lora_weights.safetensors"
    described = ("--name", name, "--family", "stable_diffusion", "--licence", "MIT")
    suite.command("adapters", "add", str(file), *described, *words)


def rejections(suite: TrustedSuite) -> dict[str, int]:
    """Return the calls that each process's audit log has as rejected by their names."""
    counts = {name: suite.log(name).count("code=PERMISSION_DENIED") for name in SERVICES}
    return {name: count for name, count in counts.items() if count}


def test_suite_makes_its_calls_and_no_other(suite: TrustedSuite) -> None:
    with Client(suite.address("frontdoor"), tls_dir=suite.pairs["client"].directory) as client:
        wait_until(lambda: any(one.name == "tiny-controlnet-edges" for one in client.list_adapters()))
        request = ImageRequest("a large red circle on a white background", seed=3, num_inference_steps=4)
        images = [client.generate(request), client.generate(replace(request, seed=4))]
        edges = AskedControlNet("tiny-controlnet-edges", a_png())
        images.append(client.generate(replace(request, controlnets=(edges,))))
    trusted = ssl.create_default_context(cafile=str(suite.authority))
    with urllib.request.urlopen(f"https://{suite.address('edge')}/console/data/status", context=trusted) as answer:
        status = json.load(answer)

    assert {image.provenance.route.model for image in images} == {"mine"}
    assert status["unanswered"] == {}
    assert {one["replica"]["kind"] for one in status["fleet"]["replicas"]} >= {"frontdoor", "unet_worker"}
    assert int(status["cache"]["lookup_count"]) >= 1
    assert rejections(suite) == {}


def test_calls_of_another_service_are_rejected_and_audited(suite: TrustedSuite) -> None:
    before = rejections(suite)
    register = controller_pb.RegisterRequest(replica=controller_pb.Replica(instance_id="stranger"))
    with suite.channel("unet-worker", "embedder") as channel, pytest.raises(grpc.RpcError) as embedding:
        EmbedderServiceStub(channel).EmbedText(embedder_pb.EmbedTextRequest(texts=["a"]))
    with suite.channel("client", "controller") as channel, pytest.raises(grpc.RpcError) as registering:
        ControllerServiceStub(channel).Register(register)

    for raised, method, caller in (
        (embedding, "/pentimento.api.embedder.v1.EmbedderService/EmbedText", "unet-worker"),
        (registering, "/pentimento.api.controller.v1.ControllerService/Register", "client"),
    ):
        assert raised.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert raised.value.details() == f"{method} is not for {uri(caller)}"
    assert (before, rejections(suite)) == ({}, {"embedder": 1, "controller": 1})


def test_worker_of_an_unsigned_model_refuses_to_start(suite: TrustedSuite) -> None:
    assert suite.worker("second-worker", "plain").wait() == 1

    said = suite.log("second-worker").strip().splitlines()[-1]
    keys = f"{suite.folder / 'public.pem'} has the keys {suite.keys.id_of('release')}"
    assert said == f"plain: its entry is not signed; {keys}"
