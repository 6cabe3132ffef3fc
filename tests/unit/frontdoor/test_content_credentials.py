"""Signed C2PA manifests, read back by the library's own reader."""

import io
import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import c2pa
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from PIL import Image

from pentimento.domain.errors import FailedPrecondition
from pentimento.domain.generation import (
    Donor,
    FromImage,
    FromLatent,
    NoiseForm,
    ObjectReference,
    SpecInput,
)
from pentimento.domain.image_request import ImageFormat
from pentimento.images.header import read_header
from pentimento.sdk.generated_image import GeneratedImage, read_provenance
from pentimento.settings import SettingsError
from pentimento.stores.objects.store import digest_of
from services.frontdoor.objects import content_credentials
from services.frontdoor.objects.content_credentials import ContentCredentials, manifest_of
from tests.support.signing_certificates import ContentAuthority, Key
from tests.support.values import a_provenance, a_route

CREATED = {
    "action": "c2pa.created",
    "digitalSourceType": "http://cv.iptc.org/newscodes/digitalsourcetype/trainedAlgorithmicMedia",
    "softwareAgent": {"name": "Pentimento", "version": "1.2"},
}
FROM_LATENT = FromLatent(ObjectReference("k", "sha256:latent", 9), 5, 10, 0.5, Donor("entry", "sha256:x", 0.9))
FROM_IMAGE = FromImage(
    ObjectReference("k", "sha256:image", 9), 5, NoiseForm.VARIANCE_PRESERVING, Donor("entry", "sha256:x", 0.9)
)


def encoded(image_format: ImageFormat) -> bytes:
    buffer = io.BytesIO()
    Image.linear_gradient("L").resize((32, 24)).convert("RGB").save(buffer, image_format.value)
    return buffer.getvalue()


@contextmanager
def credentials_of(folder: Path, file: Path | None = None) -> Iterator[ContentCredentials]:
    made = ContentCredentials(file or ContentAuthority().issue(folder), "1.2")
    yield made
    made.close()


def verdict(data: bytes, image_format: ImageFormat, authority: bytes = b"") -> tuple[str, set[str], dict[str, Any]]:
    """Return the reader's state, the codes of its failures, and the manifest."""
    settings: dict[str, Any] = {"verify": {"ocsp_fetch": False, "remote_manifest_fetch": False}}
    if authority:
        settings["trust"] = {"trust_anchors": authority.decode()}
    context = c2pa.Context(c2pa.Settings.from_dict(settings))
    with c2pa.Reader(f"image/{image_format.value}", io.BytesIO(data), context=context) as reader:
        document = json.loads(reader.json())
        results = reader.get_validation_results()["activeManifest"]
        manifest = document["manifests"][document["active_manifest"]]
        return reader.get_validation_state(), {each["code"] for each in results["failure"]}, manifest


@pytest.mark.parametrize("image_format", list(ImageFormat))
async def test_signed_image_verifies_and_has_the_same_pixels(tmp_path: Path, image_format: ImageFormat) -> None:
    authority, image = ContentAuthority(), encoded(image_format)
    with credentials_of(tmp_path, authority.issue(tmp_path)) as credentials:
        signed, provenance = await credentials.signed(image, image_format, a_provenance())

    state, failures, manifest = verdict(signed, image_format, authority.pem)
    assert (state, failures) == ("Trusted", set())
    actions, generation = (one["data"] for one in manifest["assertions"])
    assert actions["actions"] == [CREATED]
    assert generation == {
        **{"request_id": "request", "model": "tiny", "model_digest": "sha256:model"},
        **{"steps_run": 10, "steps_saved": 0, "start": "noise"},
    }
    assert manifest["title"] == f"request.{image_format.value}"
    assert {**manifest["claim_generator_info"][0], "org.contentauth.c2pa_rs": ""} == {
        **{"name": "Pentimento", "version": "1.2", "org.contentauth.c2pa_rs": ""}
    }
    assert b"a red circle" not in signed
    assert provenance == a_provenance(unsigned_digest=digest_of(image))
    with Image.open(io.BytesIO(signed)) as one, Image.open(io.BytesIO(image)) as other:
        assert one.tobytes() == other.tobytes()
    assert read_header(signed, "image").width_px == 32


