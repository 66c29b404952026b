"""Client addresses and the ranges that a shared access signature can be limited to."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import NamedTuple


class AddressRange(NamedTuple):
    """Addresses from *first* to *last*, both included, of one IP version."""

    first: IPv4Address | IPv6Address
    last: IPv4Address | IPv6Address


def parse_address_range(text: str) -> AddressRange | None:
    """Read one address, or two joined by a dash; None when it is neither.

    Source: Azure Storage, "Create a service SAS", field ``sip``. That page speaks of IPv4 only;
    IPv6 is taken as well.
    """
    first_text, dash, last_text = text.partition("-")
    first = _address(first_text)
    last = _address(last_text) if dash else first
    if first is None or last is None or first.version != last.version:
        return None
    return AddressRange(first, last) if int(first) <= int(last) else None


def address_within(addresses: AddressRange, client_ip: str) -> bool:
    """Tell whether *client_ip* lies in the range; an address that cannot be read does not."""
    client = _address(client_ip)
    if client is None or client.version != addresses.first.version:
        return False
    return int(addresses.first) <= int(client) <= int(addresses.last)


@lru_cache(maxsize=1024)
def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(text)
    except ValueError:
        return None
    # A server that listens on IPv6 sees IPv4 clients as ::ffff:a.b.c.d.
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address
