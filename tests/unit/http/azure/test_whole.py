"""The dialect with the real authenticator and the store that is the oracle."""

from __future__ import annotations

from base64 import b64decode
from typing import Any
from urllib.parse import quote

import pytest

from leasehold.auth.authenticator import Authenticator
from leasehold.auth.sas import SasTerms, make_account_sas, make_service_sas
from leasehold.auth.sharedkey import (
    format_http_date,
    sign,
)
from leasehold.auth.types import Account, SignedRequest
from leasehold.domain.command import AnyCommand
from leasehold.domain.errors import LeaseholdError
from leasehold.domain.model import AccessPolicy
from leasehold.http.azure import AzureDialect
from leasehold.http.azure.call import parse_query
from leasehold.http.requests import Response
from leasehold.stores.memory import MemoryStore
from leasehold.testing import ManualClock
from tests.unit.http.azure.support import (
    ACCOUNT,
    MESSAGES,
    error_of,
    header,
    make_request,
    message_xml,
    root_of,
    run,
)

# The emulator's key, which is public.
_KEY = b64decode(
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
_QUEUE = f"/{ACCOUNT}/orders"


class Whole:
    """A server without HTTP."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore()
        accounts = {ACCOUNT: Account(name=ACCOUNT, keys=(_KEY,))}
        self.dialect = AzureDialect(
            perform=self.perform,
            authenticator=Authenticator(accounts, self.find_policy),
            clock=self.clock,
            accounts=accounts,
        )

    async def perform(self, command: AnyCommand) -> Any:
        """Carry a command out as the engine would."""
        [result] = self.store.execute([command], now_ms=self.clock.now_ms())
        self.store.commit()
        if isinstance(result, LeaseholdError):
            raise result
        return result

    def find_policy(self, account: str, queue: str, policy_id: str) -> AccessPolicy | None:
        """Look a stored policy up."""
        found = self.store.find_queue(account, queue)
        policies = found.policies if found else ()
        return next((policy for policy in policies if policy.policy_id == policy_id), None)

    def signed(self, method: str, path: str, query: str = "", body: bytes = b"") -> Response:
        """Send a request signed with the account key."""
        headers = {"x-ms-date": format_http_date(self.clock.now_ms())}
        request = make_request(method, path, query, headers=headers, body=body)
        shown = SignedRequest(
            method=method,
            path=path,
            query=parse_query(query)[0],
            headers=request.headers,
            version=request.headers["x-ms-version"],
            client_ip=request.client_ip,
            https=request.https,
        )
        request.headers = {**request.headers, "authorization": sign(shown, ACCOUNT, _KEY)}
        return run(self.dialect.handle(request))

    def plain(self, method: str, path: str, query: str = "", body: bytes = b"") -> Response:
        """Send a request without a header that proves anything."""
        return run(self.dialect.handle(make_request(method, path, query, body=body)))

    def get_one(self, seconds: int = 30) -> tuple[str, str, str]:
        """Get one message: its id, receipt and text."""
        response = self.signed("GET", MESSAGES, f"visibilitytimeout={seconds}")
        [node] = root_of(response)
        return (
            node.findtext("MessageId") or "",
            quote(node.findtext("PopReceipt") or "", safe=""),
            node.findtext("MessageText") or "",
        )


@pytest.fixture
def whole() -> Whole:
    """Give a server with one queue and one message."""
    server = Whole()
    assert server.signed("PUT", _QUEUE).status == 201
    body = message_xml("&lt;first&gt;\n")
    assert server.signed("POST", MESSAGES, "messagettl=3600", body=body).status == 201
    return server


def test_life_of_a_message(whole: Whole) -> None:
    """A message is got, renewed with a new text, got again and deleted."""
    message_id, receipt, text = whole.get_one()
    assert text == "<first>\n"
    assert whole.signed("GET", MESSAGES).body.endswith(b"<QueueMessagesList />")
    path = f"{MESSAGES}/{message_id}"
    query = f"popreceipt={receipt}&visibilitytimeout=0"
    assert whole.signed("PUT", path, query, message_xml("second")).status == 204
    assert error_of(whole.signed("DELETE", path, f"popreceipt={receipt}"))[1] == "MessageNotFound"
    _, receipt, text = whole.get_one()
    assert text == "second"
    assert whole.signed("DELETE", path, f"popreceipt={receipt}").status == 204
    count = header(whole.signed("GET", _QUEUE, "comp=metadata"), "x-ms-approximate-messages-count")
    assert count == "0"


def test_receipt_outlives_its_lease(whole: Whole) -> None:
    """A lease that ran out is still good for a delete if nobody else got the message."""
    message_id, receipt, _ = whole.get_one(1)
    whole.clock.advance(s=2)
    assert whole.signed("DELETE", f"{MESSAGES}/{message_id}", f"popreceipt={receipt}").status == 204


@pytest.mark.parametrize(
    ("path", "receipt", "status", "code"),
    [
        (f"{MESSAGES}/no-such-id", "malformed", 404, "MessageNotFound"),
        (f"{MESSAGES}/{{id}}", "malformed", 400, "InvalidQueryParameterValue"),
        (f"{MESSAGES}/{{id}}", "A" * 36, 404, "MessageNotFound"),
        (f"/{ACCOUNT}/nowhere/messages/{{id}}", "malformed", 404, "QueueNotFound"),
    ],
)
def test_receipts(whole: Whole, path: str, receipt: str, status: int, code: str) -> None:
    """The queue is looked up first, then the message, then its receipt."""
    message_id, _, _ = whole.get_one()
    response = whole.signed("DELETE", path.format(id=message_id), f"popreceipt={receipt}")
    assert error_of(response)[:2] == (status, code)


def test_renewal_beyond_expiry(whole: Whole) -> None:
    """A message that lives for an hour cannot be hidden for longer."""
    message_id, receipt, _ = whole.get_one()
    query = f"popreceipt={receipt}&visibilitytimeout="
    response = whole.signed("PUT", f"{MESSAGES}/{message_id}", f"{query}3601")
    status, code, details = error_of(response)
    assert (status, code) == (400, "InvalidQueryParameterValue")
    assert details["QueryParameterName"] == "visibilitytimeout"
    assert details["Reason"]
    assert whole.signed("PUT", f"{MESSAGES}/{message_id}", f"{query}3600").status == 204


def test_creating_twice(whole: Whole) -> None:
    """The same queue again is 204, another one of its name 409."""
    assert whole.signed("PUT", _QUEUE).status == 204
    request = "comp=metadata"
    assert whole.signed("PUT", _QUEUE, request).status == 204


def test_stored_policy(whole: Whole) -> None:
    """A signature that leans on a policy works as long as the policy does."""
    sas = make_service_sas(ACCOUNT, _KEY, "orders", SasTerms(), policy_id="reader")
    assert error_of(whole.plain("GET", MESSAGES, f"peekonly=true&{sas}"))[0] == 403
    policy = (
        b"<SignedIdentifiers><SignedIdentifier><Id>reader</Id><AccessPolicy>"
        b"<Expiry>2026-01-02T00:00:00.0000000Z</Expiry><Permission>r</Permission>"
        b"</AccessPolicy></SignedIdentifier></SignedIdentifiers>"
    )
    assert whole.signed("PUT", _QUEUE, "comp=acl", policy).status == 204
    assert whole.plain("GET", MESSAGES, f"peekonly=true&{sas}").status == 200
    assert error_of(whole.plain("GET", MESSAGES, sas))[1] == "AuthorizationPermissionMismatch"
    assert error_of(whole.plain("DELETE", MESSAGES, sas))[1] == "AuthorizationFailure"
    assert whole.signed("PUT", _QUEUE, "comp=acl").status == 204
    assert (
        error_of(whole.plain("GET", MESSAGES, f"peekonly=true&{sas}"))[1] == "AuthenticationFailed"
    )


def test_account_signature(whole: Whole) -> None:
    """An account signature lists queues; its version counts where no header names one."""
    terms = SasTerms(permission="l", expiry="2026-01-02T00:00:00Z", version="2020-02-10")
    sas = make_account_sas(ACCOUNT, _KEY, terms)
    request = make_request("GET", f"/{ACCOUNT}/", f"comp=list&{sas}", version=None)
    response = run(whole.dialect.handle(request))
    assert header(response, "x-ms-version") == "2020-02-10"
    assert root_of(response).findtext("Queues/Queue/Name") == "orders"


@pytest.mark.parametrize("path", [MESSAGES, f"/{ACCOUNT}/nowhere/messages", f"/{ACCOUNT}/No_Name"])
def test_nobody_learns_which_queues_exist(whole: Whole, path: str) -> None:
    """Without credentials every queue looks the same."""
    response = whole.plain("DELETE", path)
    assert error_of(response)[:2] == (401, "NoAuthenticationInformation")


def test_unknown_account(whole: Whole) -> None:
    """An account that does not exist is not found, if somebody signs for it."""
    headers = {"authorization": "SharedKey nobody:AAAA", "x-ms-date": "x"}
    request = make_request("GET", "/nobody/", "comp=list", headers=headers)
    assert error_of(run(whole.dialect.handle(request)))[:2] == (404, "ResourceNotFound")
