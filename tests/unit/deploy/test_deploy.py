"""What is in ``deploy`` names settings that exist, fits the server, and passes the linters at hand.

Linters that are not installed are passed over; ``make deploy-check`` installs those that it can.
"""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from leasehold import __version__
from leasehold.server.settings import SettingsError, all_settings, load_settings
from leasehold.server.settings.sources import FILE_VARIABLE, PREFIX

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "systemd" / "leasehold.service"
COMPOSE = DEPLOY / "compose" / "compose.yaml"
CHART = DEPLOY / "helm" / "leasehold"
KINDS = ("sqlite", "postgresql")
NOT_BUILT_IN = {"ScaledObject", "TriggerAuthentication", "ServiceMonitor"}
"""Kinds that Kubernetes itself does not have."""
_MOST_EXPOSED = 2.0
"""Of 10, as systemd counts it."""


def program(name: str) -> str:
    """Return the path of a linter, or skip the test."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def passes(*command: str | Path) -> str:
    """Run a linter, which must find nothing; return what it says."""
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def documents(path: Path) -> list[dict[str, Any]]:
    """Return the documents of a file."""
    return [each for each in yaml.safe_load_all(path.read_text(encoding="utf-8")) if each]


@cache
def rendered(values: str, *more: str) -> list[dict[str, Any]]:
    """Return what the chart makes of the values of a file in ``ci``, and of more."""
    given: list[str | Path] = ["--values", CHART / "ci" / f"{values}-values.yaml", *more]
    said = passes(program("helm"), "template", "leasehold", CHART, "--namespace", "queues", *given)
    return [each for each in yaml.safe_load_all(said) if each]


def refuses(*more: str) -> str:
    """Return what Helm says of values that it must not take."""
    command = (program("helm"), "template", "leasehold", CHART, *more)
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode != 0
    return done.stderr


def manifest(values: str, kind: str, name: str = "leasehold") -> dict[str, Any]:
    """Return one manifest."""
    (found,) = (
        each
        for each in rendered(values)
        if each["kind"] == kind and each["metadata"]["name"] == name
    )
    return found


def pods(values: str) -> dict[str, dict[str, Any]]:
    """Return the pods of all that runs, by name."""
    return {
        each["metadata"]["name"]: each["spec"]["template"]["spec"]
        for each in rendered(values)
        if each["kind"] in {"Deployment", "StatefulSet"}
    }


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


@pytest.mark.parametrize("values", KINDS)
def test_a_pod_ends_after_its_server(values: str) -> None:
    """It is given the pause of preStop and the time to answer what has arrived, and more."""
    spec = pods(values)["leasehold"]
    (container,) = spec["containers"]
    given = {each["name"]: each.get("value") for each in container["env"]}
    drain_s = float(given.get(f"{PREFIX}DRAIN_TIMEOUT_S") or all_settings()["drain_timeout_s"][1])
    pause_s = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert spec["terminationGracePeriodSeconds"] > pause_s + drain_s


def test_processes_are_given_the_time_to_stop() -> None:
    """By Compose and by systemd as well."""
    drain_s = all_settings()["drain_timeout_s"][1]
    stop_s = int(documents(COMPOSE)[0]["services"]["leasehold-1"]["stop_grace_period"][:-1])
    assert stop_s > drain_s
    assert int(_unit()["Service"]["TimeoutStopSec"]) > drain_s


@pytest.mark.parametrize("values", KINDS)
def test_selectors_select(values: str) -> None:
    """Service, budget, policy and monitor mean the servers, and not the workers."""
    whose = {}
    for each in rendered(values):
        spec = each["spec"]
        labels = spec.get("template", {}).get("metadata", {}).get("labels")
        if labels is not None:
            whose[each["metadata"]["name"]] = labels
            assert spec["selector"]["matchLabels"].items() <= labels.items()
    server = whose.pop("leasehold")
    seen = set()
    for kind, way in (
        ("Service", ("selector",)),
        ("PodDisruptionBudget", ("selector", "matchLabels")),
        ("NetworkPolicy", ("podSelector", "matchLabels")),
        ("ServiceMonitor", ("selector", "matchLabels")),
    ):
        for found in (each for each in rendered(values) if each["kind"] == kind):
            chosen = found["spec"]
            for step in way:
                chosen = chosen[step]
            assert chosen.items() <= server.items()
            assert not any(chosen.items() <= labels.items() for labels in whose.values())
            seen.add(kind)
    assert seen >= {"Service", "NetworkPolicy"}
    clients = manifest(values, "NetworkPolicy")["spec"]["ingress"][0]["from"][0]["podSelector"]
    assert all(clients["matchLabels"].items() <= labels.items() for labels in whose.values())
    port = all_settings()["port"][1]
    (container,) = pods(values)["leasehold"]["containers"]
    assert [each["containerPort"] for each in container["ports"]] == [port]
    assert f"EXPOSE {port}\n" in (DEPLOY / "Dockerfile").read_text(encoding="utf-8")


@pytest.mark.parametrize(("values", "scheme"), [("sqlite", "HTTP"), ("postgresql", "HTTPS")])
def test_probes_ask_pages_that_exist(values: str, scheme: str) -> None:
    """Alive and ready are asked of the pages for that, with TLS where the server has it."""
    (found,) = pods(values)["leasehold"]["containers"]
    asked = {name: found[name]["httpGet"] for name in found if name.endswith("Probe")}
    assert {name: get["path"] for name, get in asked.items()} == {
        "startupProbe": "/healthz",
        "livenessProbe": "/healthz",
        "readinessProbe": "/readyz",
    }
    assert {get["scheme"] for get in asked.values()} == {scheme}


@pytest.mark.parametrize("values", KINDS)
def test_pods_have_no_rights(values: str) -> None:
    """No root, no capabilities, nothing written into the image, no token of the cluster."""
    for spec in pods(values).values():
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        (container,) = spec["containers"]
        inner = container["securityContext"]
        assert inner["capabilities"] == {"drop": ["ALL"]}
        assert inner["readOnlyRootFilesystem"] is True
        assert inner["allowPrivilegeEscalation"] is False
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}


def test_a_store_on_a_volume_has_one_server() -> None:
    """Its database outlives the release; with PostgreSQL any number of servers keep nothing."""
    (claim,) = manifest("sqlite", "StatefulSet")["spec"]["volumeClaimTemplates"]
    assert manifest("sqlite", "StatefulSet")["spec"]["replicas"] == 1
    (container,) = pods("sqlite")["leasehold"]["containers"]
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    data = {each["name"]: each.get("value") for each in container["env"]}[f"{PREFIX}DATA"]
    assert Path(data).is_relative_to(mounts[claim["metadata"]["name"]])
    assert manifest("postgresql", "Deployment")["spec"]["replicas"] == 3


@pytest.mark.parametrize("values", KINDS)
def test_the_settings_of_the_chart_can_be_used(values: str) -> None:
    """All names are those of settings, and the server would start with what is not secret."""
    (container,) = pods(values)["leasehold"]["containers"]
    env = {each["name"]: each.get("value") for each in container["env"]}
    given = {name: value for name, value in env.items() if name.startswith(PREFIX)}
    assert given.keys() <= {f"{PREFIX}{name.upper()}" for name in all_settings()}
    secret = {name for name, value in given.items() if value is None}
    assert secret == {f"{PREFIX}{name}" for name in ("ACCOUNTS", "INSPECTORS")} | (
        {f"{PREFIX}STORE_URL"} if values == "postgresql" else set()
    )
    key = "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNkZWY="
    plain = {name: value for name, value in given.items() if value is not None}
    plain |= {f"{PREFIX}ACCOUNTS": f"shop:{key}", f"{PREFIX}HOST": "0.0.0.0"}
    load_settings({}, environment=plain)


def test_the_image_has_what_settings_ask_for() -> None:
    """Each extra that a setting needs is installed in the image; so no setting stops its start."""
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    (installed,) = re.findall(r"^ARG EXTRAS=([\w,]+)$", text, re.MULTILINE)
    said = (ROOT / "docs/reference/settings.md").read_text(encoding="utf-8")
    needed = set(re.findall(r"extra `([\w-]+)`", said))
    assert "otel" in needed
    assert needed <= set(installed.split(","))


def test_the_image_serves_programs_of_its_host(tmp_path: Path) -> None:
    """With the image's variables and the switch, the development account is served to all hosts.

    As those of a published port, whose address is none of the container's own.
    """
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").rpartition("FROM ")[2]
    image = dict(re.findall(rf"\b({PREFIX}\w+)=(\S+)", text))
    assert image.keys() == {f"{PREFIX}{name}" for name in ("HOST", "DATA", "LOG_FORMAT")}
    image[f"{PREFIX}DATA"] = str(tmp_path / "data")
    with pytest.raises(SettingsError, match="accounts"):
        load_settings({}, environment=image)
    image[f"{PREFIX}DEV_ACCOUNT"] = "insecure"
    settings = load_settings({}, environment=image).settings
    assert settings.dev_account_on()
    assert settings.host == "0.0.0.0"


def test_traces_are_switched_on_by_values() -> None:
    """Servers and workers know where to send them; a variable of a setting has no second way."""
    for name in ("leasehold", "leasehold-films"):
        (container,) = pods("postgresql")[name]["containers"]
        given = {each["name"]: each.get("value") for each in container["env"]}
        assert given["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector.monitoring.svc:4318"
        assert given["OTEL_TRACES_SAMPLER_ARG"] == "0.05"
    (servers,) = pods("postgresql")["leasehold"]["containers"]
    assert {"name": f"{PREFIX}TRACING", "value": "true"} in servers["env"]
    args = {
        name: pods("postgresql")[f"leasehold-{name}"]["containers"][0]["args"]
        for name in ("films", "jobs")
    }
    assert ("--tracing" in args["films"], "--tracing" in args["jobs"]) == (True, False)
    assert "LEASEHOLD_PORT" in refuses("--set", "environment.LEASEHOLD_PORT=1")


def test_a_worker_is_given_the_time_that_it_takes() -> None:
    """Its pod lives 20 seconds longer than --grace at least; KEDA alone says how many there are."""
    for name, grace_s in (("films", 300), ("jobs", 90)):
        spec = pods("postgresql")[f"leasehold-{name}"]
        assert f"--grace={grace_s}s" in spec["containers"][0]["args"]
        assert spec["terminationGracePeriodSeconds"] >= grace_s + 20
    assert manifest("postgresql", "Deployment", "leasehold-films")["spec"]["replicas"] == 2
    assert "replicas" not in manifest("postgresql", "Deployment", "leasehold-jobs")["spec"]


def test_the_scaler_is_the_one_that_is_explained() -> None:
    """What the chart makes differs from the how-to in names only."""
    page = (ROOT / "docs/howto/count-and-scale.md").read_text(encoding="utf-8")
    shown = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]
    made = [manifest("postgresql", each["kind"], "leasehold-jobs") for each in shown[:2]]
    asked = made[0]["spec"]["triggers"][0]["metadata"].pop("url")
    written = shown[0]["spec"]["triggers"][0]["metadata"].pop("url")
    assert asked.partition("/v1/") == (
        "https://leasehold.queues.svc:10001",
        "/v1/",
        written.partition("/v1/")[2],
    )
    made[0]["spec"]["scaleTargetRef"]["name"] = "jobs-worker"
    made[0]["spec"]["triggers"][0]["authenticationRef"]["name"] = "jobs-inspector"
    assert [each["spec"] for each in made] == [each["spec"] for each in shown[:2]]


def test_values_that_cannot_be_meant_are_refused() -> None:
    """Secrets, names that are not known, a missing image, an Ingress without a host."""
    assert "accounts" in refuses("--set", "settings.accounts=shop:key")
    assert "replica" in refuses("--set", "store.replica=2")
    assert "repository" in refuses("--set", "image.repository=")
    assert "host" in refuses("--set", "ingress.enabled=true")


def image_with(*more: str | Path) -> str:
    """Return the image of the servers that the chart names when given more values."""
    said = passes(program("helm"), "template", "leasehold", CHART, *more)
    (image,) = re.findall(r"^ +image: (.+)$", said, re.MULTILINE)
    return str(yaml.safe_load(image))


@pytest.mark.parametrize("option", ["--set", "--set-string"])
@pytest.mark.parametrize("tag", ["1", "0", "20261128", "1.10", "v1"])
def test_a_tag_may_look_like_a_number(option: str, tag: str) -> None:
    """Helm takes ``1`` for a number, and the tag is what was typed."""
    assert image_with(option, f"image.tag={tag}") == f"leasehold:{tag}"


@pytest.mark.parametrize("tag", ["1", "1.0", "1.10", "007"])
def test_a_tag_in_a_file_is_in_quotes(tag: str, tmp_path: Path) -> None:
    """YAML does not keep how a number was written, so the chart asks for a text."""
    values = tmp_path / "values.yaml"
    values.write_text(f"image: {{tag: {tag}}}")
    assert "write it in quotes" in refuses("--values", str(values))
    values.write_text(f'image: {{tag: "{tag}"}}')
    assert image_with("--values", values) == f"leasehold:{tag}"


def test_without_a_tag_it_is_the_version() -> None:
    """That of the chart's application, also where a tag is removed."""
    (chart,) = documents(CHART / "Chart.yaml")
    expected = f"leasehold:{chart['appVersion']}"
    assert image_with() == image_with("--set", "image.tag=null") == expected
    assert chart["appVersion"] == __version__


