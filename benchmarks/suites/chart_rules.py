"""Rules for the manifests of a release that no schema knows: each yields its findings, as `kind/name: fault`.

They are those of kube-score and of restricted Pod Security, and some of this suite: readiness follows the health
service and liveness does not, secrets come by reference, and each address that a pod is given may be called.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

Manifest = Mapping[str, Any]

WORKLOADS = {"Deployment", "StatefulSet"}
CLUSTER_WIDE = {"PriorityClass"}
# Services with one active replica; the others are standbys, which are never ready.
LED = ("frontdoor", "controller")
LABELS = {f"app.kubernetes.io/{name}" for name in ("name", "instance", "version", "managed-by")}
UNITS = {"": 1, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
# Beyond addresses in variables: the frontdoor's calls and the workers' follow the plan (docs/structure.md).
PLANNED = {
    ("frontdoor", "unet-worker"),
    ("frontdoor", "discriminator"),
    ("unet-worker", "controlnet-svc"),
    ("unet-worker", "unet-worker"),
}
SENSITIVE = re.compile(r"PASSWORD|TOKEN|SECRET|_KEY|CREDENTIALS")
SECRET_PLACES = ("/run/secrets/", "/var/lib/pentimento/keys/")
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


@dataclass(frozen=True)
class RenderedRelease:
    """Hold the manifests of a release."""

    manifests: Sequence[Manifest]

    def of(self, *kinds: str) -> list[Manifest]:
        """Return the objects of some kinds."""
        return [one for one in self.manifests if one["kind"] in kinds]

    @cached_property
    def workloads(self) -> list[Manifest]:
        return self.of(*WORKLOADS)

    @cached_property
    def pods(self) -> list[tuple[str, Manifest]]:
        """Return every template of pods, with the name of its object."""
        return [(named(one), one["spec"]["template"]) for one in self.of(*WORKLOADS, "Job")]

    @cached_property
    def containers(self) -> list[tuple[str, Manifest]]:
        """Return every container, init containers too."""
        return [
            (f"{name}/{one['name']}", one)
            for name, pod in self.pods
            for one in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"])
        ]

    def selected(self, selector: Mapping[str, str]) -> list[Manifest]:
        """Return the workloads with pods that have the labels."""
        return [one for one in self.workloads if labels_fit(selector, one["spec"]["template"]["metadata"]["labels"])]


def named(manifest: Manifest) -> str:
    return f"{manifest['kind']}/{manifest['metadata']['name']}"


def component(manifest: Manifest) -> str:
    """Return the component of an object; the pools of workers are one."""
    found: str = manifest["metadata"]["labels"]["app.kubernetes.io/component"]
    return "unet-worker" if found.startswith("unet-worker-") else found


def labels_fit(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    return selector.items() <= labels.items()


def quantity(text: str | int) -> float:
    """Return a quantity as Kubernetes reads it."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([A-Za-z]*)", str(text))
    assert found is not None and found[2] in UNITS, text
    return float(found[1]) * UNITS[found[2]]


def objects_are_named_and_labelled(release: RenderedRelease) -> Iterator[str]:
    keys = [(one["kind"], one["metadata"]["name"]) for one in release.manifests]
    yield from (f"{kind}/{name}: two objects have the name" for kind, name in {*keys} if keys.count((kind, name)) > 1)
    for one in release.manifests:
        name, labels = one["metadata"]["name"], one["metadata"]["labels"]
        if len(name) > 52 or not re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name):
            yield f"{named(one)}: names of its pods would be too long, or the name is none"
        if not labels.keys() >= LABELS:
            yield f"{named(one)}: has no {', '.join(sorted(LABELS - labels.keys()))}"
        if any(len(value) > 63 for value in labels.values()):
            yield f"{named(one)}: a label has more than 63 characters"
        if (one["kind"] in CLUSTER_WIDE) == ("namespace" in one["metadata"]):
            yield f"{named(one)}: has a namespace, or lacks one"


def containers_have_requests_and_limits(release: RenderedRelease) -> Iterator[str]:
    for name, container in release.containers:
        resources = container["resources"]
        for kind in ("cpu", "memory", "ephemeral-storage"):
            asked, most = (resources.get(part, {}).get(kind) for part in ("requests", "limits"))
            if asked is None or most is None:
                yield f"{name}: no request or no limit of {kind}"
            elif not 0 < quantity(asked) <= quantity(most):
                yield f"{name}: requests {asked} of {kind}, the limit is {most}"


