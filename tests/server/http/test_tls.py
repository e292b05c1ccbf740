"""A server that shows a certificate."""

from __future__ import annotations

import json
import ssl
from contextlib import closing
from http.client import HTTPSConnection
from pathlib import Path

import pytest

from octavo.errors import OctavoError
from octavo.runtime import Model
from octavo.server.engine.fake import FakeClient
from octavo.server.http.tls import Certificate, certificate
from tests.limits import HANG_S
from tests.server.live_server import events, running
from tests.server.test_front import MESSAGES

FILES = Path(__file__).parents[2] / "data" / "tls"
CERT, KEY = str(FILES / "cert.pem"), str(FILES / "key.pem")


def test_requests_and_streams(model: Model, caplog: pytest.LogCaptureFixture) -> None:
    trusted = ssl.create_default_context(cafile=CERT)
    with running(FakeClient([16]), model, certificate=Certificate(CERT, KEY)) as server:
        with closing(HTTPSConnection("localhost", server.port, timeout=HANG_S, context=trusted)) as connection:
            for stream in (False, True):
                body = json.dumps({"messages": MESSAGES, "max_tokens": 3, "stream": stream})
                origin = f"https://localhost:{server.port}"
                headers = {"Content-Type": "application/json", "Origin": origin}
                connection.request("POST", "/v1/chat/completions", body, headers)
                response = connection.getresponse()
                data = response.read()
                assert response.status == 200, data
                text = model.tokenizer.decode([16] * 3)
                if stream:
                    parts = [e["choices"][0]["delta"].get("content", "") for e in events(data)[:-1]]
                    assert "".join(parts) == text
                else:
                    assert json.loads(data)["choices"][0]["message"]["content"] == text
        with (
            closing(HTTPSConnection("localhost", server.port, timeout=HANG_S)) as strict,
            pytest.raises(ssl.SSLCertVerificationError),
        ):
            strict.request("GET", "/health")
        with closing(server.connect()) as plain:
            plain.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert not plain.recv(100).startswith(b"HTTP/")
        with closing(HTTPSConnection("127.0.0.1", server.port, timeout=HANG_S, context=trusted)) as connection:
            connection.request("GET", "/health")
            assert connection.getresponse().status == 200
    assert [record.getMessage() for record in caplog.records if "Traceback" in (record.exc_text or "")] == []


def test_a_certificate_that_is_cut(tmp_path: Path) -> None:
    cut = tmp_path / "cut.pem"
    cut.write_text(Path(CERT).read_text()[:200])
    with pytest.raises(OctavoError, match=r"cut\.pem: can't be used with the key"):
        certificate(str(cut), KEY)


def test_neither_is_plain_http() -> None:
    assert certificate(None, None) is None
