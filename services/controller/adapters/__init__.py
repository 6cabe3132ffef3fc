"""LoRAs that operators uploaded.

| module | what it does |
| --- | --- |
| `checks` | what may be said of an upload; each refusal names the field and its limit |
| `uploads` | judges, stores, registers, removes and lists them |
| `servicer` | pentimento.api.adapters.v1 over them |
"""