@pytest.mark.parametrize("image_format", list(ImageFormat))
async def test_changed_pixels_are_detected(tmp_path: Path, image_format: ImageFormat) -> None:
    with credentials_of(tmp_path) as credentials:
        signed, _ = await credentials.signed(encoded(image_format), image_format, a_provenance())
    changed = bytearray(signed)
    # A WebP file ends with its manifest.
    changed[signed.index(b"VP8 ") + 40 if image_format is ImageFormat.WEBP else -40] ^= 1

    state, failures, _ = verdict(bytes(changed), image_format)

    assert state == "Invalid" and "assertion.dataHash.mismatch" in failures


@pytest.mark.parametrize(
    ("start", "title", "digest"),
    [(FROM_LATENT, "latents of an earlier image", "sha256:latent"), (FROM_IMAGE, "earlier image", "sha256:image")],
)
async def test_manifest_names_earlier_image_and_inputs_as_ingredients(
    tmp_path: Path, start: FromLatent | FromImage, title: str, digest: str
) -> None:
    inputs = (SpecInput("init_image.image", ObjectReference("", "sha256:mine", 3)),)
    provenance = a_provenance(route=a_route(start=start), inputs=inputs)
    with credentials_of(tmp_path) as credentials:
        signed, _ = await credentials.signed(encoded(ImageFormat.PNG), ImageFormat.PNG, provenance)

    state, _, manifest = verdict(signed, ImageFormat.PNG)

    assert state == "Valid"
    assert [(one["title"], one["instance_id"], one["relationship"]) for one in manifest["ingredients"]] == [
        (title, digest, "inputTo"),
        ("init_image.image", "sha256:mine", "inputTo"),
    ]
    (action,) = manifest["assertions"][0]["data"]["actions"]
    assert len(action["parameters"]["ingredients"]) == 2
    assert manifest["assertions"][1]["data"]["start"] == type(start).__name__.removeprefix("From").lower()


def test_manifest_of_image_from_noise_has_no_ingredient() -> None:
    manifest = manifest_of(a_provenance(), ImageFormat.WEBP, "1.2")

    assert manifest["ingredients"] == [] and "parameters" not in manifest["assertions"][0]["data"]["actions"][0]


@pytest.mark.parametrize(
    "key",
    [
        ec.generate_private_key(ec.SECP384R1()),
        ec.generate_private_key(ec.SECP521R1()),
        ed25519.Ed25519PrivateKey.generate(),
        rsa.generate_private_key(65537, 2048),
    ],
    ids=["es384", "es512", "ed25519", "ps256"],
)
async def test_each_kind_of_key_signs(tmp_path: Path, key: Key) -> None:
    with credentials_of(tmp_path, ContentAuthority().issue(tmp_path, key)) as credentials:
        signed, _ = await credentials.signed(encoded(ImageFormat.PNG), ImageFormat.PNG, a_provenance())

    assert verdict(signed, ImageFormat.PNG)[0] == "Valid"


def test_unusable_file_is_named_with_its_setting(tmp_path: Path) -> None:
    authority, file = ContentAuthority(), tmp_path / "signer.pem"
    chain, key = authority.parts()
    _, other_key = authority.parts()
    secret = ec.generate_private_key(ec.SECP256R1())
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
    locked = secret.private_bytes(*form, serialization.BestAvailableEncryption(b"word"))

    for content, words in (
        (b"none", "must have one private key as PEM, next to the certificates; it has 0"),
        (chain, "must have one private key as PEM, next to the certificates; it has 0"),
        (chain + key + other_key, "must have one private key as PEM, next to the certificates; it has 2"),
        (key, "must have certificates as PEM, the signer's first"),
        (chain + locked, "the private key must have no password"),
        (chain + other_key, "the private key must be that of the first certificate"),
        (authority.pem + chain + key, "the private key must be that of the first certificate"),
        (b"".join(authority.parts(days=-1.0)), "cannot sign: "),
    ):
        file.write_bytes(content)
        with pytest.raises(SettingsError, match=rf"^--c2pa-certificate-file .*signer\.pem: {words}"):
            ContentCredentials(file, "1.2")
    file.unlink()
    with pytest.raises(SettingsError, match=r"^--c2pa-certificate-file .*signer\.pem: cannot be read: No such file"):
        ContentCredentials(file, "1.2")