def memory_holds_volumes_in_memory(release: RenderedRelease) -> Iterator[str]:
    for name, pod in release.pods:
        taken = sum(
            quantity(volume["emptyDir"]["sizeLimit"])
            for volume in pod["spec"].get("volumes", ())
            if volume.get("emptyDir", {}).get("medium") == "Memory"
        )
        limit = sum(quantity(one["resources"]["limits"].get("memory", 0)) for one in pod["spec"]["containers"])
        if taken > limit / 2:
            yield f"{name}: volumes in memory take more than half of the limit"


def pods_are_restricted(release: RenderedRelease) -> Iterator[str]:
    """Check the profile `restricted` of Pod Security, except volumes of the host, which a value may request."""
    for name, pod in release.pods:
        spec, security = pod["spec"], pod["spec"]["securityContext"]
        if not security.get("runAsNonRoot") or min(security["runAsUser"], security["runAsGroup"]) < 10_000:
            yield f"{name}: runs as root, or as a user of the host"
        if security.get("seccompProfile") != {"type": "RuntimeDefault"}:
            yield f"{name}: has no seccomp profile"
        if any(spec.get(host) for host in ("hostNetwork", "hostPID", "hostIPC")):
            yield f"{name}: shares namespaces of the host"
        if spec.get("automountServiceAccountToken") is not False:
            yield f"{name}: gets a token of the cluster"
    for name, container in release.containers:
        security = container["securityContext"]
        if security.get("allowPrivilegeEscalation") is not False or security.get("capabilities") != {"drop": ["ALL"]}:
            yield f"{name}: may gain rights"
        if not security.get("readOnlyRootFilesystem") or not security.get("runAsNonRoot") or security.get("privileged"):
            yield f"{name}: may change its image, or is privileged"


def volumes_of_the_host(release: RenderedRelease) -> list[str]:
    """Return the pods' volumes that Pod Security forbids."""
    return [
        f"{name}: {volume['name']}"
        for name, pod in release.pods
        for volume in pod["spec"].get("volumes", ())
        if "hostPath" in volume
    ]


def images_are_of_a_version(release: RenderedRelease) -> Iterator[str]:
    for name, container in release.containers:
        image = container["image"]
        if not re.search(r"@sha256:[0-9a-f]{64}$|:[\w][\w.-]*$", image) or image.endswith(":latest"):
            yield f"{name}: {image} names no version"


def probes_follow_the_health_service(release: RenderedRelease) -> Iterator[str]:
    for one in release.workloads:
        (container,) = one["spec"]["template"]["spec"]["containers"]
        missing = [probe for probe in PROBES if probe not in container]
        if missing:
            yield f"{named(one)}: no {', '.join(missing)}"
            continue
        started, live, ready = (checked(container[probe]) for probe in PROBES)
        if started != live or live not in ("liveness", "/health"):
            yield f"{named(one)}: liveness asks for {live or 'health'}: a draining pod would be killed"
        if ready not in ("", "/ready"):
            yield f"{named(one)}: readiness asks for {ready}"


def checked(probe: Manifest) -> str:
    """Return what a probe asks for: a path, or the service of the health service, "" for all."""
    if "httpGet" in probe:
        return str(probe["httpGet"]["path"])
    if "grpc" in probe:
        return str(probe["grpc"].get("service", ""))
    assert probe["exec"]["command"][-2:][0].endswith(("probe.py", ".sock")), probe
    return str(probe["exec"]["command"][-1]) if len(probe["exec"]["command"]) == 5 else ""


def pods_outlive_their_drain(release: RenderedRelease) -> Iterator[str]:
    for one in release.workloads:
        spec = one["spec"]["template"]["spec"]
        drain_s = float(variables(spec["containers"][0])["PENTIMENTO_COMMON_DRAIN_TIMEOUT_S"])
        if spec["terminationGracePeriodSeconds"] < drain_s + 10:
            yield f"{named(one)}: is killed while it drains"


def replicas_are_set_by_one(release: RenderedRelease) -> Iterator[str]:
    scaled = {tuple(one["spec"]["scaleTargetRef"][key] for key in ("kind", "name")) for one in scalers(release)}
    known = {(one["kind"], one["metadata"]["name"]): one for one in release.workloads}
    yield from (f"{kind}/{name}: is scaled, and does not exist" for kind, name in scaled - known.keys())
    for key in scaled & known.keys():
        if "replicas" in known[key]["spec"]:
            yield f"{key[0]}/{key[1]}: has replicas, and a program that sets them"


