"""The model repository: variants and cascades that may be planned.

| module | what it does |
| --- | --- |
| `checks` | what may be registered; each refusal names the field and its limit |
| `repository` | registers, removes and lists, in the ledger and in memory |
"""
