"""Checks the manifests of Kubernetes, and prints the commands of their containers.

    deployment.py validate FOLDER    every folder with a `kind: Kustomization`, against the schemas of Kubernetes
    deployment.py dockerfile FILE    a Dockerfile, by hadolint

A folder is rendered here, by the few rules of kustomize that it uses. A rule that is not known ends with an exception.
The last line of `validate` is JSON: the rendered containers with their commands, and the job files.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import yaml

# The oldest version whose StatefulSets label pods with their ordinal and whose Jobs may ignore failures, and a new one.
VERSIONS = ["1.29", "1.37"]
# Kinds of other projects, whose schemas the package has not.
FOREIGN = {"PodMonitor"}
KNOWN = {"apiVersion", "kind", "resources", "components", "images", "patches"}


def load_all(path):
    # Aliases give one object in several places, and a patch would change all of them.
    return json.loads(json.dumps([document for document in yaml.safe_load_all(path.read_text()) if document]))


def render(folder):
    """Returns the resources of a folder."""
    (rules,) = load_all(folder / "kustomization.yaml")
    assert not rules.keys() - KNOWN, f"{folder}: {sorted(rules.keys() - KNOWN)} is not known here"
    resources = []
    for name in rules.get("resources", []):
        path = folder / name
        resources += render(path) if path.is_dir() else load_all(path)
    for name in rules.get("components", []):
        resources += render(folder / name)
    listed = {folder / name for name in rules.get("resources", [])}
    unlisted = set(folder.glob("*.yaml")) - listed - {folder / "kustomization.yaml"}
    assert not unlisted, f"{folder}: {unlisted} is not in kustomization.yaml"
    for patch in rules.get("patches", []):
        chosen = [resource for resource in resources if is_target(resource, patch["target"])]
        assert chosen, f"{folder}: no resource is {patch['target']}"
        for resource in chosen:
            for operation in yaml.safe_load(patch["patch"]):
                change(resource, **operation)
    for container in (c for resource in resources for c in containers(resource)):
        for image in rules.get("images", []):
            name = container["image"].rpartition(":")[0]
            if name == image["name"]:
                container["image"] = f"{image['newName']}:{image['newTag']}"
    return resources


def is_target(resource, target):
    assert not target.keys() - {"kind", "name"}, target
    return resource["kind"] == target["kind"] and target.get("name") in (None, resource["metadata"]["name"])


def change(resource, op, path, value=None):
    *way, last = path.strip("/").split("/")
    place = resource
    for step in way:
        place = place[int(step) if isinstance(place, list) else step]
    assert op in ("add", "remove", "replace"), op
    if isinstance(place, list):
        assert (op, last) == ("add", "-") or op == "replace", f"{path}: {op} is not known here for lists"
        place.append(value) if op == "add" else place.__setitem__(int(last), value)
        return
    assert op == "add" or last in place, f"{path}: nothing to {op}"
    if op == "remove":
        del place[last]
    else:
        place[last] = value


def containers(resource):
    return resource.get("spec", {}).get("template", {}).get("spec", {}).get("containers", [])


def check(resources):
    """Checks the schemas, and that the numbers and the names of a rendered folder agree."""
    for resource in resources:
        for version in VERSIONS:
            if resource["kind"] not in FOREIGN:
                kubernetes_validate.validate(resource, version, strict=True)
    found = {(resource["kind"], resource["metadata"]["name"]): resource for resource in resources}
    assert len(found) == len(resources), "a resource occurs twice"
    spaces = {r["metadata"].get("namespace") for r in resources if r["kind"] != "Namespace"}
    assert spaces == {"zillion"} and ("Namespace", "zillion") in found, spaces

    servers, job = found["StatefulSet", "zillion-ps"], found["Job", "zillion-trainer"]
    run, service = found["ConfigMap", "zillion-run"]["data"], found["Service", "zillion-ps"]
    (port,) = (p["port"] for p in service["spec"]["ports"] if p["name"] == "ps")
    name, domain = servers["metadata"]["name"], servers["spec"]["serviceName"]
    wanted = [f"{name}-{number}.{domain}:{port}" for number in range(servers["spec"]["replicas"])]
    if "etcd" in run:
        assert int(run["server-count"]) == len(wanted), f"{run['server-count']} and {wanted}"
        (server,) = commands(servers, run)
        assert f"--advertise={wanted[0]}" in server, f"{server} and {wanted[0]}"
    else:
        assert run["servers"].split(",") == wanted, f"{run['servers']} and {wanted}"
    assert domain == service["metadata"]["name"] and service["spec"]["clusterIP"] == "None"
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == int(run["trainers"])
    # A policy, a Service or a budget that selects no pod would be accepted and do nothing.
    pods = [r["spec"]["template"]["metadata"]["labels"] for r in (servers, job)]
    for kind, name in found:
        spec = found[kind, name].get("spec", {})
        selector = spec.get("podSelector") or spec.get("selector") or {}
        wanted = selector.get("matchLabels", selector if kind == "Service" else {})
        assert any(wanted.items() <= labels.items() for labels in pods), f"{kind} {name} selects nothing"
    return servers, job, run


def commands(workload, run):
    """Returns the command lines of a workload, as its first pod runs them."""
    for container in containers(workload):
        values = {"JOB_COMPLETION_INDEX": "0"}
        for entry in container["env"]:
            source = entry["valueFrom"]
            if "configMapKeyRef" in source:
                values[entry["name"]] = run[source["configMapKeyRef"]["key"]]
            elif source["fieldRef"]["fieldPath"] == "metadata.name":
                values[entry["name"]] = f"{workload['metadata']['name']}-0"
            else:
                assert "pod-index" in source["fieldRef"]["fieldPath"]
                values[entry["name"]] = "0"
        # The image runs `zillion` unless the container says otherwise.
        words = container.get("command", ["zillion"]) + container["args"]
        yield [re.sub(r"\$\((\w+)\)", lambda found: values[found[1]], word) for word in words]


def validate(folder):
    folders = sorted(path.parent for path in Path(folder).rglob("kustomization.yaml"))
    rendered = [render(path) for path in folders if "components" not in path.parts]
    assert len(rendered) >= 2, folders
    result = []
    for resources in rendered:
        servers, job, run = check(resources)
        (server,), (trainer,) = commands(servers, run), commands(job, run)
        result.append({"server": server, "trainer": trainer, "job": run["job.toml"]})
    print(json.dumps(result))


def dockerfile(path):
    subprocess.run([Path(sys.executable).parent / "hadolint", path], check=True)


if __name__ == "__main__":
    {"validate": validate, "dockerfile": dockerfile}[sys.argv[1]](sys.argv[2])
