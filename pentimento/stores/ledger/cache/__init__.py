"""The gateway's ledger: grants, entries and objects. Each module is a part of `CacheLedger`."""
