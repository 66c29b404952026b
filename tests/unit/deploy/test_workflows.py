"""The workflows of a forge: they are understood, and do what is said elsewhere."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / ".github" / "workflows"
NAMES = sorted(path.name for path in FOLDER.iterdir())


def workflow(name: str) -> dict[Any, Any]:
    """Return what a file says."""
    content: dict[Any, Any] = yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))
    return content


def scripts(name: str) -> str:
    """Return all that is run in a workflow."""
    jobs = workflow(name)["jobs"].values()
    return "\n".join(step.get("run", "") for job in jobs for step in job.get("steps", ()))


@pytest.mark.parametrize("name", NAMES)
def test_workflows_are_understood(name: str) -> None:
    """By actionlint, which knows the syntax, the expressions and the inputs of common actions."""
    beside = Path(sys.executable).with_name("actionlint")
    program = str(beside) if beside.exists() else shutil.which("actionlint")
    if program is None:
        pytest.skip("actionlint is not installed")
    done = subprocess.run(
        (program, "-no-color", FOLDER / name), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_what_they_run_is_there(name: str) -> None:
    """Targets of make, scripts and modules."""
    text = scripts(name)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z-]+)", text)) <= targets
    named = re.findall(r"(?:bash|python) ([\w./]+)", text)
    named += [
        f"{name.replace('.', '/')}.py" for name in re.findall(r"python -m (tools\.\w+)", text)
    ]
    assert named
    assert [path for path in named if not (ROOT / path).is_file()] == []


def test_the_tests_run_on_each_python() -> None:
    """On those that the package says it is for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    prefix = "Programming Language :: Python :: "
    said = [each.removeprefix(prefix) for each in project["classifiers"] if prefix in each]
    assert workflow("ci.yml")["jobs"]["test"]["strategy"]["matrix"]["python"] == said


def test_the_devcontainer_runs_the_commands_of_the_readme() -> None:
    """On the Python that the whole of CI runs on."""
    text = (ROOT / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8")
    container = json.loads(text)
    assert container["image"] == workflow("ci.yml")["jobs"]["check"]["container"]["image"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    first = re.search(r"^```sh\n(make.*?)^```", readme, re.MULTILINE | re.DOTALL)
    assert first is not None
    commands = [line.partition("#")[0].strip() for line in first[1].splitlines()]
    assert [container["updateContentCommand"], container["postCreateCommand"]] == commands


def test_a_tag_alone_publishes() -> None:
    """After all checks, by one job that alone may ask for the index's trust, without a password."""
    release = workflow("release.yml")
    assert release[True] == {"push": {"tags": ["v*"]}}  # YAML 1.1 takes `on` for a boolean
    jobs = release["jobs"]
    assert jobs["check"]["uses"] == "./.github/workflows/ci.yml"
    assert (jobs["make"]["needs"], jobs["publish"]["needs"]) == ("check", "make")
    trusted = [name for name, job in jobs.items() if "id-token" in job.get("permissions", ())]
    assert trusted == ["publish"]
    assert jobs["publish"]["environment"] == "pypi"
    assert "secrets." not in (FOLDER / "release.yml").read_text(encoding="utf-8")
    assert '--tag "$GITHUB_REF_NAME"' in scripts("release.yml")
