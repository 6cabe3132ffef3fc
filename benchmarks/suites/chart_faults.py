"""Faults that the checks of the chart must notice: wrong values, and manifests that were changed after rendering."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from benchmarks.suites.charts import Manifest, Values

# Values that the chart must reject, with the field that its message names.
WRONG_VALUES: Mapping[str, Values] = {
    "frontdoor/replicas": {"frontdoor": {"replicas": "two"}},
    "frontdoor/settings/queue_limit": {"frontdoor": {"settings": {"queue_limit": -1}}},
    "'quue_limit'": {"frontdoor": {"settings": {"quue_limit": 1}}},
    "'ledger_url'": {"frontdoor": {"settings": {"ledger_url": "postgresql+psycopg://user:word@host/database"}}},
    "serving/thinning": {"serving": {"thinning": "sometimes"}},
    "env/AWS_SECRET_ACCESS_KEY": {"env": {"AWS_SECRET_ACCESS_KEY": "word"}},
    "stores/postgresql/parameters": {"stores": {"postgresql": {"parameters": "password=word"}}},
    "stores/postgresql/user": {"stores": {"postgresql": {"user": "user:word"}}},
    "stores/s3/endpoint": {"stores": {"s3": {"endpoint": "http://user:word@host"}}},
    "image/tag": {"image": {"tag": "latest"}},
    "workers/heavy/resources/limits/memory": {"workers": {"heavy": {"resources": {"limits": {"memory": "lots"}}}}},
    # Found by templates, since no schema can say it.
    "serving.cascade": {"serving": {"cascade": ["tiny-light", "unknown"]}},
    "models.path": {"models": {"kind": "hostPath"}},
    "stores.s3.bucket": {"stores": {"s3": {"bucket": ""}}},
    "frontdoor.replicas": {"stores": {"kind": "embedded"}, "frontdoor": {"replicas": 2}},
    "frontdoor.admin": {"frontdoor": {"admin": True}, "auth": {"enabled": False}},
    "controller.autoscaling.kind": {"controller": {"autoscaling": {"kind": "hpa"}}},
    "ingress.hosts": {"ingress": {"enabled": True}},
    "grpcRoute.parentRefs": {"grpcRoute": {"enabled": True}},
}


def pod(manifest: Manifest) -> Manifest:
    found: Manifest = manifest["spec"]["template"]["spec"]
    return found


def container(manifest: Manifest) -> Manifest:
    found: Manifest = pod(manifest)["containers"][0]
    return found


def variable(manifest: Manifest, name: str, value: str) -> None:
    """Change a variable of the container."""
    next(one for one in container(manifest)["env"] if one["name"] == name)["value"] = value


# The kind and the component of the object to change, and the change.
Change = tuple[str, str, Callable[[Manifest], Any]]
PLANTED: Mapping[str, Change] = {
    "long name": ("Service", "edge", lambda one: one["metadata"].update(name="x" * 60)),
    "no limit": ("Deployment", "edge", lambda one: container(one)["resources"]["limits"].pop("memory")),
    "request above limit": ("Deployment", "edge", lambda one: container(one)["resources"]["requests"].update(cpu="64")),
    "little memory": (
        "StatefulSet",
        "unet-worker-heavy",
        lambda one: [container(one)["resources"][part].update(memory="600Mi") for part in ("requests", "limits")],
    ),
    "root": ("Deployment", "edge", lambda one: pod(one)["securityContext"].update(runAsUser=0)),
    "rights": ("Deployment", "edge", lambda one: container(one)["securityContext"].pop("capabilities")),
    "cluster's token": ("Deployment", "edge", lambda one: pod(one).pop("automountServiceAccountToken")),
    "latest image": ("Deployment", "edge", lambda one: container(one).update(image="edge:latest")),
    "liveness by health": (
        "Deployment",
        "frontdoor",
        lambda one: container(one)["livenessProbe"]["grpc"].pop("service"),
    ),
    "no readiness": ("Deployment", "frontdoor", lambda one: container(one).pop("readinessProbe")),
    "short grace": ("Deployment", "edge", lambda one: pod(one).update(terminationGracePeriodSeconds=30)),
    "wrong selector": ("Service", "edge", lambda one: one["spec"]["selector"].pop("app.kubernetes.io/component")),
    "wrong port": ("Service", "edge", lambda one: one["spec"]["ports"][0].update(targetPort="web")),
    "no headless service": ("StatefulSet", "unet-worker-heavy", lambda one: one["spec"].update(serviceName="none")),
    "blocking budget": ("PodDisruptionBudget", "edge", lambda one: one["spec"].update(maxUnavailable=0)),
    "no priority class": ("Deployment", "edge", lambda one: pod(one).update(priorityClassName="none")),
    "volume without mount": ("Deployment", "edge", lambda one: pod(one)["volumes"].append({"name": "more"})),
    "variable twice": ("Deployment", "edge", lambda one: container(one)["env"].append(container(one)["env"][-1])),
    "a secret's value": (
        "Deployment",
        "edge",
        lambda one: container(one)["env"].append({"name": "ACCESS_TOKEN", "value": "word"}),
    ),
    "no call": ("NetworkPolicy", "controller", lambda one: one["spec"].update(ingress=[])),
    "no default": ("NetworkPolicy", "edge", lambda one: one["spec"].update(policyTypes=["Ingress"])),
    "unknown field": ("Deployment", "edge", lambda one: one["spec"].update(replica=1)),
    "unknown setting": ("Deployment", "edge", lambda one: container(one)["env"][2].update(name="PENTIMENTO_EDGE_X")),
    "wrong setting": (
        "Deployment",
        "frontdoor",
        lambda one: variable(one, "PENTIMENTO_FRONTDOOR_THINNING", "sometimes"),
    ),
    "closed port": ("Deployment", "edge", lambda one: container(one)["ports"][0].update(containerPort=8080)),
}


def planted(manifests: list[Manifest], fault: str) -> list[Manifest]:
    """Return the manifests with one fault in them."""
    kind, component, change = PLANTED[fault]
    changed = deepcopy(manifests)
    for one in changed:
        if one["kind"] == kind and one["metadata"]["labels"].get("app.kubernetes.io/component") == component:
            change(one)
    return changed
