"""What is in ``deploy`` names settings that exist, fits the server, and passes the linters at hand.

Linters that are not installed are passed over; ``make deploy-check`` installs those that it can.
"""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from leasehold.server.settings import all_settings, load_settings
from leasehold.server.settings.sources import FILE_VARIABLE, PREFIX

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "systemd" / "leasehold.service"
COMPOSE = DEPLOY / "compose" / "compose.yaml"
MANIFESTS = sorted((DEPLOY / "kubernetes").rglob("*.yaml"))
BUILT_IN = [path for path in MANIFESTS if path.name != "scaledobject.yaml"]
"""Those of kinds that Kubernetes itself has."""
_MOST_EXPOSED = 2.0
"""Of 10, as systemd counts it."""


def program(name: str) -> str:
    """Return the path of a linter, or skip the test."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def passes(*command: str | Path, env: Mapping[str, str] | None = None) -> str:
    """Run a linter, which must find nothing; return what it says."""
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, cwd=ROOT, env=env
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def documents(path: Path) -> list[dict[str, Any]]:
    """Return the documents of a file."""
    return [each for each in yaml.safe_load_all(path.read_text(encoding="utf-8")) if each]


def manifest(kind: str, name: str) -> dict[str, Any]:
    """Return one manifest."""
    (found,) = (
        each
        for path in MANIFESTS
        for each in documents(path)
        if each["kind"] == kind and each["metadata"]["name"] == name
    )
    return found


def container(name: str) -> dict[str, Any]:
    """Return the container of a deployment."""
    spec = manifest("Deployment", name)["spec"]["template"]["spec"]
    found: dict[str, Any] = spec["containers"][0]
    return found


# --- it fits the server ---------------------------------------------------------------------------


def test_settings_that_are_named_exist() -> None:
    """Every LEASEHOLD_ variable in any of the files is a setting of the server."""
    known = {f"{PREFIX}{name.upper()}" for name in all_settings()} | {FILE_VARIABLE}
    named: set[str] = set()
    for path in DEPLOY.rglob("*"):
        if path.is_file():
            named |= set(re.findall(rf"\b{PREFIX}[A-Z0-9_]+", path.read_text(encoding="utf-8")))
    assert named >= {f"{PREFIX}STORE_URL", f"{PREFIX}ACCOUNTS", f"{PREFIX}INSPECTORS"}
    assert named <= known


def test_the_settings_of_compose_can_be_used() -> None:
    """The servers would start with them: they are within bounds and fit together."""
    environment = documents(COMPOSE)[0]["services"]["leasehold-1"]["environment"]
    key = "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNkZWY="
    given = {
        name: re.sub(r"\$\{LEASEHOLD_ACCOUNTS.*", f"shop:{key}", value)
        for name, value in environment.items()
        if name.startswith(PREFIX)
    }
    given = {name: re.sub(r"\$\{\w+:-(.*)\}", r"\1", value) for name, value in given.items()}
    loaded = load_settings({}, environment={**given, f"{PREFIX}HOST": "0.0.0.0"})
    assert loaded.settings.store_url is not None
    assert not loaded.settings.dev_account_on()


def test_a_pod_ends_after_its_server() -> None:
    """It is given the pause of preStop and the time to answer what has arrived, and more."""
    settings = all_settings()
    drain_s = settings["drain_timeout_s"][1]
    pause_s = int(container("leasehold")["lifecycle"]["preStop"]["exec"]["command"][1])
    spec = manifest("Deployment", "leasehold")["spec"]["template"]["spec"]
    assert spec["terminationGracePeriodSeconds"] > pause_s + drain_s
    stop_s = int(documents(COMPOSE)[0]["services"]["leasehold-1"]["stop_grace_period"][:-1])
    assert stop_s > drain_s
    assert int(_unit()["Service"]["TimeoutStopSec"]) > drain_s


def test_selectors_select() -> None:
    """Service, budget and policy mean the pods of the deployment; ports are the server's."""
    template = manifest("Deployment", "leasehold")["spec"]["template"]
    labels = template["metadata"]["labels"]
    for kind, way in (
        ("Service", ("selector",)),
        ("PodDisruptionBudget", ("selector", "matchLabels")),
        ("NetworkPolicy", ("podSelector", "matchLabels")),
        ("Deployment", ("selector", "matchLabels")),
    ):
        found = manifest(kind, "leasehold")["spec"]
        for step in way:
            found = found[step]
        assert found.items() <= labels.items()
    port = all_settings()["port"][1]
    assert [each["containerPort"] for each in container("leasehold")["ports"]] == [port]
    assert f"EXPOSE {port}\n" in (DEPLOY / "Dockerfile").read_text(encoding="utf-8")


