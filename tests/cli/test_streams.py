"""`octavo` as a process: what it reads from, writes to and is interrupted by, and streams that are closed or full."""

from __future__ import annotations

import errno
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run, on_reference, users_environment
from tests.limits import HANG_S
from tests.runtime import tiny
from tests.runtime.tiny import ALPHABET
from tests.sampling import slow

GREEDY = ("--temp", "0")


def test_a_full_disk_is_one_line(alphabet: str) -> None:
    with open("/dev/full", "wb") as full:
        for command, unbuffered in ((["run", alphabet, "hi", *GREEDY], ""), (["inspect", alphabet], "1")):
            done = subprocess.run(
                [sys.executable, "-m", "octavo", *on_reference(command)],
                stdout=full, stderr=subprocess.PIPE, check=False,
                env={**users_environment(), "PYTHONUNBUFFERED": unbuffered},
            )
            assert done.stderr == b"octavo: error: can't write to standard output: No space left on device\n"
            assert done.returncode == 1


def test_errors_of_something_else_are_not_those_of_standard_output(
    octavo: Run, alphabet: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are a line, without a file's name too; -v tells where they came from."""

    raised = list[OSError]()

    def fail(*_: object, **__: object) -> None:
        raise raised[-1]

    monkeypatch.setattr("octavo.runtime.load", fail)
    for error, said in (
        (OSError(errno.ENOSPC, "no room"), "a file: no room"),
        (OSError(errno.ENOSPC, "no room", "a file"), "a file: no room"),
        (OSError("2 requested and 1 written"), "a file: 2 requested and 1 written"),
        (OSError(errno.EPIPE, "gone"), f"an output was closed: [Errno {errno.EPIPE}] gone"),
    ):
        raised.append(error)
        assert octavo("run", alphabet, "hi", *GREEDY).error() == f"octavo: error: {said}"
    raised.append(OSError(errno.ENOSPC, "no room"))
    assert "in fail" in octavo("-v", "run", alphabet, "hi", *GREEDY).err


@pytest.mark.parametrize(("closed", "status", "out"), [
    (">&-", 0, b""), ("2>&-", 0, ALPHABET.encode() + b"\n"), (">&- 2>&- <&-", 0, b""), ("2>/dev/full", 2, b""),
])
def test_streams_that_a_shell_has_closed(alphabet: str, closed: str, status: int, out: bytes) -> None:
    """What would be written to them is nowhere, and in no file that is opened."""
    model = alphabet if status == 0 else "nofile"
    command = shlex.join([sys.executable, "-m", "octavo", *on_reference(["run", model, "a", *GREEDY])])
    done = subprocess.run(["sh", "-c", f"{command} {closed}"], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (status, out, b"")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_who_reads_has_left(alphabet: str, unbuffered: str) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "octavo", *on_reference(["inspect", alphabet])],
        stdout=write, stderr=subprocess.PIPE, env={**users_environment(), "PYTHONUNBUFFERED": unbuffered}, check=False,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (1, b"")


def test_as_a_process(process: Run, alphabet: str, tmp_path: Path) -> None:
    """What only a process of its own shows: exit status, streams, no traceback and no warnings of NumPy."""
    got = process("run", alphabet, *GREEDY, stdin=b"hi")
    assert (got.status, got.out, got.err) == (0, ALPHABET + "\n", "")
    process("run", str(tmp_path / "none.gguf"), "hi").error()


def test_without_standard_input(alphabet: str) -> None:
    command = f'exec "{sys.executable}" -m octavo run "{alphabet}" --device reference <&-'
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("octavo: error: no prompt given")


@pytest.mark.parametrize(
    ("command", "read"),
    [("endless", 3), ("json", 0), ("inspect", 3), *map(slow, [("endless", 0), ("json", 3), ("inspect", 0)])],
)
def test_a_reader_that_leaves_is_no_error_to_shout_about(alphabet: str, endless: str, command: str, read: int) -> None:
    arguments = {
        "endless": ["run", endless, "hi", *GREEDY],
        "json": ["run", alphabet, "hi", "--json", *GREEDY],
        "inspect": ["inspect", alphabet, "--tensors", "--graph"],
    }[command]
    reader, writer = os.pipe()
    with open(reader, "rb") as out, open(writer, "wb") as written:
        if not read:
            out.close()  # before there is anything
        child = subprocess.Popen(
            [sys.executable, "-m", "octavo", *on_reference(arguments)],
            stdout=written, stderr=subprocess.PIPE, env=users_environment(),
        )
        assert not read or len(out.read(read)) == read
    _, err = child.communicate(timeout=HANG_S)
    assert err == b""
    allowed = {("json", 3): (0,), ("inspect", 3): (0, 1)}  # what is short may all be written before the reader leaves
    assert child.returncode in allowed.get((command, read), (1,))


_ONE_AFTER_ANOTHER = """
import json, sys
from octavo.cli import main

for i, arguments in enumerate(json.loads(sys.argv.pop())):
    print(end="\\0" if i else "")
    sys.argv[1:] = arguments
    try:
        main()
    except SystemExit as end:
        assert not end.code, end.code
"""


def test_a_terminal_without_unicode(tmp_path: Path) -> None:
    weights = tiny.alphabet()
    output = weights["output.weight"]
    output[0xC3], output[ord("a")] = output[ord("a")].copy(), 0
    output[0xA9, 0xC3] = 20  # "é" again and again
    path = tiny.write(tmp_path / "é.gguf", weights=weights, keys={"general.name": "modèle"})
    ascii_only = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    commands = [["run", path, "hi", "-n", "4", *GREEDY], ["inspect", path]]
    commands += [[*command, "--json"] for command in commands]
    done = subprocess.run(
        [sys.executable, "-c", _ONE_AFTER_ANOTHER, json.dumps([on_reference(command) for command in commands])],
        capture_output=True, env={**users_environment(), **ascii_only}, check=True,
    )
    said, shown, said_json, shown_json = done.stdout.decode().split("\0")
    assert (done.stderr, said) == (b"", "??\n")
    assert shown.startswith("mod?le\n")
    assert json.loads(said_json)["text"] == "éé"
    assert json.loads(shown_json)["metadata"]["general.name"] == "modèle"


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_ctrl_c_keeps_the_text_and_says_so_by_its_status(endless: str) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "octavo", *on_reference(["run", endless, "hi", *GREEDY])],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stdout.read(5) == b"abcde"
    child.send_signal(2)
    out, err = child.communicate(timeout=HANG_S)
    reply = b"abcde" + out
    assert reply.endswith(b"\n")
    assert (ALPHABET * (len(reply) // 26 + 1)).encode().startswith(reply[:-1])
    assert (err, child.returncode) == (b"", 130)
