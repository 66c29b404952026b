"""Bodies: codecs, base64, compression, and bodies over the limit of a service."""

from leasehold.worker.adapters.texts import (
    Base64Policy,
    EncodingProblem,
    decode_text,
    detect_base64,
    encode_text,
)
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
    BytesCodec,
    Codec,
    CodecProblem,
    Compressed,
    JsonCodec,
    TextCodec,
    TypedCodec,
    codec_named,
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
