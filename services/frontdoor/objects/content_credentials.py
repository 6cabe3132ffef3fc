"""Add signed C2PA manifests to images: a model generated them, its digest, and the images that they started from.

A manifest contains no prompt and no tenant, since it leaves with the image. It changes the file but no pixel, and its
signature detects any later change. Nothing is called over the network, unless a timestamp authority is configured.
"""

import asyncio
import importlib
import io
import json
import logging
import re
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
_PEM_BLOCK = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----.*?-----END \1-----", re.DOTALL)
_PROBE_MANIFEST = {"assertions": [{"label": "c2pa.actions.v2", "data": {"actions": [_CREATED]}}]}


@dataclass(frozen=True)
class _Signing:
    signer: Any
    ends_at: float


class ContentCredentials:
    """Sign images, one at a time in a separate thread. The file is read again when it changes."""

    def __init__(self, path: Path, build_version: str, timestamp_url: str = "") -> None:
        """Read the PEM file of certificates, the signer's first, and its private key; `timestamp_url` of an RFC 3161
        authority, empty for none. Raises FailedPrecondition LIBRARY_MISSING, SettingsError."""
        self._version = build_version
        self._context = _context(verify=False)
        self._reading = KeptReading([path], lambda: _read(path, timestamp_url), "the C2PA certificate stays as it was")
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


def _read(path: Path, timestamp_url: str) -> _Signing:
    """Return the signer of the file, once it has signed an image that verifies. Raises SettingsError."""
    from cryptography import x509

    named = f"--c2pa-certificate-file {path}"
    chain, key = _parts(named, path)
    try:
        certificates = x509.load_pem_x509_certificates(chain)
    except ValueError:
        raise SettingsError(f"{named}: must have certificates as PEM, the signer's first") from None
    algorithm, public_key = _algorithm(named, key)
    if certificates[0].public_key() != public_key:
        raise SettingsError(f"{named}: the private key must be that of the first certificate")
    library = _library()
    try:
        signers = [_signer(library, algorithm, chain, key, url) for url in ("", timestamp_url)]
        _add(_PROBE_MANIFEST, signers[0], _context(verify=True), _MEDIA_TYPES[ImageFormat.PNG], _PROBE)
    except library.C2paError as error:
        problem = " ".join(str(error).split())[:200]
        raise SettingsError(f"{named}: cannot sign: {problem}") from None
    return _Signing(signers[1], min(one.not_valid_after_utc for one in certificates).timestamp())


def _parts(named: str, path: Path) -> tuple[bytes, bytes]:
    """Return the certificates of a PEM file, and its private key. Raises SettingsError."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SettingsError(f"{named}: cannot be read: {error.strerror}") from error
    blocks = [(found[1], found[0]) for found in _PEM_BLOCK.finditer(content)]
    keys = [block for label, block in blocks if label.endswith(b"PRIVATE KEY")]
    if len(keys) != 1:
        raise SettingsError(f"{named}: must have one private key as PEM, next to the certificates; it has {len(keys)}")
    return b"\n".join(block for label, block in blocks if label == b"CERTIFICATE"), keys[0]


def _algorithm(named: str, key: bytes) -> tuple[str, Any]:
    """Return the COSE algorithm of a private key, and its public key. Raises SettingsError."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        found = load_pem_private_key(key, password=None)
    except (TypeError, ValueError, UnsupportedAlgorithm):
        raise SettingsError(f"{named}: the private key must have no password") from None
    if isinstance(found, EllipticCurvePrivateKey) and found.curve.key_size in _BY_CURVE_BITS:
        return _BY_CURVE_BITS[found.curve.key_size], found.public_key()
    if isinstance(found, Ed25519PrivateKey | RSAPrivateKey):
        return "ed25519" if isinstance(found, Ed25519PrivateKey) else "ps256", found.public_key()
    kind = type(found).__name__
    raise SettingsError(f"{named}: the private key must be of P-256, P-384, P-521, ed25519 or RSA, is {kind}")


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
