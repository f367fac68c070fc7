#!/usr/bin/env python3
"""Validates launch/kubernetes/*.yaml as a cluster does, without a cluster.

yamllint checks the text. Then every key and the type of every value are checked against the API: the models of the
Kubernetes client and of the Kubeflow training operator, and for MPIJob v2beta1, which no package describes, the fields of its
definition (kubeflow/mpi-operator, deploy/v2beta1). Last, every reference must have a target.
"""

import re
import sys
from pathlib import Path

import kubernetes.client
import kubeflow.training
import yaml
from yamllint import linter
from yamllint.config import YamlLintConfig

LINT = """
extends: default
rules:
  line-length: {max: 120}
  document-start: disable
  # Comments may follow a value after one blank.
  comments: {min-spaces-from-content: 1}
  braces: {max-spaces-inside: 0}
  indentation: {indent-sequences: consistent}
"""

# All fields of MPIJob v2beta1, with their types.
MPI_SPEC = {
    "slotsPerWorker": "int",
    "runLauncherAsWorker": "bool",
    "runPolicy": "object",
    "mpiReplicaSpecs": "dict(str, KubeflowOrgV1ReplicaSpec)",
    "sshAuthMountPath": "str",
    "launcherCreationPolicy": "str",
    "mpiImplementation": "str",
}
REPLICAS = {"PyTorchJob": ("Master", "Worker"), "MPIJob": ("Launcher", "Worker")}
SCALARS = {"str": str, "int": int, "bool": bool, "float": (int, float)}
QUANTITY = re.compile(r"^[0-9]+(\.[0-9]+)?(m|[kMGTPE]i?)?$")


class Problem(Exception):
    """A mistake for which a cluster would reject the job."""


def model(name):
    """The class that describes an object of the API; None for an object of any shape."""
    return getattr(kubeflow.training, name, None) or getattr(kubernetes.client, name, None)


def check(value, kind, where):
    """Checks a value against a type in the notation of the models: `str`, `list[T]`, `dict(str, T)`, or a model's name."""
    if found := re.fullmatch(r"list\[(.+)\]", kind):
        if not isinstance(value, list):
            raise Problem(f"{where}: expected a list, found {value!r}")
        for index, each in enumerate(value):
            check(each, found[1], f"{where}[{index}]")
    elif found := re.fullmatch(r"dict\(str, (.+)\)", kind):
        if not isinstance(value, dict):
            raise Problem(f"{where}: expected a mapping, found {value!r}")
        for key, each in value.items():
            if where.endswith((".limits", ".requests")):
                if not QUANTITY.match(str(each)):
                    raise Problem(f"{where}.{key}: {each!r} is not a quantity")
            else:
                check(each, found[1], f"{where}.{key}")
    elif kind in SCALARS:
        # YAML does not read `true` and `16` as strings. In a command, only the cluster would detect that mistake.
        if not isinstance(value, SCALARS[kind]) or (kind == "int" and isinstance(value, bool)):
            raise Problem(f"{where}: expected {kind}, found {value!r}")
    elif (described := model(kind)) is not None and hasattr(described, "openapi_types"):
        check_object(value, described, where)


def check_object(value, described, where):
    if not isinstance(value, dict):
        raise Problem(f"{where}: expected {described.__name__}, found {value!r}")
    names = {json: python for python, json in described.attribute_map.items()}
    for key, each in value.items():
        if key not in names:
            raise Problem(f"{where}: {described.__name__} has no field {key!r}")
        check(each, described.openapi_types[names[key]], f"{where}.{key}")


def check_pod(spec, where):
    """Checks that every reference inside a pod has a target."""
    volumes = {volume["name"] for volume in spec.get("volumes", [])}
    used = set()
    for container in spec["containers"]:
        for key in ("name", "image", "command"):
            if not container.get(key) and not (key == "command" and where.endswith("Worker")):
                raise Problem(f"{where}: the container has no {key}")
        used |= {mount["name"] for mount in container.get("volumeMounts", [])}
        command = container.get("command", [])
        words = " ".join(map(str, command))
        if command and not re.search(r"\brankscope (map|reduce) |\brankscope exec ", words):
            raise Problem(f"{where}: the command neither records nor analyzes")
        out = command[command.index("--out") + 1] if "--out" in command else None
        mounts = [mount["mountPath"] for mount in container.get("volumeMounts", [])]
        # The ranks of mpirun run in the workers, so the launcher needs no volume.
        if out and "mpirun" not in command and not any(out.startswith(mount + "/") for mount in mounts):
            raise Problem(f"{where}: {out} is not on a volume")
    if used != volumes:
        raise Problem(f"{where}: volumes {sorted(volumes)}, mounted {sorted(used)}")


