"""What tests of several ledgers share."""

import pytest

NOW_S = 1_800_000_000.0
NOW_MS = 1_800_000_000_000
# For tests whose statements others run on PostgreSQL.
on_sqlite = pytest.mark.parametrize("ledger_url", ["sqlite"], indirect=True)
