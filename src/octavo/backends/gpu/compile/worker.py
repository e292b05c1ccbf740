"""What a process of its own runs that compiles kernels, see `pool`."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import sys
from functools import partial
from pathlib import Path

import triton

from octavo.backends.gpu.compile.cache import save, with_cache
from octavo.backends.gpu.compile.pool import DONE, FAILED, LENGTH

log = logging.getLogger("octavo")


def main() -> None:
    """Compile what comes until there is nothing more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    out = os.dup(1)
    os.dup2(2, 1)  # whatever compilers say
    triton.knobs.compilation.always_compile = True
    while size := sys.stdin.buffer.read(LENGTH.size):
        answer = FAILED
        try:
            source, target, options, entry = pickle.loads(sys.stdin.buffer.read(*LENGTH.unpack(size)))
            save(Path(entry), with_cache(partial(triton.compile, source, target=target, options=options)))
            answer = DONE
        except Exception as error:
            log.debug("%s", error)
        os.write(out, answer)


if __name__ == "__main__":
    main()
