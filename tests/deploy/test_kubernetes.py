"""The manifests: of the schema, and in agreement with the daemon and with each other."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from forebay.cli import app
from forebay_server.config import ServerConfig
from forebay_server.settings.command_line import parse
from tests.deploy.tools import DEPLOY, output, tool

FILES = sorted((DEPLOY / "kubernetes").glob("*.yaml"))


def documents() -> Iterator[dict[str, Any]]:
    for path in FILES:
        yield from yaml.safe_load_all(path.read_text())


def only(kind: str) -> dict[str, Any]:
    (found,) = [document for document in documents() if document["kind"] == kind]
    return found


def pod(kind: str) -> dict[str, Any]:
    spec: dict[str, Any] = only(kind)["spec"]
    return spec["template"]["spec"] if "template" in spec else spec


def config(home: Path) -> ServerConfig:
    (container,) = pod("DaemonSet")["containers"]
    (home / "forebay.toml").write_text(only("ConfigMap")["data"]["forebay.toml"])
    command, *arguments = container["args"]
    assert command == "serve"
    return parse([part.replace("/etc/forebay", str(home)) for part in arguments], {}).config


def test_the_manifests_are_of_kuberneteses_schema() -> None:
    said = output(tool("kubernetes-validate", brought_by="make install"), "--strict", *FILES)
    assert said.count(" passed ") == len(list(documents()))


def test_the_daemon_takes_its_configuration_and_its_capacity_is_stated_in_bytes(home: Path) -> None:
    made = config(home)
    assert made.capacity.bytes, "a container does not see the quota of its disk"
    assert made.group == str(pod("DaemonSet")["securityContext"]["runAsGroup"])


@pytest.mark.parametrize("kind", ["DaemonSet", "Pod"])
def test_pods_mount_the_directories_of_the_socket_and_the_cache_and_never_the_socket(home: Path, kind: str) -> None:
    made = config(home)
    wanted = {str(made.socket.parent), str(made.disks[0].path)}
    volumes = {volume["name"]: volume.get("hostPath") for volume in pod(kind)["volumes"]}
    (container,) = pod(kind)["containers"]
    mounted = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
    hosts = {path: host for path, host in mounted.items() if host}
    assert hosts.keys() == wanted
    assert all(path == host["path"] and host["type"].startswith("Directory") for path, host in hosts.items())


def test_trainers_find_the_daemon_and_may_read_what_it_keeps(home: Path) -> None:
    (container,) = pod("Pod")["containers"]
    variables = {variable["name"]: variable["value"] for variable in container["env"]}
    assert variables["FOREBAY_ADDRESS"] == f"unix:{config(home).socket}"
    assert pod("DaemonSet")["securityContext"]["runAsGroup"] in pod("Pod")["securityContext"]["supplementalGroups"]


def test_probes_ask_the_daemons_health_over_its_socket_and_ends_are_waited_for(home: Path) -> None:
    (container,) = pod("DaemonSet")["containers"]
    made = config(home)
    health = typer.main.get_command(app).commands["health"]  # type: ignore[attr-defined]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        program, command, *arguments = container[probe]["exec"]["command"]
        assert (program, command) == ("forebay", "health")
        assert health.make_context("health", arguments).params["address"] == f"unix:{made.socket}"
        assert container[probe]["timeoutSeconds"] >= 5, "a Python program needs a moment on a busy node"
    assert pod("DaemonSet")["terminationGracePeriodSeconds"] > made.drain_seconds + 10


def test_no_container_has_more_rights_than_it_needs() -> None:
    for kind in ("DaemonSet", "Pod"):
        assert pod(kind)["automountServiceAccountToken"] is False
        assert pod(kind)["securityContext"]["runAsNonRoot"] is True
    (container,) = pod("DaemonSet")["containers"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert (
        only("DaemonSet")["spec"]["template"]["spec"]["priorityClassName"] == only("PriorityClass")["metadata"]["name"]
    )