async def test_key_may_come_before_the_certificates(tmp_path: Path) -> None:
    chain, key = ContentAuthority().parts()
    file = tmp_path / "tls-combined.pem"
    file.write_bytes(key + chain)
    with credentials_of(tmp_path, file) as credentials:
        signed, _ = await credentials.signed(encoded(ImageFormat.PNG), ImageFormat.PNG, a_provenance())

    assert verdict(signed, ImageFormat.PNG)[0] == "Valid"


def test_missing_package_is_named_with_its_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def importing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(content_credentials.importlib, "import_module", importing)
    content_credentials._library.cache_clear()
    try:
        with pytest.raises(FailedPrecondition, match=r"pip install 'pentimento\[c2pa\]'") as raised:
            ContentCredentials(tmp_path / "a", "1.2")
    finally:
        content_credentials._library.cache_clear()
    assert raised.value.reason == "LIBRARY_MISSING"


async def test_image_with_expired_certificate_is_unsigned_with_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = encoded(ImageFormat.PNG)
    with credentials_of(tmp_path) as credentials:
        now = time.time()
        monkeypatch.setattr(content_credentials.time, "time", lambda: now + 2 * 86_400.0)
        unsigned, provenance = await credentials.signed(image, ImageFormat.PNG, a_provenance(notes=("first",)))

    assert unsigned == image
    assert provenance == a_provenance(notes=("first", "not signed: no valid C2PA certificate"))


async def test_saved_file_keeps_signature_and_names_its_request(tmp_path: Path) -> None:
    with credentials_of(tmp_path) as credentials:
        signed, provenance = await credentials.signed(encoded(ImageFormat.PNG), ImageFormat.PNG, a_provenance())

    path = GeneratedImage(signed, ImageFormat.PNG, 32, 24, provenance).save(tmp_path / "saved.png")

    assert verdict(path.read_bytes(), ImageFormat.PNG)[0] == "Valid"
    assert read_provenance(path.read_bytes()) == {"request_id": "request"}


async def test_replaced_certificate_signs_later_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = ContentAuthority(), ContentAuthority()
    file = first.issue(tmp_path)
    monkeypatch.setattr("pentimento.rpc.watched_file.CHECK_INTERVAL_S", 0.0)
    with credentials_of(tmp_path, file) as credentials:
        second.issue(tmp_path)
        signed, _ = await credentials.signed(encoded(ImageFormat.PNG), ImageFormat.PNG, a_provenance())
        file.write_text("")
        after, _ = await credentials.signed(encoded(ImageFormat.PNG), ImageFormat.PNG, a_provenance())

    assert [verdict(each, ImageFormat.PNG, second.pem)[0] for each in (signed, after)] == ["Trusted", "Trusted"]


async def test_image_is_not_held_up_by_a_silent_timestamp_authority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(content_credentials, "SIGN_TIMEOUT_S", 0.1)
    image = encoded(ImageFormat.PNG)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        authority = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        credentials = ContentCredentials(ContentAuthority().issue(tmp_path), "1.2", authority)
        # The second one waits for the thread of the first.
        found = [await credentials.signed(image, ImageFormat.PNG, a_provenance()) for _ in range(2)]

        assert [vars(one)["problem"] for one in caplog.records] == ["not within 0.1 s"] * 2
        assert [(data, provenance.notes[-1][:10]) for data, provenance in found] == [(image, "not signed")] * 2
        silent.accept()[0].close()
        credentials.close()
