"""Fuzz the GGUF reader: any bytes give a model or a GGUFError, nothing else, within a second.

    python tools/fuzz/fuzz_gguf.py --seconds 20

With atheris (`pip install atheris`) inputs are guided by coverage; without it they are random damage to valid files,
which finds less. Prints the number of inputs; a finding is a non-zero exit status and a file in --findings.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

SLOW_SECONDS = 5.0  # a shared machine stalls now and then; the reader's own limit is one second, held by its tests


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the random numbers")
    parser.add_argument("--findings", type=Path, default=Path("fuzz-findings"), help="folder for inputs that fail")
    args = parser.parse_args()
    logging.getLogger("octavo").setLevel(logging.ERROR)  # what loads as what is of no interest here
    args.findings.mkdir(parents=True, exist_ok=True)
    if find_spec("atheris"):
        _guided(args.seconds, args.seed, args.findings)
        return 0
    print("atheris is not installed (pip install atheris): random damage instead", file=sys.stderr)
    return _random(args.seconds, args.seed, args.findings)


def _guided(seconds: int, seed: int, findings: Path) -> None:
    """Coverage-guided; libFuzzer ends the process, with status 0 where it found nothing."""
    import atheris

    with atheris.instrument_imports(include=["octavo.io.gguf"]):
        import gguf_target
    with tempfile.TemporaryDirectory() as folder:
        corpus, path = Path(folder) / "corpus", gguf_target.input_path(Path(folder))
        corpus.mkdir()
        files = gguf_target.seeds()
        for i, data in enumerate(files):
            (corpus / str(i)).write_bytes(data)

        def one(data: bytes) -> None:
            path.write_bytes(data)
            gguf_target.exercise(path)

        def mutate(data: bytes, max_size: int, seed: int) -> bytes:
            rng = random.Random(seed)
            if rng.random() < 0.5:
                return atheris.Mutate(data, max_size)
            return gguf_target.damage(rng, data, files)[:max_size]

        options = [f"-max_total_time={seconds}", f"-seed={seed + 1}", "-max_len=65536", f"-timeout={SLOW_SECONDS:.0f}"]
        options += [
            f"-artifact_prefix={findings}/",
            f"-dict={Path(__file__).with_name('gguf.dict')}",
            "-print_final_stats=1",
        ]
        atheris.Setup([sys.argv[0], *options, str(corpus)], one, custom_mutator=mutate)
        atheris.Fuzz()


def _random(seconds: int, seed: int, findings: Path) -> int:
    import gguf_target

    rng, files = random.Random(seed), gguf_target.seeds()
    end, inputs, valid = time.monotonic() + seconds, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        path = gguf_target.input_path(Path(folder))
        while time.monotonic() < end:
            path.write_bytes(gguf_target.damage(rng, rng.choice(files), files))
            start = time.monotonic()
            try:
                valid += gguf_target.exercise(path)
            except Exception as e:
                kept = findings / f"crash-{inputs}.gguf"
                kept.write_bytes(path.read_bytes())
                print(f"{type(e).__name__}: {e}, input kept in {kept}", file=sys.stderr)
                return 1
            if time.monotonic() - start > SLOW_SECONDS:
                kept = findings / f"slow-{inputs}.gguf"
                kept.write_bytes(path.read_bytes())
                print(f"took more than {SLOW_SECONDS} s, input kept in {kept}", file=sys.stderr)
                return 1
            inputs += 1
    print(f"{inputs} inputs, {valid} of them valid files, no finding")
    return 0


if __name__ == "__main__":
    sys.exit(main())
