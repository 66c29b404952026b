"""Runs the tests of this folder in Node, and reports each of them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from leasehold.testing import InProcessServer
from tests.e2e.conftest import exclusive

HERE: Final = Path(__file__).parent
_STAMP: Final = HERE / "node_modules" / ".installed-lock-sha256"
_REPORTER: Final = HERE.parent / "azure_js" / "reporter.mjs"


def _missing(what: str) -> None:
    """Skip at home; fail where everything has to be there."""
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)


def _install() -> None:
    """Install what the lock file names, unless that is what is installed."""
    digest = hashlib.sha256((HERE / "package-lock.json").read_bytes()).hexdigest()
    with exclusive("npm-mns"):
        if _STAMP.exists() and _STAMP.read_text() == digest:
            return
        done = subprocess.run(
            ["npm", "ci", "--prefer-offline"], cwd=HERE, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            _missing(f"npm cannot install the SDK:\n{done.stderr}")
        _STAMP.write_text(digest)


def _results(folder: Path, server: InProcessServer) -> list[dict[str, Any]]:
    """Run the JavaScript tests and return what became of each."""
    told, results = folder / "context.json", folder / "results.jsonl"
    context = {"endpoint": server.mns_url, "account": server.account, "key": server.key}
    told.write_text(json.dumps(context))
    command = ["node", "--test", "--test-timeout=60000", f"--test-reporter={_REPORTER}"]
    command += [f"--test-reporter-destination={results}"]
    command += sorted(str(file) for file in HERE.glob("*.test.mjs"))
    done = subprocess.run(
        command,
        cwd=HERE,
        env=os.environ | {"LEASEHOLD_JS_CONTEXT": str(told)},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = results.read_text().split("\n") if results.exists() else []
    assert any(lines), f"node reported nothing:\n{done.stdout}\n{done.stderr}"
    return [json.loads(line) for line in lines if line]


def test_the_javascript_sdk(subtests: pytest.Subtests, tmp_path: Path) -> None:
    """Every test in JavaScript passes."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        _missing("Node.js is not installed")
    _install()
    with InProcessServer(clock="system") as server:
        results = _results(tmp_path, server)
    for result in results:
        with subtests.test(result["name"]):
            assert result["passed"], result["error"]
    assert len(results) > 5