@pytest.mark.parametrize("value", ["7", "false", "5000000000"])
def test_texts_may_look_like_something_else(value: str) -> None:
    """Labels, annotations, variables: Kubernetes takes texts only, so they are written as texts."""
    places = {
        "networkPolicy.clientLabels.test": "NetworkPolicy",
        "podAnnotations.test": "StatefulSet",
        "nodeSelector.test": "StatefulSet",
        "service.annotations.test": "Service",
        "ingress.annotations.test": "Ingress",
        "serviceMonitor.labels.test": "ServiceMonitor",
        "environment.TEST": "StatefulSet",
        "settings.log_level": "StatefulSet",
    }
    given = [word for place in places for word in ("--set", f"{place}={value}")]
    given += ["--set", "ingress.enabled=true,ingress.host=queues,serviceMonitor.enabled=true"]
    made = {each["kind"]: yaml.safe_dump(each) for each in rendered("sqlite", *given)}
    shown = [kind for kind, text in made.items() for _ in range(text.count(f"'{value}'"))]
    assert sorted(shown) == sorted(places.values())


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
    """By yamllint; the templates are no YAML."""
    passes(program("yamllint"), "--strict", "-c", DEPLOY / "yamllint.yaml", DEPLOY)


@pytest.mark.parametrize("values", KINDS)
def test_the_chart_is_clean(values: str) -> None:
    """By Helm, with these values."""
    given = ("--values", CHART / "ci" / f"{values}-values.yaml")
    passes(program("helm"), "lint", "--strict", CHART, *given)