def scalers(release: RenderedRelease) -> list[Manifest]:
    return release.of("HorizontalPodAutoscaler")


def services_select_pods_and_their_ports(release: RenderedRelease) -> Iterator[str]:
    for one in release.of("Service"):
        pods = release.selected(one["spec"]["selector"])
        if len(pods) != 1:
            yield f"{named(one)}: selects {len(pods)} workloads"
            continue
        ports = {port["name"] for port in pods[0]["spec"]["template"]["spec"]["containers"][0]["ports"]}
        yield from (
            f"{named(one)}: no port {port['targetPort']}"
            for port in one["spec"]["ports"]
            if port["targetPort"] not in ports
        )
    headless = {one["metadata"]["name"] for one in release.of("Service") if one["spec"].get("clusterIP") == "None"}
    for one in release.of("StatefulSet"):
        if one["spec"]["serviceName"] not in headless:
            yield f"{named(one)}: {one['spec']['serviceName']} is no headless Service"


def routes_lead_to_services(release: RenderedRelease) -> Iterator[str]:
    ports = {
        (one["metadata"]["name"], port[key])
        for one in release.of("Service")
        for port in one["spec"]["ports"]
        for key in ("name", "port")
    }
    for one in release.of("Ingress"):
        for path in (path for rule in one["spec"]["rules"] for path in rule["http"]["paths"]):
            backend = path["backend"]["service"]
            if (backend["name"], backend["port"]["name"]) not in ports:
                yield f"{named(one)}: leads to no port of a Service"
    for one in release.of("GRPCRoute"):
        if not {(to["name"], to["port"]) for rule in one["spec"]["rules"] for to in rule["backendRefs"]} <= ports:
            yield f"{named(one)}: leads to no port of a Service"


def selectors_fit_their_pods(release: RenderedRelease) -> Iterator[str]:
    for one in release.workloads:
        template = one["spec"]["template"]
        selectors = [one["spec"]["selector"]["matchLabels"]]
        selectors += [each["labelSelector"]["matchLabels"] for each in template["spec"]["topologySpreadConstraints"]]
        if not all(release.selected(selector) == [one] for selector in selectors):
            yield f"{named(one)}: a selector fits other pods too, or none"


def disruptions_are_bounded(release: RenderedRelease) -> Iterator[str]:
    budgets = [one["spec"] for one in release.of("PodDisruptionBudget")]
    for one in release.workloads:
        found = [each for each in budgets if release.selected(each["selector"]["matchLabels"]) == [one]]
        if len(found) != (component(one) not in LED):
            yield f"{named(one)}: has {len(found)} disruption budgets"
        if any(each.get("maxUnavailable") != 1 for each in found):
            yield f"{named(one)}: a node with it cannot be drained"


def references_lead_to_objects(release: RenderedRelease) -> Iterator[str]:
    """Check that classes, accounts and claims exist, where the chart makes them."""
    made = {kind: {one["metadata"]["name"] for one in release.of(kind)} for kind in ("PriorityClass", "ServiceAccount")}
    templates = {one["metadata"]["name"] for one in release.of("ResourceClaimTemplate")}
    for name, pod in release.pods:
        spec = pod["spec"]
        if (
            made["PriorityClass"]
            and spec.get("priorityClassName", min(made["PriorityClass"])) not in made["PriorityClass"]
        ):
            yield f"{name}: has no such priority class"
        if made["ServiceAccount"] and spec["serviceAccountName"] not in made["ServiceAccount"]:
            yield f"{name}: has no such service account"
        claims = {one["name"]: one["resourceClaimTemplateName"] for one in spec.get("resourceClaims", ())}
        if not {*claims.values()} <= templates:
            yield f"{name}: has no such claim template"
        used = {one["name"] for each in spec["containers"] for one in each["resources"].get("claims", ())}
        if used != claims.keys():
            yield f"{name}: claims {sorted(claims)}, uses {sorted(used)}"