def test_probes_ask_pages_that_exist() -> None:
    """Alive and ready are asked of the pages for that."""
    found = container("leasehold")
    paths = {name: found[name]["httpGet"]["path"] for name in found if name.endswith("Probe")}
    assert paths == {
        "startupProbe": "/healthz",
        "livenessProbe": "/healthz",
        "readinessProbe": "/readyz",
    }


def test_pods_have_no_rights() -> None:
    """No root, no capabilities, nothing written into the image, no token of the cluster."""
    for name in ("leasehold", "jobs-worker"):
        spec = manifest("Deployment", name)["spec"]["template"]["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        inner = container(name)["securityContext"]
        assert inner["capabilities"] == {"drop": ["ALL"]}
        assert inner["readOnlyRootFilesystem"] is True
        assert inner["allowPrivilegeEscalation"] is False
        assert container(name)["resources"]["requests"].keys() == {"cpu", "memory"}


def test_the_scaler_is_the_one_that_is_explained() -> None:
    """What scales workers is, to the letter, what the how-to says."""
    page = (ROOT / "docs/howto/count-and-scale.md").read_text(encoding="utf-8")
    shown = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]
    assert documents(DEPLOY / "kubernetes/workers/scaledobject.yaml") == shown[:2]
    assert shown[0]["spec"]["scaleTargetRef"]["name"] == "jobs-worker"
    assert manifest("Deployment", "jobs-worker")


def test_the_unit_restarts_what_a_restart_can_help() -> None:
    """Mistakes in settings end it for good; the failure of a store does not."""
    codes = set(_unit()["Service"]["RestartPreventExitStatus"].split())
    assert codes == {"2", "78"}


def test_the_unit_has_room_for_connections() -> None:
    """Open files are above the connections that are allowed and what else is open."""
    assert int(_unit()["Service"]["LimitNOFILE"]) >= all_settings()["max_connections"][1] + 512


def _unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # names keep their case
    parser.read_string(UNIT.read_text(encoding="utf-8"))
    return parser


# --- linters --------------------------------------------------------------------------------------


def test_yaml_is_clean() -> None:
    """By yamllint."""
    passes(program("yamllint"), "--strict", "-c", DEPLOY / "yamllint.yaml", DEPLOY)


def test_manifests_fit_the_schemas() -> None:
    """By the schemas of Kubernetes, in which nothing is unknown."""
    said = passes(program("kubernetes-validate"), "--strict", *BUILT_IN)
    assert said.count("passed for resource") == len(BUILT_IN)


def test_the_dockerfile_is_clean() -> None:
    """By hadolint."""
    passes(program("hadolint"), DEPLOY / "Dockerfile")


def test_the_unit_is_understood(tmp_path: Path) -> None:
    """By systemd, which also says how exposed the service is."""
    analyze = program("systemd-analyze")
    text = UNIT.read_text(encoding="utf-8")
    unit = tmp_path / UNIT.name  # with a program that is there
    unit.write_text(text.replace("/opt/leasehold/bin/leasehold serve", "/bin/true"))
    assert passes(analyze, "verify", "--man=no", unit) == ""
    said = passes(analyze, "security", "--offline=true", unit)
    exposed = re.search(r"exposure level.*: ([\d.]+)", said)
    assert exposed is not None
    assert float(exposed[1]) < _MOST_EXPOSED


def _composing() -> Iterator[list[str]]:
    docker = shutil.which("docker")
    if docker is not None:
        done = subprocess.run([docker, "compose", "version"], capture_output=True, check=False)
        if done.returncode == 0:
            yield [docker, "compose"]


def test_compose_is_understood() -> None:
    """By Docker, if it is there; nothing is started."""
    command = next(_composing(), None)
    if command is None:
        pytest.skip("docker compose is not installed")
    environment = {**os.environ, "POSTGRES_PASSWORD": "x", "LEASEHOLD_ACCOUNTS": "shop:key"}
    passes(*command, "--file", COMPOSE, "config", "--quiet", env=environment)
