"""/v1/files and /v1/batches on real sockets, as OpenAI's client asks for them; restarts, keys, limits, priority."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from octavo.batch.served import batches as batches_module
from octavo.batch.served import files as files_module
from octavo.batch.served import runner
from octavo.errors import FileError
from octavo.runtime import Model
from octavo.server.engine.engine_protocol import Add, EngineOutput, Prefill
from octavo.server.engine.fake import FakeClient
from octavo.server.serve_options import Limits
from tests.limits import HANG_S
from tests.server.conftest import model  # noqa: F401
from tests.server.live_server import Server, running, running_model
from tests.server.scripted_engine import BODY, Played, request, until

CHAT = "/v1/chat/completions"


def line(i: int, text: str = "What is 3 plus 4?", url: str = CHAT, **more: Any) -> dict[str, Any]:
    body = {"model": "demo", "messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 6, **more}
    return {"custom_id": f"r{i}", "method": "POST", "url": url, "body": body}


def jsonl(*lines: Any) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in lines)


def client_of(server: Server, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)


@pytest.fixture(scope="module")
def server(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:  # noqa: F811
    with running_model(model, data_dir=str(tmp_path_factory.mktemp("data"))) as found:
        yield found


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with client_of(server) as found:
        yield found


def made(client: openai.OpenAI, data: bytes, endpoint: str = CHAT, **more: Any) -> Any:
    source = client.files.create(file=("in.jsonl", data), purpose="batch")
    return client.batches.create(input_file_id=source.id, endpoint=endpoint, completion_window="24h", **more)  # type: ignore[arg-type]


def ended(client: openai.OpenAI, one: str) -> Any:
    end = time.monotonic() + HANG_S
    while (found := client.batches.retrieve(one)).status not in batches_module.ENDED:
        assert time.monotonic() < end
        time.sleep(0.05)
    return found


def lines_of(client: openai.OpenAI, one: str) -> dict[str, Any]:
    found = [json.loads(row) for row in client.files.content(one).text.splitlines()]
    assert len({row["custom_id"] for row in found}) == len(found)
    return {row["custom_id"]: row for row in found}


def test_what_is_on_disk_is_the_users_alone(model: Model, tmp_path: Path) -> None:  # noqa: F811
    tmp_path.chmod(0o755)
    with running_model(model, data_dir=str(tmp_path)) as server, client_of(server) as client:
        ended(client, made(client, jsonl(line(1), line(2, "x " * 9000))).id)
        made(client, jsonl(*(line(i, ignore_eos=True, max_tokens=200) for i in range(1, 50))))
        until(lambda: any(tmp_path.rglob("batches/*.jsonl")))
        found = {one: stat.S_IMODE(one.stat().st_mode) for one in tmp_path.rglob("*")}
    wrong = {path.name for path, mode in found.items() if mode != (0o700 if path.is_dir() else 0o600)}
    assert not wrong, found
    assert len(found) > 8


def test_files(client: openai.OpenAI) -> None:
    data = jsonl(line(1)) * 3
    one = client.files.create(file=("some/where/in.jsonl", data), purpose="batch")
    assert (one.object, one.purpose, one.filename, one.bytes, one.status) == (
        "file", "batch", "in.jsonl", len(data), "processed")
    assert one.expires_at == one.created_at + 30 * 24 * 3600
    two = client.files.create(file=b"x", purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600})
    assert two.expires_at == two.created_at + 3600
    assert client.files.retrieve(one.id) == one
    assert client.files.content(one.id).content == data
    ids = [found.id for found in client.files.list(purpose="batch")]
    assert ids[:2] == [two.id, one.id]
    assert [found.id for found in client.files.list(limit=1)][:2] == [two.id, one.id]
    assert client.files.delete(one.id).deleted
    for ask in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError, match=f"No such File object: {one.id}") as found:
            ask(one.id)
        assert (found.value.type, found.value.param) == ("invalid_request_error", "id")
    with pytest.raises(openai.BadRequestError, match=r"purpose is 'assistants' \(allowed: batch\)"):
        client.files.create(file=b"x", purpose="assistants")


def test_a_batch(client: openai.OpenAI, server: Server) -> None:
    asked = [line(i, f"What is {i} plus {i}?") for i in range(6)] + [line(6, "x " * 9000)]
    batch = made(client, jsonl(*asked), metadata={"a": "b"})
    assert (batch.object, batch.status, batch.metadata) == ("batch", "validating", {"a": "b"})
    done = ended(client, batch.id)
    assert (done.status, done.errors) == ("completed", None)
    assert (done.request_counts.total, done.request_counts.completed, done.request_counts.failed) == (7, 6, 1)
    assert done.created_at <= done.in_progress_at <= done.finalizing_at <= done.completed_at <= done.expires_at
    found = lines_of(client, done.output_file_id)
    for one in asked[:6]:
        response = found[one["custom_id"]]["response"]
        want = server.post(CHAT, **one["body"])
        assert (response["status_code"], found[one["custom_id"]]["error"]) == (200, None)
        assert response["body"]["choices"][0]["message"] == want["choices"][0]["message"]
    failed = lines_of(client, done.error_file_id)
    assert failed["r6"]["response"]["body"]["error"]["code"] == "context_length_exceeded"
    file = client.files.retrieve(done.output_file_id)
    assert (file.purpose, file.filename) == ("batch_output", f"{batch.id}_output.jsonl")
    assert client.batches.list(limit=1).data[0].id == batch.id
    with pytest.raises(openai.ConflictError, match="Cannot cancel a batch with status 'completed'"):
        client.batches.cancel(batch.id)
    client.files.delete(done.input_file_id)


def test_other_endpoints(client: openai.OpenAI) -> None:
    asked = {"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": {"input": "Hello", "temperature": 0,
                                                                                 "max_output_tokens": 4}}
    done = ended(client, made(client, jsonl(asked), "/v1/responses").id)
    response = lines_of(client, done.output_file_id)["a"]["response"]["body"]
    assert client.responses.retrieve(response["id"]).output_text == response["output"][0]["content"][0]["text"]


WRONG: list[tuple[bytes, str, int | None]] = [
    (b"", "empty_file", None), (b"Hello\n", "invalid_input_file", None),
    (jsonl(line(1), line(1)), "duplicate_custom_id", 2), (jsonl(line(1)) + b"{\n", "invalid_json_line", 2),
    (jsonl(line(1, url="/v1/embeddings")), "mismatched_endpoint", 1),
    (jsonl({**line(1), "method": "GET"}), "invalid_method", 1),
    (jsonl({k: v for k, v in line(1).items() if k != "custom_id"}), "missing_required_parameter", 1),
]


@pytest.mark.parametrize(("data", "code", "number"), WRONG, ids=[code for _, code, _ in WRONG])
def test_files_that_are_no_batch(client: openai.OpenAI, data: bytes, code: str, number: int | None) -> None:
    done = ended(client, made(client, data).id)
    assert (done.status, done.output_file_id) == ("failed", None)
    assert [(one.code, one.line) for one in done.errors.data] == [(code, number)]
    assert done.errors.data[0].message


def test_lines_that_are_plain_prompts(client: openai.OpenAI) -> None:
    done = ended(client, made(client, b'"What is 3 plus 4?"\n').id)
    assert lines_of(client, done.output_file_id)["line-1"]["response"]["status_code"] == 200
    done = ended(client, made(client, b'"What is 3 plus 4?"\n', "/v1/responses").id)
    assert [(one.code, one.line) for one in done.errors.data] == [("mismatched_endpoint", 1)]


def test_what_is_refused(client: openai.OpenAI, server: Server) -> None:
    one = client.files.create(file=jsonl(line(1)), purpose="batch").id
    right = {"input_file_id": one, "endpoint": CHAT, "completion_window": "24h"}
    for name, wrong in (("input_file_id", "file-none"), ("endpoint", "/v1/audio/speech"), ("completion_window", "31d"),
                        ("completion_window", "soon"), ("metadata", {str(i): "" for i in range(17)})):
        status, error = server.refused("/v1/batches", {**right, name: wrong})
        assert (status, error["param"]) == (400, name)
    status, _, answer = server.send("GET", "/v1/batches/batch_none")
    assert (status, json.loads(answer)["error"]["message"]) == (404, "No batch found with id 'batch_none'.")
    assert server.send("PUT", "/v1/batches/batch_none")[0] == 405
    for kind, status in (("application/json", 415), ("multipart/form-data", 415)):
        assert server.send("POST", "/v1/files", b"{}", {"Content-Type": kind})[0] == status


METADATA: list[tuple[dict[str, Any], str]] = [
    ({str(i): "" for i in range(17)}, "metadata: 17 keys are too many (allowed: up to 16)"),
    ({"k" * 65: ""}, "metadata: a key has 65 characters (allowed: up to 64)"),
    ({"k": "é" * 513}, "metadata: the value of 'k' has 513 characters (allowed: up to 512)"),
    ({"k": "x" * 12_000_000}, "metadata: the value of 'k' has 12000000 characters"),
    ({"k" * 12_000_000: "x"}, "metadata: a key has 12000000 characters"),
    ({"k" * 12_000_000: 1}, "a key has"), ({"k": 1}, "metadata"), ({"k": None}, "metadata"), ({"k": {}}, "metadata"),
]


@pytest.mark.few(3)
@pytest.mark.parametrize(("metadata", "words"), METADATA, ids=range(len(METADATA)))
def test_metadata_that_is_refused(client: openai.OpenAI, server: Server, metadata: object, words: str) -> None:
    one = client.files.create(file=jsonl(line(1)), purpose="batch").id
    asked = {"input_file_id": one, "endpoint": CHAT, "completion_window": "24h", "metadata": metadata}
    status, error = server.refused("/v1/batches", asked)
    assert (status, error["param"].partition(".")[0]) == (400, "metadata")
    assert words in error["message"]
    assert len(error["message"]) < 2000
    client.files.delete(one)


def test_what_is_accepted_is_read_again(model: Model, tmp_path: Path) -> None:  # noqa: F811
    """The longest metadata, and errors of lines whose fields are long."""
    metadata = {f"{i:02}" + "\x01" * 62: "\x01" * 512 for i in range(16)}
    large = [{**line(i), "url": "\x01" * 200_000} for i in range(100)] + [{**line(100), "\x01" * 200_000: 1}]
    with running(FakeClient(), model, data_dir=str(tmp_path)) as server, client_of(server) as client:
        one = made(client, jsonl(*large), metadata=metadata)
        assert ended(client, one.id).status == "failed"
        before = client.batches.retrieve(one.id)
        assert len(before.errors.data) == 100
    with running(FakeClient(), model, data_dir=str(tmp_path)) as server, client_of(server) as client:
        assert client.batches.retrieve(one.id) == before
        assert before.metadata == metadata


@pytest.mark.parametrize("path", [
    "files/..%2flock/content", "files/a%2fb", "files/..%2f..%2fetc%2fpasswd", "batches/..%2f..", "batches/a/b/c",
    "files/", "batches/a%2fb/cancel", "files/%0a%2f", "files/%00/content", "files//content",
])
def test_paths_that_are_none(server: Server, path: str) -> None:
    for method in ("GET", "POST", "DELETE"):
        for prefix in ("/v1/", "/"):
            status, _, answer = server.send(method, prefix + path, b"{}" if method == "POST" else b"")
            known = path.endswith("%00/content") and method != "GET"
            assert status == (405 if known else 404), answer
            assert "error" in json.loads(answer)
    assert server.send("GET", "/v1/filesx")[0] == server.send("GET", "/v1/x/files")[0] == 404


FORM = {"Content-Type": "multipart/form-data; boundary=b"}
HEAD = b'--b\r\nContent-Disposition: form-data; name="%b"%b\r\n\r\n%b\r\n'
FORMS: list[tuple[bytes, str]] = [
    (b"", "ends too early"), (b"--b\r\n", "ends too early"), (b"nonsense", "not valid"),
    (HEAD % (b"purpose", b"", b"batch") + b"--b--\r\n", "file is missing"),
    (HEAD % (b"file", b'; filename="a"', b"x") + b"--b--\r\n", "purpose is ''"),
    (HEAD % (b"other", b'; filename="a"', b"x") + b"--b--\r\n", "another file"),
    (HEAD % (b"purpose", b"", b"x" * 5000) + b"--b--\r\n", "purpose is too long"),
    (HEAD % (b"a", b"", b"x") * 33 + b"--b--\r\n", "more than 32 fields"),
    (HEAD % (b"file", b'; filename="a"', b"x") + HEAD % (b"purpose", b"", b"batch") + b"--b", "ends too early"),
    (b"--b\r\n" + b"A: b\r\n" * 100, "not valid"),
]


@pytest.mark.parametrize(("body", "words"), FORMS, ids=[words for _, words in FORMS])
def test_forms_that_are_wrong(server: Server, body: bytes, words: str) -> None:
    status, _, answer = server.send("POST", "/v1/files", body, FORM)
    assert status == 400, answer
    assert words in json.loads(answer)["error"]["message"]


def test_limits(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    least = {"most": 2, "most_bytes": 150, "most_file": 100}
    monkeypatch.setattr(files_module.FileStore.__init__, "__kwdefaults__", least)
    monkeypatch.setattr(runner, "MOST_LINES", 2)
    monkeypatch.setattr(batches_module.BatchStore.__init__, "__kwdefaults__", {"most": 2, "most_waiting": 1})
    with running(FakeClient(), model, data_dir=str(tmp_path)) as server, client_of(server) as client:
        with pytest.raises(openai.APIStatusError, match="larger than 100 bytes") as large:
            client.files.create(file=b"x" * 101, purpose="batch")
        assert large.value.status_code == 413
        first = client.files.create(file=b"x" * 99, purpose="batch")
        with pytest.raises(openai.InternalServerError, match="files take 99 bytes") as full:
            client.files.create(file=b"x" * 60, purpose="batch")
        assert (full.value.status_code, full.value.code) == (507, "storage_full")
        client.files.delete(first.id)
        body = jsonl(*({"prompt": str(i)} for i in range(3)))
        done = ended(client, made(client, body, "/v1/completions").id)
        assert [one.code for one in done.errors.data] == ["too_many_requests"]
        client.files.delete(done.input_file_id)
        source = client.files.create(file=jsonl({"prompt": "x"}), purpose="batch").id
        waiting = client.batches.create(input_file_id=source, endpoint="/v1/completions", completion_window="24h")
        with pytest.raises(openai.RateLimitError, match="batches wait or run"):
            client.batches.create(input_file_id=source, endpoint="/v1/completions", completion_window="24h")
        with pytest.raises(openai.ConflictError, match="cancel that first"):
            client.files.delete(source)
        client.batches.cancel(waiting.id)
        assert ended(client, waiting.id).status == "cancelled"
        client.batches.create(input_file_id=source, endpoint="/v1/completions", completion_window="24h")
        assert len(client.batches.list().data) == 2  # the oldest has made room
        names = [path.name for path in (tmp_path / "files").iterdir()]
        assert not [name for name in names if name.startswith(".")]


def adds(fake: FakeClient) -> list[Add]:
    return [one for one in fake.sent if isinstance(one, Add)]


def answer(server: Server, fake: FakeClient, some: Sequence[Add]) -> None:
    for one in some:
        Played(server, fake).say(EngineOutput(one.ids[0], 300, "stop", prefill=Prefill(0, 0, 0.0)))


def test_a_batch_goes_on_after_a_restart(model: Model, tmp_path: Path) -> None:  # noqa: F811
    """What is answered is not asked again; what was under way is."""
    options = {"data_dir": str(tmp_path)}
    fake = FakeClient()
    with running(fake, model, **options) as server, client_of(server) as client:
        batch = made(client, jsonl(*(line(i, str(i)) for i in range(9))))
        until(lambda: len(adds(fake)) == 7)
        answer(server, fake, adds(fake)[:3])
        until(lambda: client.batches.retrieve(batch.id).request_counts.completed == 3)
        first = {tuple(one.prompt) for one in adds(fake)[:3]}
    again = FakeClient([300])
    with running(again, model, **options) as server, client_of(server) as client:
        done = ended(client, batch.id)
        assert done.status == "completed"
        assert (done.request_counts.total, done.request_counts.completed) == (9, 9)
        assert len(lines_of(client, done.output_file_id)) == 9
    asked = [tuple(one.prompt) for one in adds(again)]
    assert len(asked) == len(set(asked)) == 6
    assert not first & set(asked)
    with running(FakeClient(), model, **options) as server, client_of(server) as client:
        assert client.batches.retrieve(batch.id).status == "completed"
        assert len(lines_of(client, done.output_file_id)) == 9


def test_a_batch_is_cancelled_with_what_it_has(model: Model, tmp_path: Path) -> None:  # noqa: F811
    fake = FakeClient()
    with running(fake, model, data_dir=str(tmp_path)) as server, client_of(server) as client:
        batch = made(client, jsonl(*(line(i, str(i)) for i in range(9))))
        until(lambda: len(adds(fake)) == 7)
        answer(server, fake, adds(fake)[:2])
        until(lambda: client.batches.retrieve(batch.id).request_counts.completed == 2)
        assert client.batches.cancel(batch.id).status in ("cancelling", "cancelled")
        done = ended(client, batch.id)
        assert done.status == "cancelled"
        assert done.cancelling_at <= done.cancelled_at
        assert len(lines_of(client, done.output_file_id)) == 2
        until(lambda: server.service.metrics.replies == 0)
        assert sorted(os.listdir(tmp_path / "batches")) == [f"{batch.id}.json"]


@pytest.mark.parametrize("restart", [False, True])
def test_cancelling_on_a_full_disk(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, restart: bool,  # noqa: F811
) -> None:
    """A batch is cancelled and says so, or is not; once it is, it ends when there is room again, restarted or not."""
    full = set[Any]()

    def on(module: Any) -> Any:
        write = module.written_file

        @contextmanager
        def written(path: str, mode: int) -> Iterator[str]:
            if module in full:
                raise FileError("can't be written: No space left on device", file=path)
            with write(path, mode=mode) as temporary:
                yield temporary

        return written

    for module in (batches_module, files_module):
        monkeypatch.setattr(module, "written_file", on(module))
    monkeypatch.setattr(runner, "AGAIN_S", 0.05)
    fake = FakeClient()
    with running(fake, model, data_dir=str(tmp_path)) as server, client_of(server) as client:
        batch = made(client, jsonl(*(line(i, str(i)) for i in range(9))))
        until(lambda: len(adds(fake)) == 7)
        full.add(batches_module)
        with pytest.raises(openai.InternalServerError, match="the batch can't be written: No space left") as refused:
            client.batches.cancel(batch.id)
        assert (refused.value.status_code, refused.value.code) == (507, "storage_full")
        assert str(tmp_path) not in refused.value.message
        found = client.batches.retrieve(batch.id)
        assert (found.status, found.cancelling_at) == ("in_progress", None)
        answer(server, fake, adds(fake)[:2])
        until(lambda: client.batches.retrieve(batch.id).request_counts.completed == 2)  # it goes on

        full = {files_module}
        assert client.batches.cancel(batch.id).status == "cancelling"
        until(lambda: caplog.text.count("it is tried again") >= 3)
        assert client.batches.cancel(batch.id).status == "cancelling"
        if not restart:
            full = set()
            done = ended(client, batch.id)
            assert len(lines_of(client, done.output_file_id)) == 2
    full = set()
    with running(FakeClient(), model, data_dir=str(tmp_path)) as server, client_of(server) as client:
        done = ended(client, batch.id)
        assert (done.status, done.errors) == ("cancelled", None)
        assert len(lines_of(client, done.output_file_id)) == 2
        client.files.delete(done.input_file_id)
    assert sorted(os.listdir(tmp_path / "batches")) == [f"{batch.id}.json"]


def test_a_batch_expires(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    fake = FakeClient()
    with running(fake, model, data_dir=str(tmp_path)) as server, client_of(server) as client:
        batch = made(client, jsonl(*(line(i, str(i)) for i in range(3))))
        until(lambda: len(adds(fake)) == 3)
        answer(server, fake, adds(fake)[:1])
        until(lambda: client.batches.retrieve(batch.id).request_counts.completed == 1)
    monkeypatch.setattr(runner, "time", lambda: time.time() + 25 * 3600)
    with running(FakeClient(), model, data_dir=str(tmp_path)) as server, client_of(server) as client:
        done = ended(client, batch.id)
        assert (done.status, done.request_counts.completed, done.request_counts.failed) == ("expired", 1, 2)
        assert len(lines_of(client, done.output_file_id)) == 1
        failed = lines_of(client, done.error_file_id)
        assert {one["error"]["code"] for one in failed.values()} == {"batch_expired"}


def test_other_requests_go_first(model: Model, tmp_path: Path) -> None:  # noqa: F811
    """Of 8 places a batch takes 7, and fewer while others are asked; each of its lines says that it can wait."""
    fake = FakeClient()
    with running(fake, model, data_dir=str(tmp_path)) as server, client_of(server) as client:
        batch = made(client, jsonl(*(line(i, str(i), priority=-5 if i else 7) for i in range(20))))
        until(lambda: len(adds(fake)) == 7)
        with server.connect() as one, server.connect() as two:
            one.sendall(request(BODY))
            two.sendall(request(BODY))
            until(lambda: len(adds(fake)) == 9)
            answer(server, fake, adds(fake)[:2])
            until(lambda: client.batches.retrieve(batch.id).request_counts.completed == 2)
            time.sleep(0.2)
            assert len(adds(fake)) == 9  # no line takes their places
            answer(server, fake, adds(fake)[2:3])
            until(lambda: len(adds(fake)) == 10)
        until(lambda: len(adds(fake)) == 12)  # they have left
        client.batches.cancel(batch.id)
        ended(client, batch.id)


def test_keys_see_their_own(model: Model, tmp_path: Path) -> None:  # noqa: F811
    options = {"data_dir": str(tmp_path), "keys": ("one", "two")}
    with running(FakeClient([300]), model, **options) as server, client_of(server, "one") as client:
        batch = made(client, jsonl(line(1)))
        done = ended(client, batch.id)
        assert done.status == "completed"
        with client_of(server, "two") as other:
            for ask in (other.files.retrieve, other.files.content, other.files.delete):
                with pytest.raises(openai.NotFoundError):
                    ask(done.output_file_id)
            for look in (other.batches.retrieve, other.batches.cancel):
                with pytest.raises(openai.NotFoundError):
                    look(batch.id)
            assert other.files.list().data == other.batches.list().data == []
            with pytest.raises(openai.BadRequestError, match="No such File object"):
                other.batches.create(input_file_id=done.input_file_id, endpoint=CHAT, completion_window="24h")
        assert server.send("GET", "/v1/files")[0] == 401
    fake = FakeClient()
    with running(fake, model, **options) as server, client_of(server, "one") as client:
        late = made(client, jsonl(line(1)))
        until(lambda: len(adds(fake)) == 1)
    with running(FakeClient([300]), model, data_dir=str(tmp_path), keys=("two",)) as server:
        path = tmp_path / "batches" / f"{late.id}.json"
        until(lambda: json.loads(path.read_text())["status"] == "failed")
        assert json.loads(path.read_text())["errors"][0]["code"] == "invalid_api_key"


def test_damaged_files_are_left_out(model: Model, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:  # noqa: F811
    options = {"data_dir": str(tmp_path)}
    with running(FakeClient(), model, **options) as server, client_of(server) as client:
        one, two = (client.files.create(file=b"x" * 9, purpose="batch") for _ in range(2))
    (tmp_path / "files" / one.id).write_bytes(b"short")
    halves = [tmp_path / "files" / name for name in (f"file-{'h' * 24}", f"file-{'h' * 24}e", f".upload-{'h' * 24}")]
    for half in halves:
        half.write_bytes(b"x")
    (tmp_path / "batches" / "batch_x.json").write_text("{")
    with running(FakeClient(), model, **options) as server, client_of(server) as client:
        assert [found.id for found in client.files.list()] == [two.id]
        assert client.batches.list().data == []
    assert caplog.text.count("is left out") == 2
    assert not [half for half in halves if half.exists()]


def test_files_of_others_stay(model: Model, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:  # noqa: F811
    """A folder may have files/ and batches/ of its own: nothing in them is removed that Octavo did not make."""
    own = ["thesis.docx", "notes.json", "notes", ".hidden", "file-1", f"file-{'a' * 24}.pdf", f"file-{'a' * 24}ox",
           f".upload-{'a' * 24}.part", f"upload-{'a' * 24}", "batch_1.jsonl", "batch_1.jsonl.journal", ".octavo.tmp"]
    for folder in ("files", "batches"):
        (tmp_path / folder).mkdir()
        for name in own:
            (tmp_path / folder / name).write_text(f"{folder} {name}")
    (tmp_path / "files" / f"file-{'b' * 24}").symlink_to(tmp_path / "files" / "thesis.docx")
    (tmp_path / "files" / f"file-{'c' * 24}").mkdir()
    for _ in range(2):
        with running(FakeClient([300]), model, data_dir=str(tmp_path)) as server, client_of(server) as client:
            assert ended(client, made(client, jsonl(line(1))).id).status == "completed"
            client.files.delete(client.files.list().data[0].id)
    for folder in ("files", "batches"):
        assert [(tmp_path / folder / name).read_text() for name in own] == [f"{folder} {name}" for name in own]
    assert (tmp_path / "files" / f"file-{'b' * 24}").is_symlink()
    assert (tmp_path / "files" / f"file-{'c' * 24}").is_dir()


def test_without_a_folder(model: Model) -> None:  # noqa: F811
    with running(FakeClient(), model) as server, client_of(server) as client:
        for ask in (lambda: client.files.create(file=b"x", purpose="batch"), client.files.list, client.batches.list,
                    lambda: client.batches.create(input_file_id="f", endpoint=CHAT, completion_window="24h")):
            with pytest.raises(openai.InternalServerError, match="--data-dir FOLDER") as found:
                ask()
            assert (found.value.status_code, found.value.code) == (501, "no_data_dir")


def test_uploads_of_clients_that_leave_or_send_slowly(model: Model, tmp_path: Path) -> None:  # noqa: F811
    limits = Limits(drain_time=0, body_time=0.3)
    with running(FakeClient(), model, data_dir=str(tmp_path), limits=limits) as server, client_of(server) as client:
        head = (b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=b\r\n"
                b"Content-Length: 100000\r\n\r\n" + HEAD % (b"file", b'; filename="a"', b"x" * 900))
        folder = tmp_path / "files"
        with server.connect() as sock:
            sock.sendall(head)
            until(lambda: len([*folder.iterdir()]) == 1)
        until(lambda: not [*folder.iterdir()])
        with server.connect() as sock:
            sock.sendall(head)
            assert b" 408 " in sock.makefile("rb").readline()
        until(lambda: not [*folder.iterdir()])
        assert client.files.create(file=b"x" * 9, purpose="batch").bytes == 9
