"""Add signed C2PA manifests to images: a model generated them, its digest, and the images that they started from.

A manifest contains no prompt and no tenant, since it leaves with the image. It changes the file but no pixel, and its
signature detects any later change. Nothing is called over the network, unless a timestamp authority is configured.
"""

import asyncio
import importlib
import io
import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from pentimento.domain.errors import FailedPrecondition
from pentimento.domain.generation import FromImage, FromLatent, Provenance
from pentimento.domain.image_request import ImageFormat
from pentimento.images.png import provenance_chunk, with_chunk
from pentimento.rpc.process import started_pool
from pentimento.rpc.watched_file import KeptReading
from pentimento.settings import SettingsError
from pentimento.stores.objects.store import digest_of
from services.frontdoor.metrics import SIGNED_IMAGES

logger = logging.getLogger(__name__)

GENERATOR = "Pentimento"
# IPTC's word for the output of a generative model.
SOURCE_TYPE = "http://cv.iptc.org/newscodes/digitalsourcetype/trainedAlgorithmicMedia"
ASSERTION = "org.pentimento.generation"
# COSE algorithms by the size of an elliptic curve's key.
_BY_CURVE_BITS = {256: "es256", 384: "es384", 521: "es512"}
_MEDIA_TYPES = {ImageFormat.PNG: "image/png", ImageFormat.JPEG: "image/jpeg", ImageFormat.WEBP: "image/webp"}
# One pixel: a new certificate signs it once, before it signs images.
_PROBE = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de"
    "0000000c4944415478da63606060000000040001a3b9ac5e0000000049454e44ae426082"
)
# The library waits 30 s for a timestamp authority that does not answer.
SIGN_TIMEOUT_S = 5.0
_CREATED = {"action": "c2pa.created", "digitalSourceType": SOURCE_TYPE}
_PROBE_MANIFEST = {"assertions": [{"label": "c2pa.actions.v2", "data": {"actions": [_CREATED]}}]}


@dataclass(frozen=True)
class CredentialFiles:
    """Name the PEM files of the certificate chain, the signer's first, and of its private key; `timestamp_url` of an
    RFC 3161 authority, empty for none."""

    certificate: Path
    key: Path
    timestamp_url: str = ""


@dataclass(frozen=True)
class _Signing:
    signer: Any
    ends_at: float


class ContentCredentials:
    """Sign images, one at a time in a separate thread. The files are read again when they change."""

    def __init__(self, files: CredentialFiles, build_version: str) -> None:
        """Read the files. Raises FailedPrecondition LIBRARY_MISSING, SettingsError that names a file."""
        self._version = build_version
        self._context = _context(verify=False)
        paths = [files.certificate, files.key]
        self._reading = KeptReading(paths, lambda: _read(files), "the C2PA certificate stays as it was")
        self._threads = started_pool(1, "c2pa")

    async def signed(self, image: bytes, image_format: ImageFormat, provenance: Provenance) -> tuple[bytes, Provenance]:
        """Return the image with a manifest, and its provenance, which then has the digest of the image without it. An
        image that cannot be signed stays unchanged, with a note in its provenance."""
        try:
            loop = asyncio.get_running_loop()
            async with asyncio.timeout(SIGN_TIMEOUT_S):
                signed = await loop.run_in_executor(self._threads, self._sign, image, image_format, provenance)
        except (SettingsError, TimeoutError, _library().C2paError) as error:
            SIGNED_IMAGES.labels("failed").inc()
            problem = str(error) or f"not within {SIGN_TIMEOUT_S:g} s"
            logger.error("an image could not be signed", extra={"problem": problem})
            return image, replace(provenance, notes=(*provenance.notes, "not signed: no valid C2PA certificate"))
        SIGNED_IMAGES.labels("signed").inc()
        return signed, replace(provenance, unsigned_digest=digest_of(image))

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _sign(self, image: bytes, image_format: ImageFormat, provenance: Provenance) -> bytes:
        signing = self._reading.current()
        if time.time() >= signing.ends_at:
            raise SettingsError("the certificate has expired")
        if image_format is ImageFormat.PNG:
            # No client may add it later: that would break the signature.
            image = with_chunk(image, provenance_chunk({"request_id": provenance.request_id}))
        manifest = manifest_of(provenance, image_format, self._version)
        return _add(manifest, signing.signer, self._context, _MEDIA_TYPES[image_format], image)


