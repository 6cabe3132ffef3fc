"""Make the tokens and passwords that docker-compose.yml mounts as secrets: `python deploy/make_secrets.py [FOLDER]`.

Only Python is needed. Existing files stay unchanged; lost ones are made again, and a new token's entry is added to
`tokens.toml`. Other users of the host cannot enter the folder; its files are readable, since the containers' processes
run under another user. `user_token` and `admin_token` are for people and reach no container.
"""

import base64
import hashlib
import json
import re
import secrets
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "secrets"
FOR_CONTAINERS, FOR_PEOPLE = 0o644, 0o600
# Identities of the object store: the file of the key pair, and its permissions.
IDENTITIES = {
    "pentimento": ("s3_credentials", ["Admin", "Read", "List", "Tagging", "Write"]),
    "edge": ("s3_reader_credentials", ["Read:pentimento"]),
}
ROLES = {"user_token": ("demo", "user"), "admin_token": ("operations", "admin"), "service_token": ("suite", "service")}


def keep_or_write(path: Path, text: str, mode: int) -> str:
    """Return the content of `path`; write it first if the file is missing."""
    if not path.exists():
        write_whole(path, text, mode)
        print(f"made {path}")
    return path.read_text()


def write_whole(path: Path, text: str, mode: int) -> None:
    """Write the file under another name first, so that a full disk leaves no empty secret."""
    draft = path.with_name(f"{path.name}.new")
    draft.touch(mode=mode)
    draft.write_text(text)
    draft.chmod(mode)
    draft.replace(path)


def kept_in(path: Path, pattern: str) -> str | None:
    """Return the secret from another file that contains it, for a lost file; None without one."""
    found = re.search(pattern, path.read_text()) if path.exists() else None
    return found[1] if found else None


def token_entry(token: str, tenant: str, role: str) -> str:
    digest = hashlib.sha256(token.strip().encode()).hexdigest()
    return f'[[token]]\nsha256 = "{digest}"\ntenant = "{tenant}"\nroles = ["{role}"]\n'


def add_entry(known: Path, entry: str) -> None:
    """Append to the token file in place: a mounted file that is replaced stays the old one in its container."""
    with known.open("a") as file:
        file.write(f"\n{entry}")
    print(f"added to {known}")


def make_tokens(folder: Path) -> None:
    """Make a token per role; services get the digests and their common token. A lost token is made again and its entry
    added. An existing token's missing entry is not added, since an operator may have revoked it."""
    known, entries = folder / "tokens.toml", []
    for name, (tenant, role) in ROLES.items():
        path, mode = folder / name, FOR_CONTAINERS if role == "service" else FOR_PEOPLE
        token = path.read_text() if path.exists() else secrets.token_urlsafe(32)
        entry = token_entry(token, tenant, role)
        if known.exists() and not path.exists():
            # The entry first: the next run would take a token without an entry for a revoked one.
            add_entry(known, entry)
        keep_or_write(path, token, mode)
        entries.append(entry)
    keep_or_write(known, "\n".join(entries), FOR_CONTAINERS)


def make_grant_key(folder: Path) -> None:
    """Make the key with which the gateway signs grants and workers verify them."""
    keep_or_write(folder / "grant_key", secrets.token_hex(32) + "\n", FOR_CONTAINERS)


def make_ledger(folder: Path) -> None:
    """Make PostgreSQL's password, and the settings file with the address that contains it."""
    kept = kept_in(folder / "ledger.toml", "pentimento:([0-9a-f]+)@")
    password = keep_or_write(folder / "postgres_password", kept or secrets.token_hex(24), FOR_CONTAINERS)
    url = f"postgresql+psycopg://pentimento:{password}@ledger:5432/pentimento"
    tables = "".join(f'[{service}]\nledger_url = "{url}"\n' for service in ("frontdoor", "vectordb_gateway"))
    keep_or_write(folder / "ledger.toml", tables, FOR_CONTAINERS)
    # Settings of the second cell of docker-compose.cells.yml: a separate journal, and the tenants of both cells.
    own = url.replace("@ledger:", "@ledger-b:")
    keep_or_write(
        folder / "ledger_b.toml", f'[frontdoor]\nledger_url = "{own}"\ntenants_url = "{url}"\n', FOR_CONTAINERS
    )


def make_signing_key(folder: Path) -> None:
    """Make the key with which the frontdoor signs addresses of images and the edge verifies them."""
    keep_or_write(folder / "signing_key", secrets.token_hex(32) + "\n", FOR_CONTAINERS)


def make_receipt_key(folder: Path) -> None:
    """Make the ed25519 key with which the frontdoor signs receipts of erased tenants, as PEM (RFC 8410)."""
    encoded = base64.b64encode(bytes.fromhex("302e020100300506032b657004220420") + secrets.token_bytes(32)).decode()
    pem = f"-----BEGIN PRIVATE KEY-----\n{encoded}\n-----END PRIVATE KEY-----\n"
    keep_or_write(folder / "receipt_key", pem, FOR_CONTAINERS)


def make_objects(folder: Path) -> None:
    """Make a key pair for writers of the object store and one for the edge, which only reads: one file each for boto3,
    one with both for SeaweedFS."""
    path = folder / "s3_identities.json"
    keep_or_write(path, json.dumps({"identities": []}), FOR_CONTAINERS)
    identities = json.loads(path.read_text())["identities"]
    known = {one["name"]: one for one in identities}
    for name, (_, actions) in IDENTITIES.items():
        if name not in known:
            pair = {"accessKey": secrets.token_hex(10), "secretKey": secrets.token_hex(20)}
            known[name] = {"name": name, "credentials": [pair], "actions": actions}
    if len(known) > len(identities):
        write_whole(path, json.dumps({"identities": list(known.values())}, indent=2), FOR_CONTAINERS)
    for name, (file, _) in IDENTITIES.items():
        pair = known[name]["credentials"][0]
        keys = {"aws_access_key_id": pair["accessKey"], "aws_secret_access_key": pair["secretKey"]}
        profile = "".join(f"{key} = {value}\n" for key, value in keys.items())
        keep_or_write(folder / file, f"[default]\n{profile}", FOR_CONTAINERS)


def make_vectors(folder: Path) -> None:
    """Make Qdrant's key: a file for the gateway, and a settings file for Qdrant."""
    kept = kept_in(folder / "vectors_settings.yaml", "api_key: ([0-9a-f]+)")
    key = keep_or_write(folder / "vectors_key", kept or secrets.token_hex(24), FOR_CONTAINERS)
    keep_or_write(folder / "vectors_settings.yaml", f"service:\n  api_key: {key}\n", FOR_CONTAINERS)


def main(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    make_tokens(folder)
    make_grant_key(folder)
    make_signing_key(folder)
    make_receipt_key(folder)
    make_ledger(folder)
    make_objects(folder)
    make_vectors(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
