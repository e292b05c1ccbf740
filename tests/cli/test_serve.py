"""`octavo serve` with options that are wrong: one line, and no server."""

from __future__ import annotations

import importlib.util
import socket
from pathlib import Path

import pytest

from octavo.cli.serve import command as serve
from octavo.cli.serve import options
from octavo.cli.serve.options import nbytes
from octavo.errors import OctavoError, UsageError
from octavo.server.serve_options import EngineOptions, KVEvents, ServerOptions
from tests.cli.conftest import Run
from tests.runtime import tiny
from tests.server.http.test_tls import CERT, FILES, KEY


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


def test_what_stands_behind_a_key_is_not_shown(octavo: Run, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("sk-bbb\nname=x sk-aaa\n")
    error = octavo("serve", "demo", "--api-key-file", str(keys)).error()
    assert "behind key 2 stands something other than name=NAME" in error
    assert "sk-aaa" not in error


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


@pytest.mark.parametrize(("events", "said"), [
    (KVEvents("tcp://*:5557", "tcp://*:5558"), "published at tcp://*:5557, and again on request at tcp://*:5558"),
    (KVEvents("tcp://router:5557"), "sent to a reader that listens at tcp://router:5557"),
])
def test_a_line_says_where_kv_events_go(events: KVEvents, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as sock:
        serve._tell(ServerOptions("demo"), sock, events)
        serve._tell(ServerOptions("demo"), sock, events, 2)
    lines = capsys.readouterr().err.splitlines()
    assert lines[1] == f"octavo: KV events are {said}"
    assert lines[3] == f"octavo: KV events of replica 0 are {said}"
    assert lines[4].startswith("octavo: KV events of replica 1 are ")
    assert ":5558" in lines[4]


def test_replicas_publish_kv_events_at_ports_of_their_own(tmp_path: Path) -> None:
    apart = "tcp://*:5557", "tcp://*:5561", "kv"
    assert serve.Routers(*apart).options(4, here=False) == KVEvents(*apart)
    assert serve.Routers("tcp://localhost:5557", "tcp://*:5558").options(4, here=False), "the first is the router's"
    for routers, n, words in (
        (serve.Routers("tcp://*:5557", "tcp://*:5558"), 2, r"\(allowed: ports that are 2 or more apart\)"),
        (serve.Routers("tcp://*:5557", "tcp://[::]:5554"), 4, "ports that are 4 or more apart"),
        (serve.Routers("tcp://*:65535"), 2, r"--kv-events is tcp://\*:65535: --replicas is 2,.*up to 65534\)"),
    ):
        with pytest.raises(UsageError, match=words):
            routers.options(n)
    (tmp_path / "events.1").write_bytes(b"precious")
    assert serve.Routers(f"ipc://{tmp_path}/events").options(1) is not None
    with pytest.raises(UsageError, match=r"events.1: a file that is not a socket is there"):
        serve.Routers(f"ipc://{tmp_path}/events").options(2)


def test_ports_of_kv_events_are_looked_at_before_the_model_is_loaded() -> None:
    """Of every replica of this machine: one that can't publish would be started again and again."""
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        asked = serve.Routers(f"tcp://*:{port}")
        with pytest.raises(UsageError, match=rf"can't be published at tcp://\*:{port}: Address already in use"):
            asked.options(2)
        assert asked.options(2, here=False)


def test_a_path_of_kv_events_is_looked_at_before_the_model_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"precious")
    for routers in (
        serve.Routers(kv_events=f"ipc://{tmp_path}/precious"),
        serve.Routers(kv_events=f"ipc://{tmp_path}/free", replay=f"ipc://{tmp_path}/precious"),
        serve.Routers(kv_events="tcp://nohost.invalid:5557"),
    ):
        with pytest.raises(UsageError, match=r"KV events can't be (published|sent)"):
            routers.options()
    assert (tmp_path / "precious").read_bytes() == b"precious"


@pytest.mark.parametrize(("address", "warns"), [("auto", True), ("10.0.0.1:6379", True), ("local", False)])
def test_replicas_of_a_cluster_come_with_a_warning(
    address: str, warns: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("octavo.replicas.ray_actors.RayLauncher", lambda *given: None)
    monkeypatch.setattr("octavo.replicas.serve.serve_front", lambda *given: None)
    monkeypatch.setattr("octavo.server.serve.run", lambda given: given.close())
    serve._run_replicas(serve.Replicas(2, address), EngineOptions("demo"), ServerOptions("demo", port=0))
    assert ("replicas listen on their nodes' addresses" in caplog.text) == warns


def test_hosts_and_origins_as_browsers_write_them() -> None:
    origins = ["https://Chat.example.org:8443", "null", "*"]
    assert options._origins(origins) == ("https://chat.example.org:8443", "null", "*")
    assert options._hosts(["llm.example.org", "*"]) == ("llm.example.org", "*")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--kv-memory", "1K"), "--kv-memory is 1024 (allowed: "),
        (("--device", "cpu", "--attention", "int8"), "--attention is int8 on device cpu (allowed: exact, or a GPU)"),
        (("--kv-events", "ipc:///no/such/folder/events"), "KV events can't be published at ipc:///no/such/folder/events"),
        (("-c", "4096"), "-c is 4096, but the model was made for 1024 tokens (allowed: 1 to 1024)"),
    ],
)
def test_what_the_engine_refuses(octavo: Run, arguments: tuple[str, ...], told: str) -> None:
    """The option is named as it was typed, though the engine is another process."""
    assert told in octavo("serve", "demo", "--port", "0", *arguments).error()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--temp", "-1"], "--temp is -1.0 (allowed: 0 to 100)"),
        (["--presence-penalty", "3"], "--presence-penalty is 3.0 (allowed: -2 to 2)"),
        (["--top-k", "-2"], "--top-k is -2 (allowed: -1 or more)"),
        (["--seed", "-2"], "--seed is -2 (allowed: -1 to "),
        (["--predict", "0"], "is 0 (allowed: 1 or more, or -1 for no limit)"),
        (["--chat-template-kwargs", "{"], "--chat-template-kwargs is not valid JSON"),
        (["--chat-template-kwargs", "[1]"], "--chat-template-kwargs is [1] (allowed: an object"),
        (["--chat-template-kwargs", '{"a": 1, "a": 2}'], "a key occurs twice"),
        (["--chat-template-kwargs", '{"tools": []}'], "has 'tools', which the server sets itself"),
        (["--chat-template-kwargs", '{"a": NaN}'], "--chat-template-kwargs has a number that is"),
        (["--chat-template-file", "nowhere.jinja"], "nowhere.jinja"),
        (["--chat-template-file", "x", "--chat-template", "rag"], "can't be used together"),
        (["--reasoning", "off"], "--reasoning is 'off'"),
        (["--alias", "a,,b"], "--alias is 'a,,b' (allowed: names separated by commas)"),
        (["--kv-events", "5557"], "--kv-events is '5557' (allowed: a ZeroMQ address: tcp://*:5557, "),
        (["--kv-events", "tcp://*:65536"], "--kv-events is 'tcp://*:65536' (allowed: "),
        (["--kv-events", "tcp://*:1", "--kv-events-replay", "x"], "--kv-events-replay is 'x' (allowed: "),
        (["--kv-events", "tcp://*:1", "--kv-events-replay", "tcp://*:1"], "are both tcp://*:1 (allowed: "),
        (["--kv-events-topic", "kv"], "--kv-events-replay and --kv-events-topic need --kv-events"),
    ],
)
def test_defaults_that_can_not_be(octavo: Run, arguments: list[str], said: str) -> None:
    assert said in octavo("serve", "demo", "--port", "0", *arguments).error()


