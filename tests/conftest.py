"""For all tests."""

from __future__ import annotations

import signal

# A test run started in the background ignores Ctrl-C, and one under nohup a closed terminal. So would each
# command that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
