"""The ledger: the frontdoor's journal and the gateway's cache entries, in SQLite or PostgreSQL by the same code."""
