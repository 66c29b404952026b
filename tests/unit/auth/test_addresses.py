"""Client addresses and ranges of them."""

from __future__ import annotations

import pytest

from leasehold.auth.sas import address_within, parse_address_range


@pytest.mark.parametrize(
    ("allowed", "inside", "outside"),
    [
        ("168.1.5.65", ["168.1.5.65"], ["168.1.5.64", "168.1.5.66", "::1"]),
        (
            "168.1.5.60-168.1.5.70",
            ["168.1.5.60", "168.1.5.65", "168.1.5.70", "::ffff:168.1.5.65"],
            ["168.1.5.59", "168.1.5.71", "::168.1.5.65"],
        ),
        ("2001:db8::1", ["2001:db8::1", "2001:DB8:0::1", "2001:db8::1%eth0"], ["2001:db8::2"]),
        ("2001:db8::-2001:db8::ff", ["2001:db8::", "2001:db8::ff"], ["2001:db8::100", "1.2.3.4"]),
        ("::ffff:10.0.0.1", ["10.0.0.1"], ["10.0.0.2"]),
    ],
)
def test_range_holds_both_ends(allowed: str, inside: list[str], outside: list[str]) -> None:
    """Both ends belong to a range; an IPv4 address is the same when mapped into IPv6."""
    addresses = parse_address_range(allowed)
    assert addresses is not None
    assert [ip for ip in inside if not address_within(addresses, ip)] == []
    assert [ip for ip in outside if address_within(addresses, ip)] == []


@pytest.mark.parametrize(
    "text",
    [
        *("", "-", "10.0.0.1-", "-10.0.0.1", "10.0.0.2-10.0.0.1", "10.0.0.0/8", "10.0.0.1-2"),
        *("10.0.0.1-::1", "10.0.0.1,10.0.0.2", "010.0.0.1", " 10.0.0.1", "localhost", "10.0.0"),
        "10.0.0.1-10.0.0.2-10.0.0.3",
    ],
)
def test_what_is_no_range(text: str) -> None:
    """Networks, lists, reversed and mixed ranges are not understood."""
    assert parse_address_range(text) is None


@pytest.mark.parametrize("client_ip", ["", "unix:", "999.1.1.1", "testclient"])
def test_unreadable_client_is_outside(client_ip: str) -> None:
    """A client whose address cannot be read is in no range."""
    addresses = parse_address_range("0.0.0.0-255.255.255.255")
    assert addresses is not None
    assert not address_within(addresses, client_ip)