def test_the_chart_is_clean_without_values() -> None:
    """By Helm, with those of the chart."""
    passes(program("helm"), "lint", "--strict", CHART)


@pytest.mark.parametrize("values", KINDS)
def test_manifests_fit_the_schemas(values: str, tmp_path: Path) -> None:
    """By the schemas of Kubernetes, in which nothing is unknown."""
    built_in = [each for each in rendered(values) if each["kind"] not in NOT_BUILT_IN]
    (tmp_path / "made.yaml").write_text(yaml.safe_dump_all(built_in))
    said = passes(program("kubernetes-validate"), "--strict", tmp_path / "made.yaml")
    assert said.count("passed for resource") == len(built_in) > 2


def test_the_notes_say_what_is_there() -> None:
    """After an installation."""
    given = ("--values", CHART / "ci" / "postgresql-values.yaml")
    said = passes(program("helm"), "install", "--dry-run=client", "queues", CHART, *given)
    assert "https://queues-leasehold.default.svc:10001" in said
    assert "rollout status deployment/queues-leasehold" in said


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


def test_compose_fits_the_schema() -> None:
    """By the schema of the Compose specification."""
    schema = ("--builtin-schema", "vendor.compose-spec")
    passes(program("check-jsonschema"), *schema, COMPOSE)


