"""Pairs of ed25519 keys made by openssl, and a registry entry to sign."""

import hashlib
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pentimento.files.ed25519_keys import read_private_key
from pentimento.files.signed_entries import with_signature

ENTRY: dict[str, Any] = {
    "name": "tiny-controlnet-edges",
    "kind": "controlnet",
    "family": "sd",
    "path": "tiny-controlnet-edges",
    "digest": "sha256:" + "a" * 64,
    "base": {"name": "tiny-heavy", "digest": "sha256:" + "b" * 64},
    "licence": "Apache-2.0",
    "note": "für Kanten",
}


def openssl(*words: str | Path) -> bytes:
    return subprocess.run(["openssl", *words], capture_output=True, check=True).stdout


class Keys:
    """Pairs of keys in files, made by openssl."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def private(self, name: str) -> Path:
        path = self.folder / f"{name}.key"
        if not path.exists():
            openssl("genpkey", "-algorithm", "ed25519", "-out", path)
            openssl("pkey", "-in", path, "-pubout", "-out", self.folder / f"{name}.pub")
        return path

    def public(self, *names: str) -> Path:
        path = self.folder / "public.pem"
        for name in names:
            self.private(name)
        path.write_text("".join(f"# {name}\n{(self.folder / f'{name}.pub').read_text()}" for name in names))
        return path

    def id_of(self, name: str) -> str:
        der = openssl("pkey", "-pubin", "-in", self.folder / f"{name}.pub", "-outform", "DER")
        return hashlib.sha256(der).hexdigest()[:16]

    def signed(self, name: str, entry: Mapping[str, Any] = ENTRY, now_ms: int = 1000) -> dict[str, Any]:
        return with_signature(entry, read_private_key(self.private(name), "signing_key"), now_ms)
