"""The official JavaScript SDK: runs the tests of this folder in Node and reports each of them."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.e2e.conftest import ENDPOINT_VARIABLE, development_server
from tests.e2e.identity import USER, IdentityProvider
from tests.e2e.node import install_packages

if TYPE_CHECKING:
    from tests.e2e.server import Endpoint

HERE: Final = Path(__file__).parent
_NEEDS_TOKENS: Final = {
    "QueueClient.generateUserDelegationSasUrl",
    "QueueClient.generateUserDelegationStringToSign",
    "QueueServiceClient.getUserDelegationKey",
    "StorageOAuthScopes",
    "StorageQueueAudience",
    "getQueueServiceAccountAudience",
}


def _address(endpoint: Endpoint) -> dict[str, Any]:
    return asdict(endpoint) | {
        "port": endpoint.port,
        "secondaryUrl": endpoint.secondary_url,
        "connectionString": endpoint.connection_string,
    }


@pytest.fixture
def tls_context(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What the tests of tokens need, or nothing when the server is not ours."""
    if ENDPOINT_VARIABLE in os.environ:
        return {"tls": None, "tokens": {}}
    identity: IdentityProvider = request.getfixturevalue("identity")
    tls_endpoint: Endpoint = request.getfixturevalue("tls_endpoint")
    tokens = {
        "good": identity.token(),
        "reader": identity.token(roles=["Storage Queue Data Reader"]),
        "expired": identity.token(exp=1_700_000_000),
        "forged": identity.token(forged=True),
        "stranger": identity.token(iss="https://stranger.example/"),
    }
    return {"tls": _address(tls_endpoint), "tokens": tokens, "user": USER}


@pytest.fixture
def context(
    own_account: Endpoint, on_azurite: bool, tls_context: dict[str, Any], tmp_path: Path
) -> dict[str, Any]:
    """What the JavaScript side is told."""
    return tls_context | {
        "endpoint": _address(own_account),
        "azurite": on_azurite,
        "development": False,
        "record": str(tmp_path / "used.txt"),
    }


def _run_node(folder: Path, context: dict[str, Any]) -> list[dict[str, Any]]:
    """Run all JavaScript tests and return what became of each."""
    context_file, results = folder / "context.json", folder / "results.jsonl"
    context_file.write_text(json.dumps(context))
    environment = os.environ | {"LEASEHOLD_JS_CONTEXT": str(context_file)}
    if context["tls"]:
        environment["NODE_EXTRA_CA_CERTS"] = str(context["tls"]["ca_file"])
    files = sorted(str(file) for file in HERE.glob("*.test.mjs"))
    command = ["node", "--test", "--test-timeout=60000", "--test-reporter=./reporter.mjs"]
    command += [f"--test-reporter-destination={results}", *files]
    done = subprocess.run(
        command, cwd=HERE, env=environment, capture_output=True, text=True, check=False
    )
    # Not splitlines: texts of tests hold what it takes for line ends.
    lines = results.read_text().split("\n") if results.exists() else []
    assert any(lines), f"node reported nothing:\n{done.stdout}\n{done.stderr}"
    return [json.loads(line) for line in lines if line]


def _surface() -> set[str]:
    """Return the names of everything public in the SDK."""
    printed = subprocess.run(
        ["node", "surface.mjs"], cwd=HERE, capture_output=True, text=True, check=True
    )
    return set(json.loads(printed.stdout))


@pytest.mark.long
def test_the_javascript_sdk(
    context: dict[str, Any],
    subtests: pytest.Subtests,
    tmp_path: Path,
) -> None:
    """Every test in JavaScript passes, and together they use the SDK's whole public surface."""
    install_packages(HERE)
    with development_server(tmp_path / "development") as started:
        context["development"] = started is not None
        results = _run_node(tmp_path, context)
    for result in results:
        with subtests.test(f"{result['file']}: {result['name']}"):
            if result["skipped"]:
                pytest.skip(str(result["skipped"]))
            if result["todo"]:
                assert not result["passed"], f"is no difference any more: {result['todo']}"
            else:
                assert result["passed"], result["error"]
    with subtests.test("surface"):
        used = set(Path(context["record"]).read_text().split())
        unused = _surface() - used
        if not context["tls"]:
            unused -= _NEEDS_TOKENS
        assert not unused, f"no test uses {sorted(unused)}"
