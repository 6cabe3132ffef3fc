"""Share the times and the backend mark of ledger tests."""

import pytest

NOW_S = 1_800_000_000.0
NOW_MS = 1_800_000_000_000
# Other tests run the same statements on PostgreSQL.
on_sqlite = pytest.mark.parametrize("ledger_url", ["sqlite"], indirect=True)
