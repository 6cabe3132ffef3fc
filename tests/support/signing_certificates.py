"""Make certificates that sign C2PA manifests, and their authority."""

import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

Key = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey


class ContentAuthority:
    """Sign certificates of content credentials."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._own = self._signed("authority", self._key, is_authority=True)

    @property
    def pem(self) -> bytes:
        return self._own.public_bytes(serialization.Encoding.PEM)

    def issue(self, folder: Path, key: Key | None = None, days: float = 1.0) -> Path:
        """Write a file of a chain for a key, valid for `days` from yesterday on, and the key."""
        file = folder / "signer.pem"
        file.write_bytes(b"".join(self.parts(key, days)))
        return file

    def parts(self, key: Key | None = None, days: float = 1.0) -> tuple[bytes, bytes]:
        """Return the chain and the key of such a file."""
        key = key or ec.generate_private_key(ec.SECP256R1())
        signed = self._signed("signer", key, days=days)
        form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        return signed.public_bytes(serialization.Encoding.PEM) + self.pem, key.private_bytes(*form)

    def _signed(self, name: str, key: Key, *, is_authority: bool = False, days: float = 1.0) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        signs = {"digital_signature": not is_authority, "key_cert_sign": is_authority, "crl_sign": is_authority}
        others = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
        usage = x509.KeyUsage(**signs, **dict.fromkeys((*others, "encipher_only", "decipher_only"), False))
        built = x509.CertificateBuilder(
            issuer_name=_named("authority"),
            subject_name=_named(name),
            public_key=key.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=now - datetime.timedelta(days=2),
            not_valid_after=now + datetime.timedelta(days=days),
        )
        built = built.add_extension(x509.BasicConstraints(is_authority, None), True).add_extension(usage, True)
        built = built.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        built = built.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), False)
        if not is_authority:
            built = built.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.EMAIL_PROTECTION]), False)
        return built.sign(self._key, hashes.SHA256())


def _named(name: str) -> x509.Name:
    organisation = x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Test")
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name), organisation])
