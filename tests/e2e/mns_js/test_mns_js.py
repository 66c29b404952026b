"""Runs the tests of this folder in Node, and reports each of them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from leasehold.testing import InProcessServer
from tests.e2e.node import install_packages

HERE: Final = Path(__file__).parent
_REPORTER: Final = HERE.parent / "azure_js" / "reporter.mjs"


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
    install_packages(HERE)
    with InProcessServer(clock="system") as server:
        results = _results(tmp_path, server)
    for result in results:
        with subtests.test(result["name"]):
            assert result["passed"], result["error"]
    assert len(results) > 5
