"""An issuer of bearer tokens for tests: its keys, its key set, its tokens."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from tests.unit.auth.support import HOUR_MS, NOON_MS

ISSUER = "https://login.example.net/directory/v2.0"
AUDIENCE = "https://storage.example.net/"


@cache
def rsa_key(name: str = "main", bits: int = 2048) -> rsa.RSAPrivateKey:
    """Return a key pair, the same for the same name."""
    return rsa.generate_private_key(public_exponent=65_537, key_size=bits)


@cache
def ec_key(curve: str = "P-256") -> ec.EllipticCurvePrivateKey:
    """Return a key pair on a curve."""
    curves: dict[str, ec.EllipticCurve] = {
        "P-256": ec.SECP256R1(),
        "P-384": ec.SECP384R1(),
        "secp256k1": ec.SECP256K1(),
    }
    return ec.generate_private_key(curves[curve])


def jwk_of(
    key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey, key_id: str = "main", **extra: Any
) -> dict[str, Any]:
    """Return the public key as an entry of a key set."""
    public = key.public_key()
    text = (
        RSAAlgorithm.to_jwk(public)
        if isinstance(public, rsa.RSAPublicKey)
        else ECAlgorithm.to_jwk(public)
    )
    entry = json.loads(text)
    entry.pop("key_ops", None)
    return {**entry, "kid": key_id, **extra}


def nameless(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> dict[str, Any]:
    """Return the public key as an entry of a key set that gives it no id."""
    return {name: value for name, value in jwk_of(key).items() if name != "kid"}


def claims(**changes: Any) -> dict[str, Any]:
    """Return the claims of a good token, with changes; a claim given as None is left out."""
    usual = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "exp": (NOON_MS + HOUR_MS) // 1000,
        "nbf": NOON_MS // 1000,
        "oid": "user",
        "tid": "directory",
        "roles": ["Storage Queue Data Reader"],
        **changes,
    }
    return {name: value for name, value in usual.items() if value is not None}


def token(
    said: dict[str, Any] | None = None,
    *,
    key: Any = None,
    algorithm: str = "RS256",
    key_id: str | None = "main",
) -> str:
    """Return a signed token."""
    headers = {} if key_id is None else {"kid": key_id}
    signer = rsa_key() if key is None else key
    return jwt.encode(said or claims(), signer, algorithm=algorithm, headers=headers)
