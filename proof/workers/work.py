"""What every worker here does for a message: asks the web service of ``leasehold certify``."""

from __future__ import annotations

import http.client
import os
from urllib.parse import urlsplit

QUEUE = os.environ.get("CERTIFY_QUEUE", "certify")
POISON_QUEUE = os.environ.get("CERTIFY_POISON_QUEUE", "certify-poison")
CONNECTION_STRING = os.environ.get("CERTIFY_CONNECTION_STRING", "UseDevelopmentStorage=true")
MNS_ENDPOINT = os.environ.get("CERTIFY_MNS_ENDPOINT", "")
MNS_KEY_ID = os.environ.get("CERTIFY_MNS_ACCESS_KEY_ID", "")
MNS_SECRET = os.environ.get("CERTIFY_MNS_ACCESS_KEY_SECRET", "")
LEASE_S = int(os.environ.get("CERTIFY_VISIBILITY_TIMEOUT_S", "4"))
MAX_ATTEMPTS = int(os.environ.get("CERTIFY_MAX_ATTEMPTS", "5"))


class WorkFailed(Exception):
    """The service says that the work did not go well."""


def work(text: str, step: int = 0) -> None:
    """Do the work of a message, or a step of it.

    Raises:
        WorkFailed: It did not go well.
    """
    url = urlsplit(os.environ["CERTIFY_WORK_URL"])
    connection = http.client.HTTPConnection(url.netloc, timeout=120)
    try:
        connection.request("POST", f"{url.path}/{step}" if step else url.path, text.encode())
        status = connection.getresponse().status
    finally:
        connection.close()
    if status != 200:
        raise WorkFailed(f"the work of {text[:50]!r} was answered by {status}")
