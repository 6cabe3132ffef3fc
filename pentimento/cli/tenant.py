"""`pentimento tenant`: tenants, their keys and quotas and usage."""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.table import Table

from pentimento.cli.calls import ask_channel
from pentimento.cli.connection import calling, running_suite
from pentimento.cli.options import FINITE, duration_ms, json_option, plain_table, say
from pentimento.clients.frontdoor import TenantsClient
from pentimento.domain.erasure import RECEIPT_FORM, Erasure
from pentimento.domain.errors import FailedPrecondition, InvalidArgument, NotFound
from pentimento.domain.tenants import DAY_S, HOUR_S, USAGE_KEPT_S, Tenant, TenantKey, TenantQuota, UsagePeriod
from pentimento.files.json_values import to_json
from pentimento.files.receipts import open_seal

T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., Any])
BOUNDS = ("requests_per_s", "burst_count", "concurrent_count", "cost_per_minute", "cache_bytes", "pools", "retention_h")
LENGTHS = {"day": DAY_S, "hour": HOUR_S}
# Fields of JSON documents; all of the other values.
DOCUMENTS: dict[type, tuple[str, ...]] = {
    Tenant: ("name", "quota", "created_at", "revision"),
    Erasure: ("tenant", "tenant_id", "state", "waits_for", "deleted_at", "began_at", "finished_at", "deleted"),
}


admin_options = calling(
    click.option(
        "--admin-address",
        envvar="PENTIMENTO_ADMIN_ADDRESS",
        help="host:port or unix:/path of `--admin-listen`, instead of the suite's here",
    )
)


def quota_options(command: Command) -> Command:
    """Add the options of a quota."""
    for option in (
        click.option("--pool", "pools", multiple=True, help="a pool that it may use; may be repeated"),
        click.option("--weight", type=FINITE, help="its share of workers while others wait; the default is 1"),
        click.option("--retention-h", type=FINITE, help="hours that its ended requests and images are kept"),
        click.option("--cache-bytes", type=int, help="bytes of its cache entries"),
        click.option("--cost-per-minute", type=FINITE, help="pixel steps: width x height x steps"),
        click.option("--concurrent", "concurrent_count", type=int, help="accepted requests that have not ended"),
        click.option("--burst", "burst_count", type=int, help="requests at once, above the rate"),
        click.option("--requests-per-s", type=FINITE, help="rate of requests; each image is one"),
    ):
        command = option(command)
    return command


@click.group()
def tenant() -> None:
    """Manage tenants and their keys, and show usage. Needs a token of the role tenant-admin."""


@tenant.command()
@click.argument("name")
@quota_options
@admin_options
def create(name: str, as_json: bool, **options: Any) -> None:
    """Create the tenant NAME. A quota that is not given is unlimited."""
    made = ask(options, lambda client: client.create(name, changed_quota(TenantQuota(), options)))
    show_tenant(made, as_json=as_json)


@tenant.command(name="list")
@admin_options
def list_all(as_json: bool, **options: Any) -> None:
    """List all tenants."""
    found = ask(options, lambda client: client.tenants())
    show_all(found, tenants_table(found), as_json=as_json)


@tenant.command()
@click.argument("name")
@admin_options
def show(name: str, as_json: bool, **options: Any) -> None:
    """Show the tenant NAME and its quota."""
    show_tenant(ask(options, lambda client: found_tenant(client, name)), as_json=as_json)


