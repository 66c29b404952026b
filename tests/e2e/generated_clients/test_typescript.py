"""A TypeScript client whose types ``openapi-typescript`` makes of the OpenAPI document."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from leasehold.domain.limits import DEFAULT_SESSION_TIMEOUT_S
from leasehold.http.native.dialect import openapi_json
from leasehold.testing import InProcessServer
from tests.e2e.node import install_packages

HERE: Final = Path(__file__).parent


@pytest.mark.long
def test_calls_of_each_kind(tmp_path: Path) -> None:
    """They are checked against the types, and what comes back has what was sent."""
    install_packages(HERE)
    for name in ("calls.ts", "package.json", "tsconfig.json"):
        shutil.copy(HERE / name, tmp_path)
    (tmp_path / "node_modules").symlink_to(HERE / "node_modules")
    (tmp_path / "openapi.json").write_bytes(openapi_json())

    def run(*command: str) -> str:
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=False, env=os.environ
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("npx", "openapi-typescript", "openapi.json", "--default-non-nullable=false", "-o", "api.ts")
    run("npx", "tsc")
    with InProcessServer() as server:
        seen = json.loads(run("node", "calls.js", server.url, server.account, server.key))
    assert seen == {
        "weight": 2,
        "failed": [0, 0],
        "bodies": ["one", "two"],
        "already": False,
        "timeout_s": DEFAULT_SESSION_TIMEOUT_S,
        "size": 1,
        "staged": 1,
        "job": "purge",
        "views": 1,
    }
