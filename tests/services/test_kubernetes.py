"""The manifests under ``deploy/kubernetes``: no cluster is here, so they are checked against schemas and the code."""

from __future__ import annotations

import math
import re
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from kvboost.config import load
from kvboost.services.cli import _parser
from kvboost.services.gateway.app import router
from kvboost.wire.address import parse_address

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())
KUSTOMIZATION: dict[str, Any] = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
OBJECTS: list[dict[str, Any]] = [
    one for name in KUSTOMIZATION["resources"] for one in yaml.safe_load_all((FOLDER / name).read_text())
]
WORKLOADS = {one["metadata"]["name"]: one for one in OBJECTS if one["kind"] in ("Deployment", "StatefulSet")}
CONTAINERS = {name: one["spec"]["template"]["spec"]["containers"][0] for name, one in WORKLOADS.items()}
SERVICES = {one["metadata"]["name"]: one["spec"] for one in OBJECTS if one["kind"] == "Service"}
CONFIG: str = next(one for one in OBJECTS if one["kind"] == "ConfigMap")["data"]["kvboost.toml"]
COMMANDS = {"cache": "serve-cache", "runtime": "serve-runtime", "gateway": "serve-gateway"}
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
UNITS = {"Mi": 1 << 20, "Gi": 1 << 30}


def port_of(name: str) -> int:
    arguments: list[str] = CONTAINERS[name]["args"]
    return parse_address(arguments[arguments.index("--address") + 1]).port


def labels_of(name: str) -> dict[str, str]:
    labels: dict[str, str] = WORKLOADS[name]["spec"]["template"]["metadata"]["labels"]
    return labels


def size(text: str) -> int:
    return int(text[:-2]) * UNITS[text[-2:]]


@pytest.mark.parametrize("one", OBJECTS, ids=lambda one: f"{one['kind']}-{one['metadata']['name']}")
def test_every_object_fits_the_schema_of_kubernetes(one: dict[str, Any]) -> None:
    kubernetes_validate.validate(one, kubernetes_validate.latest_version(), strict=True)
    assert one["kind"] == "Namespace" or one["metadata"]["namespace"] == KUSTOMIZATION["namespace"]


def test_the_schema_refuses_what_is_misspelt() -> None:
    broken = {**WORKLOADS["gateway"], "spec": {**WORKLOADS["gateway"]["spec"], "replica": 1}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, kubernetes_validate.latest_version(), strict=True)


def test_every_file_is_applied() -> None:
    assert {*KUSTOMIZATION["resources"], "kustomization.yaml"} == {file.name for file in FOLDER.iterdir()}


def test_the_config_file_is_one_that_kvboost_loads(tmp_path: Path) -> None:
    (tmp_path / "kvboost.toml").write_text(CONFIG)
    loaded = load(tmp_path / "kvboost.toml", env={}).config
    (shm,) = [v["emptyDir"] for v in WORKLOADS["cache"]["spec"]["template"]["spec"]["volumes"] if v["name"] == "shm"]
    assert shm["medium"] == "Memory"
    assert loaded.cache.arena_dir == "/dev/shm"
    limit = size(CONTAINERS["cache"]["resources"]["limits"]["memory"])
    assert loaded.cache.max_bytes < size(shm["sizeLimit"]) < limit
    assert set(tomllib.loads(CONFIG)) <= {"model", "cache", "policy", "runtime"}


def test_commands_are_those_that_the_cli_takes_and_compose_runs() -> None:
    assert {name: container["args"][0] for name, container in CONTAINERS.items()} == COMMANDS
    ports = {}
    for service in COMPOSE["services"].values():
        command = service.get("command", [""])
        if command[0] in COMMANDS.values():
            assert service["image"] == CONTAINERS["cache"]["image"]
            ports[command[0]] = parse_address(command[command.index("--address") + 1]).port
    for name, container in CONTAINERS.items():
        _parser(container["args"]).parse_args(container["args"])  # exits on what it does not know
        assert port_of(name) == ports[COMMANDS[name]]
        assert container["image"] == KUSTOMIZATION["images"][0]["name"]
        assert container["args"][container["args"].index("--config") + 1] == "/etc/kvboost/kvboost.toml"
        assert {"name": "config", "mountPath": "/etc/kvboost", "readOnly": True} in container["volumeMounts"]


def test_every_address_is_a_service_or_a_pod_that_listens_there() -> None:
    asked = [
        parse_address(value)
        for container in CONTAINERS.values()
        for option, value in pairwise(container["args"])
        if option in ("--cache", "--runtime")
    ]
    runtimes = {f"runtime-{i}.runtime" for i in range(WORKLOADS["runtime"]["spec"]["replicas"])}
    assert {address.host for address in asked} == {"cache", *runtimes}
    for address in asked:
        service = SERVICES[address.host.rpartition(".")[2]]
        assert [port["port"] for port in service["ports"]] == [address.port]
    assert SERVICES["runtime"]["clusterIP"] == "None"  # else the pods had no names of their own


def test_services_and_policies_select_the_pods_they_are_for() -> None:
    for name, service in SERVICES.items():
        assert service["selector"] == labels_of(name) == WORKLOADS[name]["spec"]["selector"]["matchLabels"]
        (port,) = CONTAINERS[name]["ports"]
        assert service["ports"][0]["targetPort"] == port["name"]
        assert port["containerPort"] == service["ports"][0]["port"] == port_of(name)
    for one in OBJECTS:
        if one["kind"] == "NetworkPolicy":
            assert one["spec"]["podSelector"]["matchLabels"] == labels_of(one["metadata"]["name"])
            assert one["spec"]["ingress"][0]["ports"][0]["port"] == port_of(one["metadata"]["name"])
        if one["kind"] == "PodDisruptionBudget":
            name = one["metadata"]["name"]
            assert one["spec"]["selector"]["matchLabels"] == labels_of(name)
            assert one["spec"]["minAvailable"] < WORKLOADS[name]["spec"]["replicas"]


def test_probes_ask_what_is_served() -> None:
    paths = {getattr(route, "path", "") for route in router.routes}
    for name, container in CONTAINERS.items():
        probes = [container[probe] for probe in PROBES if probe in container]
        assert len(probes) >= 2, name
        for probe in probes:
            if "grpc" in probe:
                assert probe["grpc"]["port"] == port_of(name)
            else:
                (kind,) = {"httpGet", "tcpSocket"} & set(probe)
                assert probe[kind]["port"] == container["ports"][0]["name"]
                assert "path" not in probe[kind] or probe[kind]["path"] in paths
    scraped = WORKLOADS["gateway"]["spec"]["template"]["metadata"]["annotations"]
    assert scraped["prometheus.io/path"] in paths
    assert int(scraped["prometheus.io/port"]) == port_of("gateway")


def test_pods_run_as_the_images_user_and_mount_what_there_is() -> None:
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    home = re.search(r"XDG_CACHE_HOME=(\S+)", dockerfile)
    assert home
    for name, workload in WORKLOADS.items():
        pod = workload["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["runAsUser"] == 1000  # the first that useradd gives
        volumes = {volume["name"] for volume in pod["volumes"]}
        mounts = {mount["name"]: mount["mountPath"] for mount in CONTAINERS[name]["volumeMounts"]}
        assert set(mounts) == volumes
        assert mounts.get("models", home.group(1)) == home.group(1)
        resources = CONTAINERS[name]["resources"]
        assert size(resources["requests"]["memory"]) <= size(resources["limits"]["memory"])
        assert not math.isnan(float(resources["requests"]["cpu"].rstrip("m")))
