"""The dialect of Alibaba Cloud's Message Service (MNS, also Simple Message Queue)."""

from leasehold.http.mns.dialect import MAX_REQUEST_BODY_BYTES, MnsDialect

__all__ = ["MAX_REQUEST_BODY_BYTES", "MnsDialect"]
