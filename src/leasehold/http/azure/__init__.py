"""The Azure Queue Storage dialect."""

from leasehold.http.azure.dialect import MAX_REQUEST_BODY_BYTES, AzureDialect

__all__ = ["MAX_REQUEST_BODY_BYTES", "AzureDialect"]
