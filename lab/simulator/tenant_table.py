"""The `[[tenants]]` of a scenario: quotas, as the live dataplane is given them."""

from lab.files.toml_document import TomlTable
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.tenants import TenantQuota

_WHOLE = ("burst_count", "concurrent_count")
_NUMBERS = ("requests_per_s", "cost_per_minute", "weight")


def read_quotas(table: TomlTable) -> tuple[tuple[str, TenantQuota], ...]:
    """Return the quota of each tenant that has one. Raises InvalidArgument that names file, line, field and limit."""
    return tuple(_quota(entry) for entry in table.tables("tenants"))


def _quota(entry: TomlTable) -> tuple[str, TenantQuota]:
    given: dict[str, float] = {field: entry.number(field) for field in _NUMBERS if field in entry.fields}
    counts: dict[str, int] = {field: entry.whole(field) for field in _WHOLE if field in entry.fields}
    name, pools = entry.text("name"), entry.texts("pools", ())
    try:
        quota = TenantQuota(pools=pools, **given, **counts)  # type: ignore[arg-type]
    except InvalidArgument as error:
        wrong = error.violations[0]
        raise entry.error(wrong.field, wrong.description) from None
    return name, quota
