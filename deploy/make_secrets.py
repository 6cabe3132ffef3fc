"""Makes the tokens and passwords that docker-compose.yml mounts as secrets: `python deploy/make_secrets.py [FOLDER]`.

Needs Python alone. Files that exist are left as they are: a second run changes nothing, but what was lost is made anew,
and a token's entry added to `tokens.toml`. The folder is closed to other
users of the host; the files in it are readable, since the processes in the containers run under a user of their own.
`user_token` and `admin_token` are for people and reach no container.
"""

import hashlib
import json
import re
import secrets
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "secrets"
FOR_CONTAINERS, FOR_PEOPLE = 0o644, 0o600
# Of the object store: where its key pair lies, and what it may do.
IDENTITIES = {
    "pentimento": ("s3_credentials", ["Admin", "Read", "List", "Tagging", "Write"]),
    "edge": ("s3_reader_credentials", ["Read:pentimento"]),
}
ROLES = {"user_token": ("demo", "user"), "admin_token": ("operations", "admin"), "service_token": ("suite", "service")}


def keep_or_write(path: Path, text: str, mode: int) -> str:
    """The content of `path`, written first where the file is missing."""
    if not path.exists():
        write_whole(path, text, mode)
        print(f"made {path}")
    return path.read_text()


def write_whole(path: Path, text: str, mode: int) -> None:
    """Writes the file under another name first: where the disk is full, no secret is left that is empty."""
    draft = path.with_name(f"{path.name}.new")
    draft.touch(mode=mode)
    draft.write_text(text)
    draft.chmod(mode)
    draft.replace(path)


def kept_in(path: Path, pattern: str) -> str | None:
    """The secret that is part of another file, whose own file may have been lost; None where that has none."""
    found = re.search(pattern, path.read_text()) if path.exists() else None
    return found[1] if found else None


def token_entry(token: str, tenant: str, role: str) -> str:
    digest = hashlib.sha256(token.strip().encode()).hexdigest()
    return f'[[token]]\nsha256 = "{digest}"\ntenant = "{tenant}"\nroles = ["{role}"]\n'


def add_entry(known: Path, entry: str) -> None:
    """Adds to the token file in place: one that is mounted into a container stays the old one when another takes its
    name."""
    with known.open("a") as file:
        file.write(f"\n{entry}")
    print(f"added to {known}")


def make_tokens(folder: Path) -> None:
    """A token for each role; the services get the digests, and the one token they show each other. A token that was
    lost is made anew, and its entry added; that of one which is there is not, since somebody may have revoked it."""
    known, entries = folder / "tokens.toml", []
    for name, (tenant, role) in ROLES.items():
        path, mode = folder / name, FOR_CONTAINERS if role == "service" else FOR_PEOPLE
        token = path.read_text() if path.exists() else secrets.token_urlsafe(32)
        entry = token_entry(token, tenant, role)
        if known.exists() and not path.exists():
            # First: a token without an entry would be taken for a revoked one by the next run.
            add_entry(known, entry)
        keep_or_write(path, token, mode)
        entries.append(entry)
    keep_or_write(known, "\n".join(entries), FOR_CONTAINERS)


def make_grant_key(folder: Path) -> None:
    """What the gateway signs grants with, and workers know them by."""
    keep_or_write(folder / "grant_key", secrets.token_hex(32) + "\n", FOR_CONTAINERS)


def make_ledger(folder: Path) -> None:
    """PostgreSQL's password, and the settings file that tells the services the address it is part of."""
    kept = kept_in(folder / "ledger.toml", "pentimento:([0-9a-f]+)@")
    password = keep_or_write(folder / "postgres_password", kept or secrets.token_hex(24), FOR_CONTAINERS)
    url = f"postgresql+psycopg://pentimento:{password}@ledger:5432/pentimento"
    tables = "".join(f'[{service}]\nledger_url = "{url}"\n' for service in ("frontdoor", "vectordb_gateway"))
    keep_or_write(folder / "ledger.toml", tables, FOR_CONTAINERS)


def make_signing_key(folder: Path) -> None:
    """What the frontdoor signs addresses of pictures with, and the edge knows them by."""
    keep_or_write(folder / "signing_key", secrets.token_hex(32) + "\n", FOR_CONTAINERS)


def make_objects(folder: Path) -> None:
    """A key pair for those who write to the object store, and one for the edge, which only reads: each as boto3 reads
    it, and both as SeaweedFS does."""
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
    """Qdrant's key, alone for the gateway and within a settings file for Qdrant."""
    kept = kept_in(folder / "vectors_settings.yaml", "api_key: ([0-9a-f]+)")
    key = keep_or_write(folder / "vectors_key", kept or secrets.token_hex(24), FOR_CONTAINERS)
    keep_or_write(folder / "vectors_settings.yaml", f"service:\n  api_key: {key}\n", FOR_CONTAINERS)


def main(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    make_tokens(folder)
    make_grant_key(folder)
    make_signing_key(folder)
    make_ledger(folder)
    make_objects(folder)
    make_vectors(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
