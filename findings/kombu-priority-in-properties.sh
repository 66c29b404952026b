#!/usr/bin/env bash
# kombu: a priority in `properties` works with the transport memory:// and not with AMQP.
#
# Packages: kombu 5.7.0, amqp as it requires (PyPI)
# Expected: `prepare_message(body, properties={"priority": 3})` means the same to each transport.
# Seen: the virtual transports take it; the channel of py-amqp raises a TypeError, as it passes the
#   priority twice. The same for a text without content_encoding.
# Whom it bites: producers and tests that use memory:// in place of RabbitMQ.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check 'kombu==5.7.0'
"$folder/venv/bin/python" - <<'PYTHON'
import sys

from kombu import Connection
from kombu.transport.pyamqp import Channel


class Unconnected(Channel):
    def __init__(self):
        pass


def outcome(prepare):
    try:
        prepare("text", properties={"priority": 3}, content_encoding="utf-8")
    except TypeError as error:
        return f"TypeError: {error}"
    return "taken"


virtual = outcome(Connection("memory://").channel().prepare_message)
amqp = outcome(Unconnected().prepare_message)
print("memory://:", virtual)
print("amqp://:  ", amqp)
sys.exit(not (virtual == "taken" and amqp.startswith("TypeError")))
PYTHON
