"""Commands of Helm, Docker and kubectl on the pages and in ``deploy`` are right.

They are run as far as they go without a cluster and without a container engine.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator

import pytest
from tools.bare_root import BareRoot, NotPossible, bare_root

from tests.docs.pages import ROOT, blocks, page_id, pages
from tests.unit.deploy.test_deploy import program

PROGRAMS = ("helm", "docker", "kubectl")
ENGINE_PACKAGES = ("ca-certificates", "docker-cli", "docker-compose", "kubernetes-client")
"""Those of Debian 13: Docker's client with Compose, and kubectl. None of them needs its server to
read a command line and the files that it names."""
NO_ENGINE = re.compile(r"(cannot|failed to) connect to the docker (daemon|API)", re.IGNORECASE)


def _joined(text: str) -> list[str]:
    """Return commands, each with the lines on which it goes on."""
    lines = re.sub(r" *\\\n *", " ", text).splitlines()
    commands = [line.strip().removeprefix("# ").strip() for line in lines]
    return [each for each in commands if each.partition(" ")[0] in PROGRAMS]


def _documented() -> Iterator[tuple[str, str]]:
    """Yield where a command is, and the command."""
    for page in pages():
        for block in blocks(page):
            if block.language == "sh":
                yield from ((page_id(page), each) for each in _joined(block.text))
    for path in sorted((ROOT / "deploy").rglob("*")):
        if path.is_file() and "templates" not in path.parts:
            text = path.read_text(encoding="utf-8")
            comments = "\n".join(re.findall(r"^# {2,}(\S.*)$", text, re.MULTILINE))
            uncommented = re.sub(r" +# .*$", "", comments, flags=re.MULTILINE)
            yield from ((page_id(path), each) for each in _joined(uncommented))


COMMANDS = sorted(set(_documented()))
HELM = [each for each in COMMANDS if each[1].startswith("helm ")]
OTHERS = [each for each in COMMANDS if not each[1].startswith("helm ")]


def test_the_commands_are_seen() -> None:
    """Those that users copy first, wherever they are."""
    begins = {" ".join(command.split()[:2]) for _, command in COMMANDS}
    assert begins >= {"helm install", "docker build", "docker run", "docker compose"}
    assert {where for where, _ in COMMANDS} >= {
        "deploy/Dockerfile",
        "deploy/compose/compose.yaml",
        "docs/howto/deploy-on-kubernetes.md",
        "docs/howto/one-container.md",
    }


@pytest.mark.parametrize(("where", "command"), HELM)
def test_helm_takes_them(where: str, command: str) -> None:
    """It renders what it would install."""
    helm = program("helm")
    _, verb, *words = shlex.split(command)
    assert verb in {"install", "template", "upgrade"}, where
    rendered = subprocess.run(
        (helm, "template", *words), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert rendered.returncode == 0, f"{where}: {command}\n{rendered.stderr}"
    assert "kind: Service" in rendered.stdout


@pytest.fixture(scope="module")
def engine_less() -> Iterator[BareRoot]:
    """A Debian with the clients of Docker and Kubernetes, and this checkout's ``deploy``."""
    try:
        with bare_root("trixie", ENGINE_PACKAGES) as root:
            checkout = root.path("/checkout")
            shutil.copytree(ROOT / "deploy", checkout / "deploy")
            example = (ROOT / "deploy/compose/env.example").read_text(encoding="utf-8")
            filled = re.sub(r"^(\w+)=$", r"\1=secret-of-a-test", example, flags=re.MULTILINE)
            (checkout / "deploy/compose/.env").write_text(filled)
            yield root
    except NotPossible as reason:
        pytest.skip(str(reason))


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["compose.yaml", "one.yaml"])
def test_compose_reads_its_files(engine_less: BareRoot, name: str) -> None:
    """With all profiles, and without them."""
    file = ("--file", f"deploy/compose/{name}")
    for profiles in ((), ("--profile", "*")):
        command = ("docker", "compose", *file, *profiles, "config", "--quiet")
        engine_less.run(*command, workdir="/checkout")


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("where", "command"), OTHERS)
def test_clients_take_them(engine_less: BareRoot, where: str, command: str) -> None:
    """All that is wrong with a command of Docker is that there is no engine."""
    if command.startswith("kubectl create "):
        command += " --dry-run=client"
    said = engine_less.run(
        *("/bin/sh", "-c", command), workdir="/checkout", check=False, stderr=subprocess.PIPE
    )
    if command.startswith("kubectl "):
        assert said.returncode == 0, f"{where}: {said.stderr}"
    else:
        assert NO_ENGINE.search(said.stderr), f"{where}: {command}\n{said.stderr}"
