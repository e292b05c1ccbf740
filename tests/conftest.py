"""For all tests."""

from __future__ import annotations

import gc
import os
import signal
import sys

# A test run started in the background ignores Ctrl-C, and one under nohup a closed terminal. So would each
# command that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# The commands that tests start would compile the package's sources anew, each of them.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# What is imported and collected lives until the end: looking through it for garbage again and again takes a twentieth
# of a run.
gc.disable()


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()