def test_what_compose_mounts_is_there() -> None:
    """Files exist, are not written to, and volumes are declared."""
    compose = documents(COMPOSE)[0]
    files = 0
    for service in compose["services"].values():
        for mount in service.get("volumes", ()):
            source, _, target = mount.partition(":")
            if source.startswith("."):
                assert (COMPOSE.parent / source).is_file(), source
                assert target.endswith(":ro")
                files += 1
            else:
                assert source in compose["volumes"]
    assert files


def test_compose_publishes_to_this_machine_only_and_knows_no_password() -> None:
    """Whoever does not set what is secret cannot start it; env.example names all that is asked."""
    text = COMPOSE.read_text(encoding="utf-8")
    for service in documents(COMPOSE)[0]["services"].values():
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), port
    asked = set(re.findall(r"\$\{(\w+):\?", text))
    example = (COMPOSE.parent / "env.example").read_text(encoding="utf-8")
    assert asked == set(re.findall(r"^(\w+)=$", example, re.MULTILINE))
    assert asked >= {"POSTGRES_PASSWORD", "GRAFANA_PASSWORD", "SPARK_SECRET"}
    assert not re.findall(r"(?:PASSWORD|SECRET)\w*: (?!\$\{)", text)


def test_prometheus_understands_its_settings(tmp_path: Path) -> None:
    """By promtool, with the alert rules; both servers are scraped as the job of the alerts."""
    settings = documents(COMPOSE.with_name("prometheus.yaml"))[0]
    (job,) = settings["scrape_configs"]
    assert job["job_name"] == "leasehold"
    servers = {name for name in documents(COMPOSE)[0]["services"] if name.startswith("leasehold")}
    (targets,) = job["static_configs"]
    assert {target.partition(":")[0] for target in targets["targets"]} == servers
    settings["rule_files"] = [str(DEPLOY / "monitoring" / "alerts.yaml")]
    (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump(settings))
    passes(program("promtool"), "check", "config", tmp_path / "prometheus.yaml")


def test_grafana_finds_its_source_and_its_dashboard() -> None:
    """The source is the Prometheus of the file, the folder the one that the dashboard is in."""
    services = documents(COMPOSE)[0]["services"]
    grafana = COMPOSE.parent / "grafana"
    (source,) = documents(grafana / "datasources.yaml")[0]["datasources"]
    assert source["type"] == "prometheus"
    assert re.fullmatch(r"http://(\w+):9090", source["url"])[1] in services  # type: ignore[index]
    (provider,) = documents(grafana / "dashboards.yaml")[0]["providers"]
    folder = provider["options"]["path"]
    mounted = [mount.split(":")[1] for mount in services["grafana"]["volumes"]]
    assert any(target.startswith(f"{folder}/") and target.endswith(".json") for target in mounted)
