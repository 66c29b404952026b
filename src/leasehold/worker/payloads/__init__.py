"""Bodies: codecs, base64, compression, and bodies over the limit of a service."""

from leasehold.worker.payloads.claim_check import (
    CheckedReader,
    ClaimCheck,
    ClaimCheckCodec,
    ClaimChecked,
    ClaimCheckProblem,
    KeptBody,
    Reference,
)
from leasehold.worker.payloads.codecs import (
    Base64Policy,
    BytesCodec,
    Codec,
    CodecProblem,
    Compressed,
    EncodingProblem,
    JsonCodec,
    TextCodec,
    TypedCodec,
    codec_named,
    decode_text,
    detect_base64,
    encode_text,
)

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
