"""Leasehold as a broker of Celery, and of whatever else speaks through kombu.

``broker_url = "leasehold+http://account:key@host:10001"`` needs no import: kombu imports this
package by its entry point, which makes the scheme known. Where entry points are not to be had (a
frozen application), ``import leasehold.brokers.kombu`` does the same.

Options and what each feature of AMQP becomes: ``docs/reference/celery.md``.
"""

from __future__ import annotations

from typing import Final

from kombu.transport import TRANSPORT_ALIASES
from kombu.utils.json import dumps, loads

SCHEME: Final = "leasehold"
TRANSPORT_ALIASES[SCHEME] = "leasehold.brokers.kombu.transport:Transport"

SERIALIZER: Final = (dumps, loads, "application/x-leasehold-json", "utf-8")
"""JSON as kombu has it, under a name of our own.

Kombu loads no transports by entry points, but it does load serializers: what this one is for is
that loading it imports this package. See ``docs/decisions/0055-celery.md``.
"""
