"""Combinations of the chart's values: every pair of choices occurs, drawn in a fixed order."""

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from benchmarks.suites.charts import Values

EXTERNAL = {
    "stores": {
        "postgresql": {"hosts": ["db-1:5432", "db-2:5432"]},
        "qdrant": {"address": "qdrant:6334"},
        "s3": {"bucket": "images"},
    }
}
EMBEDDED = {"stores": {"kind": "embedded"}}
GPU = {"kind": "plugin", "share": 2}
CLAIM = {"kind": "claim", "selectors": ["device.driver == 'gpu.nvidia.com'"]}
CASCADE = {"serving": {"cascade": ["tiny-light", "tiny-heavy"], "confidenceThreshold": 0.7, "allocator": "joint"}}
# A choice, and its alternatives; the first ones are the chart's own.
CHOICES: Mapping[str, Sequence[Values]] = {
    "stores": (EXTERNAL, EMBEDDED),
    "tls": ({}, {"tls": {"secret": "certificates"}}, {"tls": {"secret": "certificates", "mutual": True}}),
    "auth": ({}, {"auth": {"enabled": False}}),
    "devices": (
        {},
        {"workerDefaults": {"accelerator": GPU}, "controlnet": {"accelerator": GPU}},
        {"defaults": {"accelerator": {}}, "workerDefaults": {"accelerator": CLAIM}, "embedder": {"accelerator": CLAIM}},
    ),
    "models": (
        {},
        {"models": {"kind": "hostPath", "path": "/srv/models"}},
        {"models": {"kind": "image", "image": "registry.example/models:1"}},
        {"models": {"kind": "copy", "image": "registry.example/models:1"}},
    ),
    "files": (
        {},
        {"profiles": {"kind": "claim", "claim": "profiles"}, "embeddings": {"kind": "copy", "image": "words:2"}},
    ),
    "cache": (
        {},
        {"componentCache": {"kind": "claim", "size": "50Gi", "storageClass": "fast"}},
        {
            "componentCache": {"kind": "hostPath", "path": "/srv/loras"},
            "tensors": {"kind": "hostPath", "path": "/srv/t"},
        },
    ),
    "scaling": (
        {},
        {"edge": {"autoscaling": {"kind": "hpa"}}, "workerDefaults": {"autoscaling": {"kind": "external"}}},
        {"embedder": {"replicas": 3}, "discriminator": {"replicas": 2}, "workers": {"heavy": {"replicas": 4}}},
    ),
    "cascade": ({}, CASCADE, {**CASCADE, "workers": {"light": None, "both": {"model": "tiny-heavy"}}}),
    "services": (
        {},
        {"gateway": {"enabled": False}, "embedder": {"enabled": False}},
        {"edge": {"enabled": False}, "controlnet": {"enabled": False}},
    ),
    "tuned": (
        {},
        {
            "cache": {"eviction": "lru", "bias": -2, "scratchShare": 0.05, "matchPredictor": "off"},
            "frontdoor": {"admin": True, "settings": {"queue_limit": 1024, "webhook_hosts": ["hooks.example.com"]}},
            "workerDefaults": {"settings": {"max_batch": 4, "lora_cache_mib": 16384, "preempt": False}},
            "edge": {"hosts": ["images.example"], "settings": {"max_body_bytes": 134217728}},
        },
    ),
    "cluster": (
        {},
        {
            "networkPolicy": {"enabled": False},
            "priorityClasses": {"create": False},
            "serviceAccount": {"create": False},
        },
        {"networkPolicy": {"stores": [{"ipBlock": {"cidr": "10.0.0.0/8"}}], "administrators": [{"podSelector": {}}]}},
    ),
    "monitoring": ({}, {"serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}}}),
    "routes": (
        {},
        {"grpcRoute": {"enabled": True, "parentRefs": [{"name": "public"}], "hostnames": ["images.example"]}},
        {"ingress": {"enabled": True, "hosts": ["images.example"], "className": "nginx", "tlsSecret": "site"}},
    ),
    "identity": (
        {},
        {
            "image": {"registry": "registry.example/team", "digests": {"edge": f"sha256:{'0' * 64}"}},
            "drainSeconds": 120,
        },
        {
            "image": {"tag": "1.2.3", "pullSecrets": ["registry"]},
            "logLevel": "debug",
            "env": {"GRPC_VERBOSITY": "NONE"},
        },
    ),
}
# Beyond the others' own, in the second row of a choice: S3 by the account's identity, certificates of the database.
EXTRA: Mapping[str, Values] = {
    "monitoring": {"secrets": {"postgresqlCa": {"name": "db-ca", "key": "ca.crt"}, "tokens": {"name": "callers"}}},
}


def merged(base: Any, own: Any) -> Any:
    """Return two mappings of values as helm merges them."""
    if not (isinstance(base, Mapping) and isinstance(own, Mapping)):
        return own
    return {**base, **{key: merged(base[key], value) if key in base else value for key, value in own.items()}}


def values_of(rows: Mapping[str, int]) -> Values:
    """Return the values of one alternative for each choice."""
    found: Any = {}
    for name, row in rows.items():
        found = merged(found, CHOICES[name][row])
        if row == 1:
            found = merged(found, EXTRA.get(name, {}))
    return dict(found)


# Two alternatives that contradict each other: replicas of a pool that is removed, an administrator without tokens, an
# ingress without its edge.
IMPOSSIBLE = ((("scaling", 2), ("cascade", 2)), (("auth", 1), ("tuned", 1)), (("services", 2), ("routes", 2)))


def possible(rows: Mapping[str, int]) -> bool:
    """Return whether no two alternatives contradict each other."""
    return not any(rows.items() >= {*both} for both in IMPOSSIBLE)


def combinations_of_values(count: int, seed: int = 0) -> Iterator[dict[str, int]]:
    """Yield combinations, each with as many pairs of alternatives as possible that no earlier one had."""
    rng = random.Random(seed)
    seen: set[Any] = set()
    for _ in range(count):
        drawn = [{name: rng.randrange(len(rows)) for name, rows in CHOICES.items()} for _ in range(40)]
        best = max(filter(possible, drawn), key=lambda rows: len(pairs(rows) - seen))
        seen |= pairs(best)
        yield best


def pairs(rows: Mapping[str, int]) -> set[Any]:
    """Return every pair of alternatives in a combination."""
    return {*combinations(rows.items(), 2)}


def every_pair() -> set[Any]:
    """Return every pair of alternatives that some combination may have."""
    found = set()
    for (one, rows), (other, others) in combinations(CHOICES.items(), 2):
        found |= {((one, row), (other, column)) for row in range(len(rows)) for column in range(len(others))}
    return found - {*IMPOSSIBLE}
