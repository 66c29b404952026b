"""The native dialect: everything the server can do, as JSON over HTTP."""

from leasehold.http.native.call import Services
from leasehold.http.native.dialect import MAX_REQUEST_BODY_BYTES, NativeDialect

__all__ = ["MAX_REQUEST_BODY_BYTES", "NativeDialect", "Services"]