def check_job(job, where):
    kind = job.get("kind")
    if kind == "Job":
        if job.get("apiVersion") != "batch/v1":
            raise Problem(f"{where}: Job is batch/v1")
        check_object(job, kubernetes.client.V1Job, where)
        check_pod(job["spec"]["template"]["spec"], where)
        check_shares(job["spec"], where)
        return
    if kind not in REPLICAS:
        raise Problem(f"{where}: unknown kind {kind!r}")
    api, field = {
        "PyTorchJob": ("kubeflow.org/v1", "pytorchReplicaSpecs"),
        "MPIJob": ("kubeflow.org/v2beta1", "mpiReplicaSpecs"),
    }[kind]
    if job.get("apiVersion") != api:
        raise Problem(f"{where}: {kind} is {api}")
    if kind == "PyTorchJob":
        check_object(job, kubeflow.training.KubeflowOrgV1PyTorchJob, where)
    else:
        check(job["metadata"], "V1ObjectMeta", f"{where}.metadata")
        for key, value in job["spec"].items():
            if key not in MPI_SPEC:
                raise Problem(f"{where}: MPIJob has no field {key!r}")
            check(value, MPI_SPEC[key], f"{where}.spec.{key}")
    replicas = job["spec"][field]
    if sorted(replicas) != sorted(REPLICAS[kind]):
        raise Problem(f"{where}: replicas {sorted(replicas)}, not {sorted(REPLICAS[kind])}")
    for name, replica in replicas.items():
        check_pod(replica["template"]["spec"], f"{where}.{name}")


def check_shares(spec, where):
    """Checks that an Indexed Job maps as many shares as it has pods."""
    command = " ".join(spec["template"]["spec"]["containers"][0]["command"])
    shares = re.search(r'--part "\$JOB_COMPLETION_INDEX/(\d+)"', command)
    if ("map " in command) != (spec.get("completionMode") == "Indexed"):
        raise Problem(f"{where}: a Job that maps is Indexed, and no other is")
    if shares and int(shares[1]) != spec["completions"] or "map " in command and not shares:
        raise Problem(f"{where}: the number of shares is not the number of completions")


def check_file(path):
    text = path.read_text()
    problems = list(linter.run(text, YamlLintConfig(LINT), str(path)))
    if problems:
        raise Problem(f"{path.name}:{problems[0].line}: {problems[0].desc}")
    documents = list(yaml.safe_load_all(text))
    for document in documents:
        check_job(document, path.name)
    return len(documents)


def check_itself(paths):
    """Plants mistakes in the files; the checks above must find each of them."""
    of_all = [
        ("volumeMounts:", "volumeMount:"),
        ("name: runs, mountPath", "name: run, mountPath"),
        ("kind: ", "kind: My"),
    ]
    of_training = [
        ("replicas: 1", "replicas: one"),
        ("mountPath: /dev/shm", "mountPath: 7"),
        ("sizeLimit: 1Gi", "sizeLimits: 1Gi"),
        ("nvidia.com/gpu: 8", "nvidia.com/gpu: eight"),
        ("  Worker:", "  Workers:"),
    ]
    of_job = [("memory: 4Gi", "memory: four"), ("backoffLimit", "backofLimit"), ("rankscope ", "rankscop ")]
    of_map = [("completions: 8", "completions: 9"), ("completionMode: Indexed", "completionMode: NonIndexed")]
    planted = 0
    for path in paths:
        text = path.read_text()
        of_kind = of_job + (of_map if path.name == "map.yaml" else []) if "kind: Job" in text else of_training
        for right, wrong in of_all + of_kind:
            planted += 1
            broken = text.replace(right, wrong, 1)
            assert broken != text, f"{path.name} has no {right!r}"
            try:
                for document in yaml.safe_load_all(broken):
                    check_job(document, path.name)
            except (Problem, KeyError):
                continue
            raise AssertionError(f"{path.name}: {wrong!r} was not found")
    return planted


def main():
    paths = sorted((Path(__file__).resolve().parents[2] / "launch/kubernetes").glob("*.yaml"))
    assert paths, "launch/kubernetes has no YAML files"
    try:
        jobs = sum(check_file(path) for path in paths)
    except Problem as problem:
        sys.exit(f"kubernetes: {problem}")
    planted = check_itself(paths)
    print(f"{jobs} jobs; {planted} planted mistakes found")


if __name__ == "__main__":
    main()