def test_kv_events_without_their_package(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "zmq" else real(name, *more))
    with pytest.raises(OctavoError, match=r"needs pyzmq: zmq is not installed \(pip install .*events"):
        serve.Routers(kv_events="tcp://*:5557").options()
    assert serve.Routers().options() is None


def test_defaults_as_a_server_has_them(tmp_path: Path) -> None:
    """Those of llama-server's names."""
    from octavo.cli.serve.defaults import Defaults

    (tmp_path / "t.jinja").write_text("{{ messages[0].content }}")
    given = Defaults(temp=0.5, top_k=-1, presence_penalty=1.0, seed=7, max_tokens=-1, reasoning="off",
                     template_file=str(tmp_path / "t.jinja"), template_kwargs='{"a": [1]}').given()
    assert given == {
        "sampling": {"temperature": 0.5, "top_k": -1, "presence_penalty": 1.0}, "seed": 7, "max_tokens": -1,
        "reasoning": "off", "variables": {"a": [1]}, "template_text": "{{ messages[0].content }}",
    }


@pytest.mark.parametrize(
    ("cert", "key", "said"),
    [
        (CERT, None, "--ssl-cert-file needs --ssl-key-file"),
        (None, KEY, "--ssl-key-file needs --ssl-cert-file"),
        ("nowhere.pem", KEY, "nowhere.pem: can't be opened"),
        (CERT, "nowhere.pem", "nowhere.pem: can't be opened"),
        (KEY, KEY, "key.pem: no certificate in PEM"),
        (CERT, CERT, "cert.pem: no private key in PEM"),
        (CERT, str(FILES / "other.pem"), "other.pem: not the key of the certificate in"),
        (CERT, str(FILES / "locked.pem"), "locked.pem: the private key has a password; use one without"),
        (str(FILES), KEY, "tls: "),
    ],
)
def test_files_that_no_server_can_show(cert: str | None, key: str | None, said: str, octavo: Run) -> None:
    given = [*(["--ssl-cert-file", cert] if cert else []), *(["--ssl-key-file", key] if key else [])]
    assert said in octavo("serve", "demo", "--port", "0", *given).error()


@pytest.mark.parametrize("template", [None, "{{ messages[0].content }}"])
def test_a_model_without_a_chat_template_is_told_of(
    octavo: Run, tmp_path: Path, template: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.server.serve.run", lambda serving: serving.close())
    path = tiny.write(tmp_path / "base.gguf", weights=tiny.alphabet(), keys={"tokenizer.chat_template": template})
    said = "base has no chat template: messages are written as ChatML, and replies end after 512 tokens"
    assert (said in octavo("serve", path, "--port", "0").err) is (template is None)
