"""`octavo serve` with options that are wrong: one line, and no server."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from octavo.cli import serve
from octavo.cli.serve import nbytes
from octavo.errors import UsageError
from tests.cli.conftest import Run


@pytest.mark.parametrize(
    ("text", "wanted"), [("4G", 4 << 30), ("512M", 512 << 20), ("1.5k", 1536), ("1000000", 1000000)]
)
def test_bytes(text: str, wanted: int) -> None:
    assert nbytes(text) == wanted


@pytest.mark.parametrize("text", ["", "G", "-1", "0", "4X", "nan", "inf", "1e400"])
def test_what_is_no_number_of_bytes(text: str) -> None:
    with pytest.raises(UsageError, match="kv-memory"):
        nbytes(text)


def test_a_port_that_is_taken(octavo: Run) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = octavo("serve", "demo", "--port", str(port))
    assert str(port) in result.error()


def test_a_file_without_keys(octavo: Run, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("\n\n")
    result = octavo("serve", "demo", "--api-key-file", str(keys))
    assert "no key" in result.error()


def test_a_key_that_no_header_can_have(octavo: Run) -> None:
    result = octavo("serve", "demo", "--api-key", "schlüssel")
    assert "API key" in result.error()


@pytest.mark.parametrize("origin", ["chat.example.org", "https://chat.example.org/", "https://", ""])
def test_an_origin_that_no_browser_has(octavo: Run, origin: str) -> None:
    result = octavo("serve", "demo", "--cors-origin", origin)
    assert f"--cors-origin is {origin!r} (allowed: as https://" in result.error()


@pytest.mark.parametrize("host", ["https://llm.example.org", "llm.example.org:8080", ""])
def test_a_host_that_no_request_has(octavo: Run, host: str) -> None:
    result = octavo("serve", "demo", "--allow-host", host)
    assert f"--allow-host is {host!r} (allowed: a name" in result.error()


def test_hosts_and_origins_as_browsers_write_them() -> None:
    origins = ["https://Chat.example.org:8443", "null", "*"]
    assert serve._origins(origins) == ("https://chat.example.org:8443", "null", "*")
    assert serve._hosts(["llm.example.org", "*"]) == ("llm.example.org", "*")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--kv-memory", "1K"), "--kv-memory is 1024 (allowed: "),
        (("--device", "cpu", "--attention", "int8"), "--attention is int8 on device cpu (allowed: exact, or a GPU)"),
        (("-c", "4096"), "-c is 4096, but the model was made for 1024 tokens (allowed: 1 to 1024)"),
    ],
)
def test_what_the_engine_refuses(octavo: Run, arguments: tuple[str, ...], told: str) -> None:
    """The option is named as it was typed, though the engine is another process."""
    assert told in octavo("serve", "demo", "--port", "0", *arguments).error()
