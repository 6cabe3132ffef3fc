"""Store the frontdoor's journal and the gateway's cache entries, in SQLite or PostgreSQL by the same code."""

from pentimento.stores.ledger.journal.requests import Journal, open_journal

__all__ = ["Journal", "open_journal"]
