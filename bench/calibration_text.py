"""Writes a text to calibrate small models with: news, code and prose about it, in turns.

    python bench/calibration_text.py OUT.txt [HELD-OUT.jsonl]

HELD-OUT has documents of the same kinds, other news and code of other modules: what files can be judged by beside the
text that comes with Octavo, which has more kinds and languages, and nothing of OUT either.

News are the Lee corpus of gensim's tests (`tools/real_models.py` fetches it); code is of this Python's library, and
prose is its reference. The SHA-256 that is printed depends on Python's version: with 3.11.7 it is b1ed84b587a5fa8e...,
and d4a254139e269696... of HELD-OUT.
"""

from __future__ import annotations

import hashlib
import json
import sys
import sysconfig
from pathlib import Path
from pydoc_data.topics import topics

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from real_models import fetch

MODULES = """
argparse ast asyncio/base_events bdb calendar cgi codeop collections/__init__ configparser csv dataclasses difflib
doctest email/message enum fileinput fractions ftplib functools gzip heapq html/parser http/client http/server imaplib
inspect ipaddress json/decoder logging/__init__ mailbox mimetypes nntplib optparse pathlib pickle platform plistlib
poplib pprint profile random sched shelve shlex shutil smtplib socketserver ssl statistics string subprocess tarfile
telnetlib tempfile textwrap threading timeit tokenize trace traceback turtle typing unittest/case urllib/parse
urllib/request uuid weakref xml/dom/minidom zipfile zipapp
""".split()
CODE, PROSE = 2200, 1500
"""Characters of a piece."""
LIBRARY = Path(sysconfig.get_paths()["stdlib"])


def text() -> str:
    """Two pieces of news, one of code and one of prose, and so on."""
    news = _news()
    prose = [value[:PROSE] for _, value in sorted(topics.items()) if len(value) > PROSE]
    found = list[str]()
    for i, module in enumerate(MODULES):
        source = (LIBRARY / f"{module}.py").read_text(encoding="utf-8")
        start = max(source.find("\nclass ", len(source) // 4), len(source) // 4)
        code = source[start : start + CODE]
        found += [news[2 * i % len(news)], news[(2 * i + 1) % len(news)], code, prose[i % len(prose)]]
    return "\n\n".join(found)


def held_out() -> str:
    """A document a line: in turns news and code that `text` has none of."""
    sources = [path.read_text(encoding="utf-8") for path in sorted(LIBRARY.glob("*.py")) if path.stem not in MODULES]
    code = [source[len(source) // 4 :][:CODE] for source in sources if len(source) > 4 * CODE]
    pairs = zip(_news()[2 * len(MODULES) :], code, strict=False)
    return "".join(json.dumps({"text": each}) + "\n" for pair in pairs for each in pair)


def _news() -> list[str]:
    return [line for line in fetch("news").read_text(encoding="utf-8").split("\n") if line.strip()]


def main() -> None:
    for path, made in zip(sys.argv[1:], (text(), held_out()), strict=False):
        Path(path).write_text(made, encoding="utf-8")
        print(f"{path}: {len(made):,} characters, SHA-256 {hashlib.sha256(made.encode()).hexdigest()}")


if __name__ == "__main__":
    main()
