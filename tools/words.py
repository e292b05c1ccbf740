"""Words and phrases that were retired, and what to write for each: `python tools/words.py [path ...]`.

Names are those of the field (docs/glossary.md), and sentences are plain English. Exits with 1 where a retired word is
found in the project's text files.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]

PHRASES = {
    r"(?<!there )\b(?:is|are|was|were) no "
    r"(?!longer|more|better|worse|less|slower|faster|use\b|way\b|\w+ for\b)\w+": "is not a, has no",
    r"\bso many\b": "that many, N, a number of",
    r"\bwithout a word\b": "silently",
    r"\bof those that\b": "among those that, of the ones that",
    r"\b(?:is|are|be|been) had\b": "is available, can be obtained",
    r"\bwho waits is told\b": "waiting clients get",
    r"\bfor who\b": "for those who",
    r"\bit reaches\b": "it achieves, it runs at",
    r"\bhas not\b(?! \w+(?:ed|n|t)\b)": "does not have, lacks",
    r"\bnumbers of 8 bits\b": "8-bit numbers",
}
"""Phrases of another language's syntax -> idiomatic ones."""

NAMES = {
    r"\b(?:attention|prefill)_eights\b": "attention 8-bit",
    r"(?<![-\w])eights(?![-\w])": "8-bit, int8 and fp8, groups of eight",
    r"\bmatvec_stream\b|\bpoints_stream\b": "matvec_persistent",
    r"\bgemm_mixed(?:_\w+)?\b": "w4a16 (hopper, streamk, streamk_multicta)",
    r"\bStreamEnd\b": "FusedEpilogue",
    r"\bNarrowed\b": "activation layout",
    r"\bthrown_away\b": "dummy_feeds",
    r"\bUnderWay\b": "InFlightStep",
    r"\bturned_heads\b": "rope_heads",
    r"\bpages_ahead\b": "prefault",
    r"\blooked_up\b": "embedding_gptq",
    r"\bcompile_process\b": "compile.process",
    r"\bchosen_there\b": "sampled on the device",
    r"\bgrid points?\b|\bpoints? of (?:the|a|its|their) grids?\b": "codebook entry",
    r"\bLEAST_SCALE\b": "MIN_SCALE",
}
"""Private names -> the field's."""

PAST = ("docs/log.md", "CHANGELOG.md", "bench/results/", "tools/words.py")
"""What tells of the past, and this table."""


SUFFIXES = {".py", ".md", ".toml", ".yml", ".yaml", ".cfg", ""}


def files() -> Iterator[str]:
    """Paths of the project's text files, those of the past and under work excepted."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    for name in listed.stdout.splitlines():
        if not name.startswith(PAST) and Path(name).suffix in SUFFIXES and (ROOT / name).is_file():
            yield name


def retired(text: str) -> Iterator[tuple[int, str, str]]:
    """Line, word and what to write for it, of each retired word in a text."""
    for pattern, better in COMPILED:
        for match in pattern.finditer(text):
            yield text.count("\n", 0, match.start()) + 1, match[0], better


COMPILED = [(re.compile(pattern, re.IGNORECASE), better) for pattern, better in PHRASES.items()]
COMPILED += [(re.compile(pattern), better) for pattern, better in NAMES.items()]


def found(names: Iterable[str]) -> list[str]:
    """A line for each retired word in files."""
    lines = []
    for name in names:
        text = (ROOT / name).read_text("utf-8", errors="replace")
        lines += [f"{name}:{line}: {word!r} ({better})" for line, word, better in sorted(retired(text))]
    return lines


if __name__ == "__main__":
    lines = found(sys.argv[1:] or files())
    print("\n".join(lines) or "no retired words")
    sys.exit(bool(lines))