def mounts_have_volumes(release: RenderedRelease) -> Iterator[str]:
    of_claims = {
        named(one): {each["metadata"]["name"] for each in one["spec"].get("volumeClaimTemplates", ())}
        for one in release.workloads
    }
    for name, pod in release.pods:
        containers = (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"])
        mounts = [(one["name"], mount) for one in containers for mount in one["volumeMounts"]]
        volumes = {one["name"] for one in pod["spec"]["volumes"]} | of_claims.get(name, set())
        if {mount["name"] for _, mount in mounts} != volumes:
            yield f"{name}: mounts and volumes differ"
        places = [(container, mount["mountPath"]) for container, mount in mounts]
        if len({*places}) != len(places):
            yield f"{name}: two volumes at one place"


def variables(container: Manifest) -> dict[str, str]:
    """Return the variables that have a value in the manifest."""
    return {one["name"]: one["value"] for one in container.get("env", ()) if "value" in one}


def variables_are_given_once(release: RenderedRelease) -> Iterator[str]:
    for name, container in release.containers:
        known: set[str] = set()
        for one in container.get("env", ()):
            unknown = {*re.findall(r"\$\((\w+)\)", one.get("value", ""))} - known
            if unknown or one["name"] in known:
                yield f"{name}: {one['name']} is given twice, or refers to a later variable"
            known.add(one["name"])


def secrets_come_by_reference(release: RenderedRelease) -> Iterator[str]:
    yield from (f"{named(one)}: holds a secret" for one in release.of("Secret"))
    for name, container in release.containers:
        for key, value in variables(container).items():
            if SENSITIVE.search(key) and value not in ("", "true") and not value.startswith(SECRET_PLACES):
                yield f"{name}: {key} has a value"
            if re.search(r"://[^/?]*:[^/?]*@", value):
                yield f"{name}: {key} has a password in an address"


def calls_are_allowed(release: RenderedRelease) -> Iterator[str]:
    """Check that each pod has its policy, and may call the addresses that it is given and the replicas of plans."""
    policies = release.of("NetworkPolicy")
    if not policies:
        return
    for one in release.workloads:
        labels = one["spec"]["template"]["metadata"]["labels"]
        own = [each for each in policies if labels_fit(each["spec"]["podSelector"]["matchLabels"], labels)]
        if len(own) != 2 or any({*each["spec"]["policyTypes"]} != {"Ingress", "Egress"} for each in own):
            yield f"{named(one)}: not denied by default, or without a policy of its own"
    for caller, called in needed_calls(release):
        if not is_allowed(policies, caller, called):
            yield f"{named(caller)}: may not call {named(called)}"


def needed_calls(release: RenderedRelease) -> Iterator[tuple[Manifest, Manifest]]:
    services = {one["metadata"]["name"]: one["spec"]["selector"] for one in release.of("Service")}
    for one in release.workloads:
        (container,) = one["spec"]["template"]["spec"]["containers"]
        for key, value in variables(container).items():
            host = value.rpartition(":")[0]
            if key.endswith("_ADDRESS") and not key.endswith("_ADVERTISE_ADDRESS"):
                yield from ((one, called) for called in release.selected(services[host]))
        yield from ((one, called) for called in release.workloads if (component(one), component(called)) in PLANNED)


def is_allowed(policies: Sequence[Manifest], caller: Manifest, called: Manifest) -> bool:
    """Return whether a policy lets the call out, and one lets it in."""
    labels = [one["spec"]["template"]["metadata"]["labels"] for one in (caller, called)]
    return passes(policies, "egress", "to", labels[0], labels[1]) and passes(
        policies, "ingress", "from", labels[1], labels[0]
    )


def passes(
    policies: Sequence[Manifest], direction: str, peers: str, own: Mapping[str, str], other: Mapping[str, str]
) -> bool:
    rules = [
        rule
        for each in policies
        if labels_fit(each["spec"]["podSelector"]["matchLabels"], own)
        for rule in each["spec"].get(direction) or ()
        if 50051 in [port["port"] for port in rule["ports"]]
    ]
    selectors = [peer["podSelector"]["matchLabels"] for rule in rules for peer in rule[peers] if "podSelector" in peer]
    return any(labels_fit(selector, other) for selector in selectors)


RULES = (
    objects_are_named_and_labelled,
    containers_have_requests_and_limits,
    memory_holds_volumes_in_memory,
    pods_are_restricted,
    images_are_of_a_version,
    probes_follow_the_health_service,
    pods_outlive_their_drain,
    replicas_are_set_by_one,
    services_select_pods_and_their_ports,
    routes_lead_to_services,
    selectors_fit_their_pods,
    disruptions_are_bounded,
    references_lead_to_objects,
    mounts_have_volumes,
    variables_are_given_once,
    secrets_come_by_reference,
    calls_are_allowed,
)


def rule_findings(manifests: Sequence[Manifest]) -> list[str]:
    """Return what every rule finds."""
    release = RenderedRelease(manifests)
    return [finding for rule in RULES for finding in rule(release)]
