"""`pentimento token new`."""

import click

from pentimento.cli.options import json_option, say
from pentimento.domain.tenants import DEFAULT_TENANT, Role, check_name
from pentimento.rpc.tokens import GRANTABLE, new_token, token_entry

ROLES = sorted(role.value for role in GRANTABLE)


@click.group()
def token() -> None:
    """Make tokens: they name a tenant and its roles."""


@token.command()
@click.option(
    "--tenant", default=DEFAULT_TENANT, show_default=True, help="tenant of the requests, images and cache entries"
)
@click.option("--role", "roles", type=click.Choice(ROLES), multiple=True, default=("user",), show_default=True)
@json_option
def new(tenant: str, roles: tuple[str, ...], as_json: bool) -> None:
    """Make a token and print it; the entry for the token file, with its digest, goes to stderr."""
    secret = new_token()
    check_name(tenant, "tenant")
    entry = token_entry(secret, tenant, frozenset(Role(role) for role in roles))
    say({"token": secret, "tenant": tenant, "roles": sorted(set(roles)), "entry": entry}, secret, as_json=as_json)
    if not as_json:
        click.echo(f"# add to the file that `pentimento up --token-file` names:\n{entry}", err=True)
