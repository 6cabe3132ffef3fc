"""Store objects, vectors and the ledger: one interface each, embedded by default, distributed when outgrown. Never
torch.

Stores are synchronous and thread-safe; callers on an event loop run them in threads (the ledger answers with futures).
"""
