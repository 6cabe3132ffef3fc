"""Certificates made for one test: an authority and what it signs."""

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

VALIDITY = datetime.timedelta(days=1)
# Python 3.13 believes no authority that does not say so, and nobody who does not name the key of his.
SIGNS_CERTIFICATES = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=False,
    encipher_only=False,
    decipher_only=False,
)


@dataclass(frozen=True)
class Pair:
    """PEM files of a certificate and its private key."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates for 127.0.0.1; its own is at `certificate`."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = named(name)
        own = builder(self._name, self._name, self._key).add_extension(x509.BasicConstraints(True, None), True)
        own = own.add_extension(SIGNS_CERTIFICATES, True)
        own = own.add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), False)
        self.certificate = folder / f"{name}.pem"
        self._write_certificate(self.certificate, own)

    def issue(self, name: str) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        pair = Pair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        unsigned = builder(named(name), self._name, key).add_extension(address, False).add_extension(signer, False)
        self._write_certificate(pair.certificate, unsigned)
        pair.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return pair

    def _write_certificate(self, path: Path, unsigned: x509.CertificateBuilder) -> None:
        signed = unsigned.sign(self._key, hashes.SHA256())
        path.write_bytes(signed.public_bytes(serialization.Encoding.PEM))


def named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=subject,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=now - VALIDITY,
        not_valid_after=now + VALIDITY,
    )
