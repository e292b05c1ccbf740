"""The certificate that a server shows where it speaks TLS itself."""

from __future__ import annotations

import ssl
from typing import NamedTuple

from octavo.errors import FileError, UsageError
from octavo.io.regular_file import read_text

MOST_BYTES = 1 << 20


class Certificate(NamedTuple):
    """Files in PEM: a certificate with those that it rests on after it, and its private key."""

    cert: str
    key: str


def certificate(cert: str | None, key: str | None) -> Certificate | None:
    """The certificate of two files; None for neither. Raises UsageError, FileError for what no server can show."""
    if cert is None or key is None:
        if cert is key:
            return None
        given, missing = (
            ("--ssl-key-file", "--ssl-cert-file") if cert is None else ("--ssl-cert-file", "--ssl-key-file")
        )
        raise UsageError(f"{given} needs {missing}")
    if "-----BEGIN CERTIFICATE-----" not in read_text(cert, MOST_BYTES):
        raise FileError("no certificate in PEM, with BEGIN CERTIFICATE", file=cert)
    text = read_text(key, MOST_BYTES)
    if "PRIVATE KEY-----" not in text:
        raise FileError("no private key in PEM, with BEGIN PRIVATE KEY", file=key)
    if "ENCRYPTED" in text:
        raise FileError("the private key has a password; use one without", file=key)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, lambda: b"")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise FileError(f"not the key of the certificate in {cert}", file=key) from None
        raise FileError(f"can't be used with the key in {key}: {error.reason or error}", file=cert) from None
    return Certificate(cert, key)
