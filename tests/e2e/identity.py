"""A small identity provider made of files: a certificate, a key set, and signed tokens."""

from __future__ import annotations

import datetime as dt
import ipaddress
import json
from typing import TYPE_CHECKING, Any, Final

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from leasehold.clock import SystemClock

if TYPE_CHECKING:
    from pathlib import Path

TENANT: Final = "11111111-1111-4111-8111-111111111111"
USER: Final = "22222222-2222-4222-8222-222222222222"
ISSUER: Final = f"https://identity.test/{TENANT}/"
AUDIENCE: Final = "https://storage.azure.com"
_CLOCK: Final = SystemClock()


def now() -> dt.datetime:
    """Return the time of day in UTC, in whole seconds."""
    return dt.datetime.fromtimestamp(_CLOCK.now_ms() // 1000, dt.UTC)


class IdentityProvider:
    """Issues tokens that a server trusts which was started with :meth:`server_options`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._other_key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.certificate_file = folder / "certificate.pem"
        self.key_file = folder / "key.pem"
        self.jwks_file = folder / "jwks.json"
        _write_certificate(self._key, self.certificate_file, self.key_file)
        public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self._key.public_key()))
        public |= {"kid": "test", "use": "sig", "alg": "RS256"}
        self.jwks_file.write_text(json.dumps({"keys": [public]}))

    def token(self, *, forged: bool = False, **changed_claims: Any) -> str:
        """Return a signed token; *forged* signs it with a key the server does not know."""
        issued = now()
        claims = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": USER,
            "oid": USER,
            "tid": TENANT,
            "roles": ["Storage.Queue.Data.Contributor", "Storage.Account.Contributor"],
            "iat": issued,
            "nbf": issued - dt.timedelta(minutes=5),
            "exp": issued + dt.timedelta(hours=1),
        } | changed_claims
        key = self._other_key if forged else self._key
        return jwt.encode(claims, key, algorithm="RS256", headers={"kid": "test"})

    def server_options(self) -> dict[str, str]:
        """Return the options of ``leasehold serve`` for https and for these tokens."""
        return {
            "--tls-cert": str(self.certificate_file),
            "--tls-key": str(self.key_file),
            "--oidc-issuer": ISSUER,
            "--oidc-audience": AUDIENCE,
            "--oidc-jwks": str(self.jwks_file),
        }


def _write_certificate(key: rsa.RSAPrivateKey, certificate_file: Path, key_file: Path) -> None:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "leasehold test server")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now() - dt.timedelta(hours=1))
        .not_valid_after(now() + dt.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(
            x509.SubjectAlternativeName(
                [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
            ),
            critical=False,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    certificate_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