@tenant.command(name="set")
@click.argument("name")
@quota_options
@click.option("--unlimited", multiple=True, type=click.Choice(BOUNDS), help="remove this limit; may be repeated")
@admin_options
def change(name: str, unlimited: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Change the given quotas of the tenant NAME, at once."""

    async def update(client: TenantsClient) -> Tenant:
        known = await found_tenant(client, name)
        quota = changed_quota(without(known.quota, unlimited), options)
        return await client.update(name, quota, known.revision)

    show_tenant(ask(options, update), as_json=as_json)


@tenant.command()
@click.argument("name")
@admin_options
def delete(name: str, as_json: bool, **options: Any) -> None:
    """Delete the tenant NAME: its keys end at once, running requests continue. Its requests, images and cache entries
    are deleted after --tenant-grace-h of the frontdoor."""
    ask(options, lambda client: client.delete(name))
    say({"deleted": name}, f"{name} is deleted", as_json=as_json)


@tenant.command()
@click.argument("name")
@admin_options
def restore(name: str, as_json: bool, **options: Any) -> None:
    """Restore the deleted tenant NAME, without its keys."""
    show_tenant(ask(options, lambda client: client.restore(name)), as_json=as_json)


@tenant.command()
@click.argument("name")
@click.option("--keep-tenant", is_flag=True, help="delete its data only: keys and quotas stay")
@admin_options
def erase(name: str, keep_tenant: bool, as_json: bool, **options: Any) -> None:
    """Delete all data of the tenant NAME now, without a grace period, and the tenant. `erasures` shows the progress,
    `receipt` the end."""
    asked = ask(options, lambda client: client.erase(name, keep_tenant=keep_tenant))
    show_all([asked], erasures_table([asked]), as_json=as_json)


@tenant.command()
@click.argument("name", default="")
@admin_options
def erasures(name: str, as_json: bool, **options: Any) -> None:
    """List the erasures of deleted tenants: of NAME, or all."""
    found = ask(options, lambda client: client.erasures(name))
    show_all(found, erasures_table(found), as_json=as_json)


@tenant.command()
@click.argument("name")
@admin_options
def receipt(name: str, as_json: bool, **options: Any) -> None:
    """Print the receipt of the last finished erasure of NAME; it is JSON, with --json or without."""
    found = [one.receipt for one in ask(options, lambda client: client.erasures(name)) if one.receipt]
    if not found:
        raise NotFound("NO_RECEIPT", f"name: no erasure of {name} is done")
    click.echo(found[-1])


@tenant.command(name="check-receipt")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--public-key", default="", help="64 hexadecimal digits of the key that must have signed it")
@json_option
def check_receipt(file: Path, public_key: str, as_json: bool) -> None:
    """Check digest and signature of the receipt in FILE, and print the deleted data. Without --public-key it may be
    signed by anyone, or by none."""
    found = open_seal(file.read_text(encoding="utf-8", errors="replace"), public_key)
    if found.get("form") != RECEIPT_FORM:
        raise InvalidArgument.of("form", f"must be {RECEIPT_FORM}")
    if not public_key:
        click.echo("who signed it is not checked: give --public-key", err=True)
    if as_json:
        say(found, "", as_json=True)
        return
    click.echo(f"{found.get('tenant')} ({found.get('tenant_id')}): erased until {found.get('finished_at')}")
    for one in found.get("deleted", ()):
        click.echo(f"  {one.get('kind')}: {one.get('count')}, {one.get('bytes')} bytes")


@tenant.group()
def key() -> None:
    """Create, list, rotate and revoke keys."""


@key.command(name="create")
@click.argument("name")
@click.option("--expires", metavar="TIME", help="lifetime: 90d, 12h [unlimited]")
@admin_options
def create_key(name: str, expires: str | None, as_json: bool, **options: Any) -> None:
    """Create a key of the tenant NAME and print it. Only its digest is stored."""
    made, secret = ask(options, lambda client: client.create_key(name, seconds("expires", expires)))
    show_secret(made, secret, as_json=as_json)


@key.command(name="list")
@click.argument("name")
@admin_options
def list_keys(name: str, as_json: bool, **options: Any) -> None:
    """List the keys of the tenant NAME, ended ones for 30 days."""
    found = ask(options, lambda client: client.keys(name))
    show_all(found, keys_table(found, time.time()), as_json=as_json)


@key.command()
@click.argument("key_id")
@click.option("--grace", metavar="TIME", default="24h", show_default=True, help="time the old key stays valid")
@click.option("--expires", metavar="TIME", help="lifetime of the new key: 90d, 12h [unlimited]")
@admin_options
def rotate(key_id: str, grace: str, expires: str | None, as_json: bool, **options: Any) -> None:
    """Replace KEY_ID by a new key; the old one ends after --grace."""
    grace_s = 0 if grace == "0" else seconds("grace", grace) or 0
    new, secret, old = ask(options, lambda client: client.rotate_key(key_id, grace_s, seconds("expires", expires)))
    show_secret(new, secret, as_json=as_json, old=old)


@key.command()
@click.argument("key_id")
@admin_options
def revoke(key_id: str, as_json: bool, **options: Any) -> None:
    """Revoke KEY_ID now. Running calls continue."""
    ended = ask(options, lambda client: client.revoke_key(key_id))
    say(document_of(ended), f"{key_id} of {ended.tenant} is revoked", as_json=as_json)


@tenant.command()
@click.argument("name")
@click.option("--since", metavar="TIME", default="30d", show_default=True, help="how far back: 30d, 12h")
@click.option("--by", type=click.Choice(list(LENGTHS)), default="day", show_default=True)
@admin_options
def usage(name: str, since: str, by: str, as_json: bool, **options: Any) -> None:
    """Show the usage of the tenant NAME, by days or hours of UTC."""
    length_s, now_ms, since_ms = LENGTHS[by], int(time.time() * 1000), duration_ms("since", since)
    if since_ms > USAGE_KEPT_S * 1000:
        raise InvalidArgument.of("since", f"must be at most {USAGE_KEPT_S // DAY_S}d, for which usage is kept")
    first_ms = now_ms - since_ms
    # From the start of the first day or hour.
    first_ms -= first_ms % (length_s * 1000)
    found = ask(options, lambda client: client.usage(name, max(first_ms, 0), now_ms + 1, length_s))
    show_all(found, usage_table(found, length_s), as_json=as_json)


def ask(options: dict[str, Any], question: Callable[[TenantsClient], Awaitable[T]]) -> T:
    """Return the administration's answer, or raise its error; FailedPrecondition if a suite here has none."""
    address = options["admin_address"] or admin_of_suite(options)
    return ask_channel(address, options, lambda channel: question(TenantsClient(channel)))


def admin_of_suite(options: dict[str, Any]) -> str:
    """Return the administration's address of the suite that runs here."""
    found = running_suite(options["state_dir"]).admin
    if not found:
        message = "this suite does not administer tenants: start it with --admin-listen and --token-file"
        raise FailedPrecondition("NO_ADMINISTRATION", message)
    return found


async def found_tenant(client: TenantsClient, name: str) -> Tenant:
    """Return the tenant of that name. Raises NotFound."""
    found = next((one for one in await client.tenants() if one.name == name), None)
    if found is None:
        raise NotFound("UNKNOWN_TENANT", f"there is no tenant {name}")
    return found


def changed_quota(quota: TenantQuota, options: dict[str, Any]) -> TenantQuota:
    """Return the quota changed by the given options. Raises InvalidArgument."""
    given = {name: options[name] for name in (*BOUNDS, "weight") if options[name] not in (None, ())}
    return replace(quota, **given)


def without(quota: TenantQuota, names: Sequence[str]) -> TenantQuota:
    """Return the quota without these bounds; a burst goes with its rate."""
    gone = {*names, *(("burst_count",) if "requests_per_s" in names else ())}
    default = TenantQuota()
    return replace(quota, **{name: getattr(default, name) for name in gone})


def seconds(field: str, text: str | None) -> int | None:
    """Return a time in whole seconds, at least one; None for none. Raises InvalidArgument."""
    return max(duration_ms(field, text) // 1000, 1) if text is not None else None


def show_tenant(one: Tenant, *, as_json: bool) -> None:
    """Print a tenant."""
    show_all([one], tenants_table([one]), as_json=as_json)


def show_all(found: Sequence[Tenant | TenantKey | Erasure | UsagePeriod], table: Table, *, as_json: bool) -> None:
    """Print one document per line, or the table."""
    if not as_json:
        Console().print(table)
        return
    for one in found:
        say(document_of(one), "", as_json=True)


def document_of(value: Tenant | TenantKey | Erasure | UsagePeriod) -> dict[str, Any]:
    """Return a value as a JSON document, its times (`…_at`, in seconds) in milliseconds."""
    names = DOCUMENTS.get(type(value)) or [field.name for field in fields(value)]
    found: dict[str, Any] = {}
    for name in names:
        one = getattr(value, name)
        if name.endswith("_at"):
            found[f"{name}_ms"] = round(one * 1000) if one is not None else None
        else:
            found[name] = to_json(one)
    return found


def show_secret(made: TenantKey, secret: str, *, as_json: bool, old: TenantKey | None = None) -> None:
    """Print a new key to stdout, and notes about it to stderr."""
    if as_json:
        told = {"secret": secret, "key": document_of(made)}
        say(told | ({"old_key": document_of(old)} if old is not None else {}), "", as_json=True)
        return
    click.echo(secret)
    ends = f", ends at {when(made.expires_at)}" if made.expires_at is not None else ""
    click.echo(f"key {made.key_id} of {made.tenant}{ends}; it is shown this once", err=True)
    if old is not None:
        click.echo(f"key {old.key_id} ends at {when(old.expires_at)}", err=True)


def tenants_table(found: Sequence[Tenant]) -> Table:
    """Return the table of tenants."""
    bounds = ("requests/s", "burst", "at once", "cost a minute", "cache bytes", "hours kept")
    table = plain_table("tenant", *bounds, "weight", "pools")
    for one in found:
        quota = one.quota
        burst = quota.burst if quota.requests_per_s is not None else None
        counts = (quota.requests_per_s, burst, quota.concurrent_count, quota.cost_per_minute)
        numbers = (*counts, quota.cache_bytes, quota.retention_h)
        table.add_row(one.name, *map(_number, numbers), f"{quota.weight:g}", ", ".join(quota.pools) or "all")
    return table


def keys_table(found: Sequence[TenantKey], now: float) -> Table:
    """Return the table of keys."""
    table = plain_table("key", "made", "ends", "state")
    for one in found:
        state = "good" if one.is_good(now) else "revoked" if one.revoked_at is not None else "expired"
        table.add_row(one.key_id, when(one.created_at), when(one.expires_at), state)
    return table


def erasures_table(found: Sequence[Erasure]) -> Table:
    """Return the table of erasures."""
    table = plain_table("tenant", "identity", "state", "deleted", "finished", "erased so far", "waits for")
    for one in found:
        so_far = ", ".join(f"{kind.kind} {kind.count}" for kind in one.deleted if kind.count)
        ended = when(one.finished_at) if one.finished_at is not None else "-"
        row = (one.tenant, one.tenant_id, one.state.value, when(one.deleted_at), ended, so_far, one.waits_for)
        table.add_row(*row)
    return table


def usage_table(found: Sequence[UsagePeriod], length_s: int) -> Table:
    """Return the table of usage by period."""
    headings = ("requests", "images", "cache hits", "pixel steps", "device s", "cached bytes", "rejected")
    table = plain_table("UTC", *headings)
    form = "%Y-%m-%d" if length_s == DAY_S else "%Y-%m-%d %H:00"
    for one in found:
        counts = (one.request_count, one.image_count, one.cache_hit_count, one.painted_cost)
        rejected = ", ".join(f"{reason} {count}" for reason, count in one.refused_counts.items())
        rest = (f"{one.device_s:.1f}", str(one.cached_bytes), rejected)
        table.add_row(datetime.fromtimestamp(one.start_at, UTC).strftime(form), *map(_number, counts), *rest)
    return table


def when(at_s: float | None) -> str:
    """Return a time in UTC, "never" for none."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%SZ") if at_s is not None else "never"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
