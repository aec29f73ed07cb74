"""A certificate for the loopback address, and the key file of a service account whose tokens come from loopback."""

import json
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

LOOPBACK = "127.0.0.1"  # not localhost, which may also be an address where another user listens
ACCESS_TOKEN = "loopback-access-token-7f3a"  # noqa: S105 - of no other server
DEVELOPER_TOKEN = "loopback-developer-token-22"  # noqa: S105 - the same
CERTIFICATE, PRIVATE_KEY, KEY_FILE = "cert.pem", "key.pem", "service-account.json"


def write_certificate(folder: Path) -> None:
    """A key pair for TLS on the loopback address, valid for a day.

    Each certificate has a name of its own: of several trusted ones with the same name, TLS compares only the first.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"ads_pipeline {serial:x}"[:64])])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(LOOPBACK))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write_secret(folder / PRIVATE_KEY, _encode_key(key))
    (folder / CERTIFICATE).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def write_key_file(folder: Path, token_uri: str) -> Path:
    """The key file of a service account. It names its own token server, so authentication is real on loopback."""
    account = {
        "type": "service_account",
        "client_email": "robot@example.invalid",
        "private_key_id": "1",
        "private_key": _encode_key(rsa.generate_private_key(65537, 2048)).decode(),
        "token_uri": token_uri,
    }
    return _write_secret(folder / KEY_FILE, json.dumps(account).encode())


def _encode_key(key: Any) -> bytes:
    encoded: bytes = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return encoded


def _write_secret(path: Path, content: bytes) -> Path:
    path.touch(mode=0o600)
    path.write_bytes(content)
    return path
