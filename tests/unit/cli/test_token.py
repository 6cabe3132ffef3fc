"""Test `pentimento token new` and token files."""

from pathlib import Path

import pytest

from pentimento.domain.tenants import Role
from pentimento.rpc.tokens import hash_token, parse_tokens
from tests.support.processes import run_command


def test_binary_token_file_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(b"\xff")

    done = run_command("jobs", "list", "--token", f"@{tmp_path / 'token'}", "--address", "unix:/nobody")

    assert (done.returncode, done.stderr) == (
        1,
        f"pentimento: token: {tmp_path / 'token'} cannot be read: it is no text\n",
    )


def test_new_token_matches_its_entry() -> None:
    done = run_command("token", "new", "--tenant", "acme", "--role", "admin")

    entries = parse_tokens(done.stderr, "stderr")
    assert list(entries) == [hash_token(done.stdout)]


def test_tenant_name_cannot_inject_token_entry() -> None:
    name = 'x", roles = ["admin"] } [[token]] \\ "'

    done = run_command("token", "new", "--tenant", name)

    (caller,) = parse_tokens(done.stderr, "stderr").values()
    assert (caller.tenant, caller.roles) == (name, frozenset({Role.USER}))


@pytest.mark.parametrize("name", ["", 'x"\nroles = ["admin"]\n#', " x"])
def test_invalid_tenant_name_gets_no_token(name: str) -> None:
    done = run_command("token", "new", "--tenant", name)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("pentimento: tenant: must be 1 to 100 printable characters")
