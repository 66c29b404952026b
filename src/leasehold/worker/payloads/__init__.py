"""Bodies: codecs, base64, compression, and bodies over the limit of a service."""

from leasehold.worker.payloads.base64_text import (
    Base64Policy,
    EncodingProblem,
    decode_text,
    detect_base64,
    encode_text,
)
from leasehold.worker.payloads.claim_check import ClaimCheck, ClaimCheckCodec
from leasehold.worker.payloads.claim_checked import ClaimChecked
from leasehold.worker.payloads.codecs import (
    BytesCodec,
    Codec,
    CodecProblem,
    JsonCodec,
    TextCodec,
    TypedCodec,
    codec_named,
)
from leasehold.worker.payloads.compression import Compressed
from leasehold.worker.payloads.reading import CheckedReader
from leasehold.worker.payloads.reference import ClaimCheckProblem, KeptBody, Reference

__all__ = [
    "Base64Policy",
    "BytesCodec",
    "CheckedReader",
    "ClaimCheck",
    "ClaimCheckCodec",
    "ClaimCheckProblem",
    "ClaimChecked",
    "Codec",
    "CodecProblem",
    "Compressed",
    "EncodingProblem",
    "JsonCodec",
    "KeptBody",
    "Reference",
    "TextCodec",
    "TypedCodec",
    "codec_named",
    "decode_text",
    "detect_base64",
    "encode_text",
]
