"""Test the secrets that the compositions mount, and the services that have them."""

import errno
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.make_secrets import main as make_secrets
from deploy.requirements import requirements_of
from pentimento.domain.errors import Unauthenticated
from pentimento.domain.tenants import Role
from pentimento.rpc.tokens import TokenFile
from tests.compose.declared import EMBEDDED, REAL, SETTINGS, directories_of_images, read, services


def test_edge_has_no_service_token() -> None:
    edge = services(REAL)["edge"]

    assert edge["secrets"] == ["signing_key", "s3_reader_credentials"]
    assert not [name for name in edge["environment"] if "TOKEN" in name]


def test_real_services_require_and_present_tokens() -> None:
    for name in set(SETTINGS) - {"edge"}:
        service = services(REAL)[name]

        assert {"tokens", "service_token"} <= set(service["secrets"])
        assert service["environment"]["PENTIMENTO_COMMON_TOKEN_FILE"] == "/run/secrets/tokens"
        assert service["environment"]["PENTIMENTO_COMMON_SERVICE_TOKEN_FILE"] == "/run/secrets/service_token"


def test_only_gateway_and_workers_have_grant_key() -> None:
    holders = {name for name, service in services(REAL).items() if "grant_key" in service.get("secrets", ())}

    assert holders == {"vectordb-gateway", "unet-worker-heavy", "unet-worker-light"}
    for name in holders:
        assert services(REAL)[name]["environment"]["PENTIMENTO_COMMON_GRANT_KEY_FILE"] == "/run/secrets/grant_key"


@pytest.mark.parametrize("file", [EMBEDDED, REAL])
def test_only_frontdoor_and_edge_have_signing_key(file: str) -> None:
    found = services(file)
    holders = {
        name: service["environment"][key]
        for name, service in found.items()
        for key in service.get("environment", {})
        if key.endswith("_SIGNING_KEY_FILE")
    }

    assert set(holders) == {"frontdoor", "edge"}
    assert len(set(holders.values())) == 1
    reaching = {name for name, service in found.items() if "signing_key" in service.get("secrets", ())}
    assert reaching == (set(holders) if file == REAL else set())


def test_embedded_frontdoor_makes_signing_key_in_writable_volume() -> None:
    frontdoor, edge = services(EMBEDDED)["frontdoor"], services(EMBEDDED)["edge"]
    folder = str(Path(frontdoor["environment"]["PENTIMENTO_FRONTDOOR_SIGNING_KEY_FILE"]).parent)

    assert frontdoor["environment"]["PENTIMENTO_FRONTDOOR_LEDGER_URL"].startswith("sqlite:")
    assert f"keys:{folder}" in frontdoor["volumes"] and f"keys:{folder}:ro" in edge["volumes"]
    assert "keys" in read(EMBEDDED)["volumes"] and folder in directories_of_images()


def test_real_edge_may_only_read_object_store(secrets: Path) -> None:
    identities = json.loads((secrets / "s3_identities.json").read_text())["identities"]
    actions = {one["credentials"][0]["accessKey"]: one["actions"] for one in identities}
    profile = (secrets / "s3_reader_credentials").read_text()

    (shown,) = [key for key in actions if key in profile]
    assert actions[shown] == ["Read:pentimento"]
    assert services(REAL)["edge"]["environment"]["AWS_SHARED_CREDENTIALS_FILE"] == "/run/secrets/s3_reader_credentials"
    assert "s3_credentials" not in services(REAL)["edge"]["secrets"]
    assert any(requirement.startswith("boto3") for requirement in requirements_of(["edge"]))


def test_earlier_secrets_stay_and_new_ones_are_added(secrets: Path) -> None:
    identities = json.loads((secrets / "s3_identities.json").read_text())["identities"]
    (secrets / "s3_identities.json").write_text(json.dumps({"identities": identities[:1]}))
    (secrets / "s3_reader_credentials").unlink()

    make_secrets(secrets)

    now = json.loads((secrets / "s3_identities.json").read_text())["identities"]
    assert (now[0], [one["name"] for one in now]) == (identities[0], ["pentimento", "edge"])
    assert now[1]["credentials"][0]["secretKey"] in (secrets / "s3_reader_credentials").read_text()


def test_secrets_are_made_once_for_every_mounted_file(secrets: Path) -> None:
    first = {path.name: path.read_text() for path in secrets.iterdir()}
    make_secrets(secrets)

    files = [read(file)["secrets"] for file in (REAL, "docker-compose.cells.yml")]
    mounted = {Path(secret["file"]).name for given in files for secret in given.values()}
    assert {path.name: path.read_text() for path in secrets.iterdir()} == first
    assert set(first) == mounted | {"user_token", "admin_token"}


def test_full_disk_leaves_no_empty_secret(tmp_path: Path) -> None:
    write = Path.write_text
    for written in range(15):
        folder, left = tmp_path / str(written), iter(range(written))
        folder.mkdir()

        def write_while_there_is_room(path: Path, text: str, left: Iterator[int] = left) -> int:
            if next(left, None) is None:
                raise OSError(errno.ENOSPC, "No space left on device")
            return write(path, text)

        with pytest.MonkeyPatch.context() as full:
            full.setattr(Path, "write_text", write_while_there_is_room)
            with pytest.raises(OSError, match="No space left"):
                make_secrets(folder)
        make_secrets(folder)

        assert [path.name for path in folder.iterdir() if not path.read_text()] == []
        password = (folder / "postgres_password").read_text()
        assert f":{password}@" in (folder / "ledger.toml").read_text()
        identities = json.loads((folder / "s3_identities.json").read_text())["identities"]
        assert [one["name"] for one in identities] == ["pentimento", "edge"]


def assert_tokens_are_known(secrets: Path) -> None:
    tokens = TokenFile(secrets / "tokens.toml")
    for role in (Role.USER, Role.SERVICE, Role.ADMIN):
        caller = tokens.identify(f"Bearer {(secrets / f'{role.value}_token').read_text()}")
        assert caller is not None
        assert caller.roles == frozenset({role})


def test_lost_secrets_are_made_again_and_match(secrets: Path) -> None:
    assert_tokens_are_known(secrets)
    for lost in ("user_token", "admin_token", "service_token", "tokens.toml"):
        (secrets / lost).unlink()
        make_secrets(secrets)
        assert_tokens_are_known(secrets)
    # Each secret is in two files, and the other file still has it.
    for lost in ("postgres_password", "ledger.toml", "vectors_key", "vectors_settings.yaml"):
        first = (secrets / lost).read_text()
        (secrets / lost).unlink()
        make_secrets(secrets)
        assert (secrets / lost).read_text() == first


def test_revoked_token_stays_revoked(secrets: Path) -> None:
    known = secrets / "tokens.toml"
    entries = known.read_text().split("\n\n")
    known.write_text("\n\n".join(entry for entry in entries if "demo" not in entry))
    make_secrets(secrets)

    with pytest.raises(Unauthenticated):
        TokenFile(known).identify(f"Bearer {(secrets / 'user_token').read_text()}")
