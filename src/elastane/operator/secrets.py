"""What a job's master is trusted by: a token of its own, and a certificate of its own."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

MASTER_HOST_NAME = "elastane-master"
"""The name in every master's certificate; which master it is, the certificate itself says."""

VALID_DAYS = 3650


@dataclass(frozen=True)
class Credentials:
    """A token, and a certificate with its key, as PEM text."""

    token: str
    certificate: str
    key: str


def new_credentials(now: datetime | None = None) -> Credentials:
    """Make a token and a certificate that signs itself; clients trust exactly this one."""
    start = now or datetime.now(UTC)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, MASTER_HOST_NAME)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # The clocks of a cluster's machines differ.
        .not_valid_before(start - timedelta(days=1))
        .not_valid_after(start + timedelta(days=VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(MASTER_HOST_NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Credentials(
        secrets.token_urlsafe(32),
        certificate.public_bytes(serialization.Encoding.PEM).decode(),
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode(),
    )
