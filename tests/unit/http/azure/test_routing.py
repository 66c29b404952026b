"""From an address to an account, a resource and an operation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.http.azure.call import Kind, Router, account_label, operation_of
from leasehold.http.azure.errors import Fault

_ROUTER = Router({"acct", "odd-secondary"})
_LOCAL = "127.0.0.1:10001"


@pytest.mark.parametrize(
    ("path", "kind", "queue", "message_id"),
    [
        ("", Kind.ACCOUNT, "", ""),
        ("/", Kind.ACCOUNT, "", ""),
        ("/orders", Kind.QUEUE, "orders", ""),
        ("/orders/", Kind.QUEUE, "orders", ""),
        ("/orders/messages", Kind.MESSAGES, "orders", ""),
        ("/orders/messages/", Kind.MESSAGES, "orders", ""),
        ("/orders/messages/abc", Kind.MESSAGE, "orders", "abc"),
        ("/orders/messages/abc/", Kind.MESSAGE, "orders", "abc"),
        ("/messages", Kind.QUEUE, "messages", ""),
        ("/messages/messages", Kind.MESSAGES, "messages", ""),
        ("/or%64ers", Kind.QUEUE, "orders", ""),
        ("/a%2Fb", Kind.QUEUE, "a/b", ""),
        ("/a%2562", Kind.QUEUE, "a%62", ""),
        ("/%C3%A9", Kind.QUEUE, "é", ""),
    ],
)
def test_resources_in_path_and_host_style(
    path: str, kind: Kind, queue: str, message_id: str
) -> None:
    """Both styles name the same resources, with and without a slash at the end."""
    found = _ROUTER.find(f"/acct{path}", _LOCAL)
    assert found == (("acct", False, "/acct"), kind, queue, message_id)
    found = _ROUTER.find(path or "/", "acct.queue.example.net")
    assert found == (("acct", False, ""), kind, queue, message_id)


@pytest.mark.parametrize(
    ("label", "account", "secondary"),
    [
        ("acct", "acct", False),
        ("acct-secondary", "acct", True),
        ("acct-ipv6", "acct", False),
        ("acct-dualstack", "acct", False),
        ("acct-secondary-ipv6", "acct", True),
        ("acct-secondary-dualstack", "acct", True),
        ("odd-secondary", "odd-secondary", False),
        ("odd-secondary-secondary", "odd-secondary", True),
    ],
)
def test_suffixes_of_an_account(label: str, account: str, secondary: bool) -> None:
    """Suffixes are taken off, unless the account is really called so."""
    assert _ROUTER.find(f"/{label}/q", _LOCAL).place == (account, secondary, f"/{label}")
    assert _ROUTER.find("/q", f"{label}.queue.example.net").place == (account, secondary, "")


@pytest.mark.parametrize(
    "host",
    [
        "acct.queue.core.windows.net",
        "acct.queue.example.net:8080",
        "ACCT.Queue.Example.Net",
        "acct.queue.localhost:10001",
        "acct.localhost:10001",
        "acct.queue",
    ],
)
def test_host_style_hosts(host: str) -> None:
    """The first label is the account when the host looks like one of a queue service."""
    assert _ROUTER.find("/acct", host) == (("acct", False, ""), Kind.QUEUE, "acct", "")


@pytest.mark.parametrize(
    "host",
    [
        "",
        "localhost:10001",
        "127.0.0.1",
        "[::1]:10001",
        "[::1]",
        "acct",
        "acct.example.net",
        "acct.blob.example.net",
        "unknown.queue.example.net",
        "unknown.localhost",
        "queue.example.net",
        "acct.queue." + "x" * 300,
    ],
)
def test_path_style_hosts(host: str) -> None:
    """Any other host leaves the account to the path."""
    assert _ROUTER.find("/acct", host) == (("acct", False, "/acct"), Kind.ACCOUNT, "", "")


def test_account_added_later_is_found() -> None:
    """The accounts are read at each request, in both styles."""
    accounts: set[str] = set()
    router = Router(accounts)
    host = "new-secondary.queue.example.net"
    with pytest.raises(Fault):
        router.find("/", host)
    assert router.find("/new-secondary", _LOCAL).place.account == "new"
    accounts.add("new")
    assert router.find("/", host).place == ("new", True, "")
    assert router.find("/new", _LOCAL).place == ("new", False, "/new")
    accounts.clear()
    accounts.add("odd-secondary")
    assert router.find("/odd-secondary", _LOCAL).place == ("odd-secondary", False, "/odd-secondary")
    accounts.clear()
    assert router.find("/odd-secondary", _LOCAL).place == ("odd", True, "/odd-secondary")
    assert router.find("/new-secondary", _LOCAL).place == ("new", True, "/new-secondary")


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "//acct",
        "/acct//q",
        "/acct/q//messages",
        "/acct/q/messages//",
        "/acct/q/messages/id//",
        "/acct/q/messages/id/extra",
        "/acct/q/message",
        "/acct/q/Messages",
        "acct/q",
        "/acct/%zz",
        "/acct/%",
        "/acct/%ff",
        "/acct/é",
        "*",
    ],
)
def test_other_paths_are_invalid(path: str) -> None:
    """A path that names nothing of this protocol is an invalid address."""
    with pytest.raises(Fault) as caught:
        _ROUTER.find(path, _LOCAL)
    assert (caught.value.code, caught.value.status) == ("InvalidUri", 400)


@given(
    st.text(max_size=40) | st.text("/acctq%25messages-", max_size=40),
    st.text(max_size=20) | st.text("acct.queue:[]localhost-secondary", max_size=30),
)
def test_any_path_is_found_or_refused(path: str, host: str) -> None:
    """No path and no host fails in another way."""
    try:
        route = _ROUTER.find(path, host)
    except Fault:
        return
    assert route.place.account
    assert (route.kind is Kind.ACCOUNT) == (route.queue == "")
    assert (route.kind is Kind.MESSAGE) == (route.message_id != "")


def test_hosts_are_remembered_within_bounds() -> None:
    """Somebody who invents hosts fills no memory."""
    for number in range(1000):
        account_label(f"host{number}.example.net")
    info = account_label.cache_info()
    assert info.currsize == info.maxsize == 256


_SERVICE = {"restype": "service"}


@pytest.mark.parametrize(
    ("kind", "method", "params", "allow"),
    [
        (Kind.ACCOUNT, "DELETE", {}, "GET, OPTIONS, POST, PUT"),
        (Kind.ACCOUNT, "PUT", {"comp": "list"}, "GET, OPTIONS"),
        (Kind.ACCOUNT, "HEAD", {"comp": "list"}, "GET, OPTIONS"),
        (Kind.ACCOUNT, "POST", {"comp": "stats"} | _SERVICE, "GET, OPTIONS"),
        (Kind.QUEUE, "POST", {}, "DELETE, OPTIONS, PUT"),
        (Kind.QUEUE, "DELETE", {"comp": "acl"}, "GET, HEAD, OPTIONS, PUT"),
        (Kind.MESSAGES, "PUT", {}, "DELETE, GET, OPTIONS, POST"),
        (Kind.MESSAGES, "HEAD", {}, "DELETE, GET, OPTIONS, POST"),
        (Kind.MESSAGES, "PATCH", {}, "DELETE, GET, OPTIONS, POST"),
        (Kind.MESSAGE, "GET", {}, "DELETE, OPTIONS, PUT"),
        (Kind.MESSAGE, "MERGE", {}, "DELETE, OPTIONS, PUT"),
    ],
)
def test_wrong_verb_names_the_right_ones(
    kind: Kind, method: str, params: dict[str, str], allow: str
) -> None:
    """A method that the resource does not have is answered with those it has."""
    with pytest.raises(Fault) as caught:
        operation_of(kind, method, params)
    fault = caught.value
    assert (fault.status, fault.code) == (405, "UnsupportedHttpVerb")
    assert fault.headers == ((b"allow", allow.encode()),)


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("method", ["BREW", "get", ""])
def test_unknown_verb_is_invalid(kind: Kind, method: str) -> None:
    """A method that HTTP does not know is another error."""
    with pytest.raises(Fault) as caught:
        operation_of(kind, method, {})
    assert (caught.value.status, caught.value.code) == (400, "InvalidHttpVerb")


@pytest.mark.parametrize(
    ("kind", "method", "params", "code", "name"),
    [
        (Kind.ACCOUNT, "GET", {}, "MissingRequiredQueryParameter", "comp"),
        (Kind.ACCOUNT, "PUT", {}, "MissingRequiredQueryParameter", "comp"),
        (Kind.QUEUE, "GET", {}, "MissingRequiredQueryParameter", "comp"),
        (Kind.QUEUE, "HEAD", {"comp": ""}, "MissingRequiredQueryParameter", "comp"),
        (Kind.ACCOUNT, "GET", {"comp": "x"}, "InvalidQueryParameterValue", "comp"),
        (Kind.QUEUE, "PUT", {"comp": "list"}, "InvalidQueryParameterValue", "comp"),
        (Kind.ACCOUNT, "GET", {"comp": "stats"}, "MissingRequiredQueryParameter", "restype"),
        (
            Kind.ACCOUNT,
            "GET",
            {"comp": "properties", "restype": "queue"},
            "InvalidQueryParameterValue",
            "restype",
        ),
        (Kind.MESSAGES, "GET", {"peekonly": "1"}, "InvalidQueryParameterValue", "peekonly"),
    ],
)
def test_wrong_component_names_the_parameter(
    kind: Kind, method: str, params: dict[str, str], code: str, name: str
) -> None:
    """What is missing or wrong in the query is said by name."""
    with pytest.raises(Fault) as caught:
        operation_of(kind, method, params)
    assert caught.value.code == code
    assert caught.value.details[0] == ("QueryParameterName", name)