def manifest_of(provenance: Provenance, image_format: ImageFormat, build_version: str) -> dict[str, Any]:
    """Return the definition of an image's manifest."""
    agent = {"name": GENERATOR, "version": build_version}
    ingredients = _ingredients(provenance)
    action: dict[str, Any] = {**_CREATED, "softwareAgent": agent}
    if ingredients:
        action["parameters"] = {"ingredientIds": [one["label"] for one in ingredients]}
    generation = {
        "request_id": provenance.request_id,
        "model": provenance.route.model,
        "model_digest": provenance.model_digest,
        "steps_run": provenance.steps_run,
        "steps_saved": provenance.steps_saved,
        "start": type(provenance.route.start).__name__.removeprefix("From").lower(),
    }
    return {
        "claim_generator_info": [agent],
        "title": f"{provenance.request_id}.{image_format.value}",
        "ingredients": ingredients,
        "assertions": [
            {"label": "c2pa.actions.v2", "data": {"actions": [action]}},
            {"label": ASSERTION, "data": generation},
        ],
    }


def _ingredients(provenance: Provenance) -> list[dict[str, str]]:
    """Return the images that it was generated from, by digest: an earlier image of the cache, and the request's own."""
    start = provenance.route.start
    inputs = [(part.field, part.object.digest) for part in provenance.inputs]
    if isinstance(start, FromLatent):
        inputs.insert(0, ("latents of an earlier image", start.latent.digest))
    if isinstance(start, FromImage):
        inputs.insert(0, ("earlier image", start.image.digest))
    return [
        {"label": f"input-{number}", "title": title, "relationship": "inputTo", "instance_id": digest}
        for number, (title, digest) in enumerate(inputs)
    ]


def _read(files: CredentialFiles) -> _Signing:
    """Return the signer of the files, once it has signed an image that verifies. Raises SettingsError."""
    from cryptography import x509

    chain, key = _content(files.certificate), _content(files.key)
    try:
        ends_at = min(one.not_valid_after_utc for one in x509.load_pem_x509_certificates(chain)).timestamp()
    except ValueError:
        raise SettingsError(f"{files.certificate}: must hold certificates as PEM, the signer's first") from None
    algorithm = _algorithm(files.key, key)
    library = _library()
    try:
        signers = [_signer(library, algorithm, chain, key, url) for url in ("", files.timestamp_url)]
        _add(_PROBE_MANIFEST, signers[0], _context(verify=True), _MEDIA_TYPES[ImageFormat.PNG], _PROBE)
    except library.C2paError as error:
        problem = " ".join(str(error).split())[:200]
        raise SettingsError(f"{files.certificate}: cannot sign with the key of {files.key}: {problem}") from None
    return _Signing(signers[1], ends_at)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from error


def _algorithm(path: Path, key: bytes) -> str:
    """Return the COSE algorithm of a private key. Raises SettingsError that names the file."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        found = load_pem_private_key(key, password=None)
    except (TypeError, ValueError, UnsupportedAlgorithm):
        raise SettingsError(f"{path}: must be a private key as PEM without a password") from None
    if isinstance(found, EllipticCurvePrivateKey) and found.curve.key_size in _BY_CURVE_BITS:
        return _BY_CURVE_BITS[found.curve.key_size]
    if isinstance(found, Ed25519PrivateKey | RSAPrivateKey):
        return "ed25519" if isinstance(found, Ed25519PrivateKey) else "ps256"
    raise SettingsError(f"{path}: must be a key of P-256, P-384, P-521, ed25519 or RSA, is {type(found).__name__}")


def _signer(library: Any, algorithm: str, chain: bytes, key: bytes, timestamp_url: str) -> Any:
    return library.Signer.from_info(library.C2paSignerInfo(algorithm, chain, key, timestamp_url or None))


def _add(manifest: Mapping[str, Any], signer: Any, context: Any, media_type: str, image: bytes) -> bytes:
    with io.BytesIO() as target, _library().Builder.from_json(json.dumps(manifest), context) as builder:
        builder.sign(signer, media_type, io.BytesIO(image), target)
        return target.getvalue()


def _context(*, verify: bool) -> Any:
    """Return settings of the library: no thumbnails, nothing from the network."""
    library = _library()
    network = {"ocsp_fetch": False, "remote_manifest_fetch": False}
    settings = {"verify": {"verify_after_sign": verify, **network}, "builder": {"thumbnail": {"enabled": False}}}
    return library.Context(library.Settings.from_dict(settings))


@cache
def _library() -> Any:
    """Return the package. It takes 16 MB of memory, so it is imported only if a certificate is configured."""
    try:
        return importlib.import_module("c2pa")
    except ImportError:
        message = "--c2pa-certificate-file needs a package: `pip install 'pentimento[c2pa]'`"
        raise FailedPrecondition("LIBRARY_MISSING", message) from None
