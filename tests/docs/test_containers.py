"""What the page about one container shows: the file of Compose, and tests with Testcontainers.

Where there is no container engine the tests of the page run against a server's process; that the
container is started as the library expects is then known from types alone.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest
import yaml

from tests.docs.pages import DOCS, ROOT, blocks
from tests.e2e.conftest import exclusive
from tests.e2e.server import Server

PAGE: Final = DOCS / "howto" / "one-container.md"
FILES: Final = {block.title: block.text for block in blocks(PAGE) if block.title is not None}
PROCESS: Final = {
    "conftest.py": """
import os, pytest

@pytest.fixture(scope="session")
def connection_string():
    return os.environ["CONNECTION"]
""",
    "leasehold.ts": """
export interface Leasehold { connectionString: string; stop(): Promise<unknown>; }
export async function startLeasehold(): Promise<Leasehold> {
  return { connectionString: process.env["CONNECTION"]!, stop: async () => {} };
}
""",
}
"""In place of the files of the page that start a container."""
NODE_PACKAGES: Final = {
    "@azure/storage-queue": "12.30.0",
    "@types/node": "22.20.7",
    "testcontainers": "12.2.0",
    "typescript": "5.9.3",
}
COMPILER: Final = {
    "strict": True,
    "module": "nodenext",
    "target": "es2023",
    "skipLibCheck": True,
    "types": ["node"],
}


def test_the_page_shows_the_file_of_compose() -> None:
    """But for its comment."""
    (shown,) = (block.text for block in blocks(PAGE) if block.language == "yaml")
    file = (ROOT / "deploy" / "compose" / "one.yaml").read_text(encoding="utf-8")
    assert "".join(line for line in file.splitlines(True) if line[0] != "#") == shown
    (service,) = yaml.safe_load(file)["services"].values()
    assert service["environment"].keys() >= {"LEASEHOLD_DEV_ACCOUNT"}


@pytest.mark.long
def test_the_tests_in_python_fit_the_library(tmp_path: Path) -> None:
    """By mypy, which knows the types of Testcontainers."""
    pytest.importorskip("testcontainers", reason="the extra release is not installed")
    written = _write(tmp_path, {name: FILES[name] for name in FILES if name.endswith(".py")})
    check = (sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path / "cache")
    _run((*check, *written), tmp_path)


@pytest.mark.long
def test_the_tests_in_python_pass(tmp_path: Path) -> None:
    """On a server's process."""
    given = {"test_orders.py": FILES["test_orders.py"], "conftest.py": PROCESS["conftest.py"]}
    _write(tmp_path, given)
    with Server(tmp_path / "data") as server:
        connection = {"CONNECTION": server.connection_string}
        said = _run((sys.executable, "-m", "pytest", "-q"), tmp_path, connection)
    assert "1 passed" in said


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_the_tests_in_typescript(tmp_path: Path) -> None:
    """They fit Testcontainers, by the compiler, and pass on a server's process."""
    modules = _node_modules()
    scripts = {name: FILES[name] for name in FILES if name.endswith(".ts")}
    assert scripts.keys() == {"leasehold.ts", "orders.test.ts"}
    settings = {"type": "module", "private": True}, {"compilerOptions": COMPILER}
    texts = map(json.dumps, settings)
    about = dict(zip(("package.json", "tsconfig.json"), texts, strict=True))
    _write(tmp_path, {**scripts, **about})
    (tmp_path / "node_modules").symlink_to(modules)
    compiler = ("node", modules / "typescript" / "bin" / "tsc", "--project", tmp_path)
    _run(compiler, tmp_path)
    _write(tmp_path, {"leasehold.ts": PROCESS["leasehold.ts"]})
    _run(compiler, tmp_path)
    with Server(tmp_path / "data") as server:
        connection = {"CONNECTION": server.connection_string}
        said = _run(("node", "--test", "orders.test.js"), tmp_path, connection)
    assert "pass 1" in said


@pytest.mark.long
def test_the_tests_pass_on_a_container(tmp_path: Path) -> None:
    """As they are on the page, where there is an engine that has the image."""
    engine = shutil.which("docker")
    image = (engine or "false", "image", "inspect", "leasehold")
    if subprocess.run(image, capture_output=True, check=False).returncode != 0:
        pytest.skip("no container engine has the image leasehold")
    _write(tmp_path, {name: FILES[name] for name in FILES if name.endswith(".py")})
    assert "1 passed" in _run((sys.executable, "-m", "pytest", "-q"), tmp_path)


def _node_modules() -> Path:
    """Return a folder with the packages, which are installed unless they are there."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "leasehold"
    names = [f"{name}@{version}" for name, version in NODE_PACKAGES.items()]
    folder = cache / "testcontainers" / "-".join(NODE_PACKAGES.values())
    with exclusive("testcontainers"):
        if not (folder / "complete").exists():
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "package.json").write_text('{"private": true}')
            options = ("--no-audit", "--no-fund", "--ignore-scripts", "--silent")
            _run(("npm", "install", *options, *names), folder)
            (folder / "complete").touch()
    return folder / "node_modules"


def _write(folder: Path, files: Mapping[str, str]) -> list[Path]:
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in files]


def _run(
    command: tuple[str | Path, ...], folder: Path, environment: Mapping[str, str] | None = None
) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "NO_PROXY": "*", **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
