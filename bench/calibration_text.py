"""Writes a text to calibrate small models with: news, code and prose about it, in turns.

    python bench/calibration_text.py OUT.txt

News are the Lee corpus of gensim's tests (`tools/real_models.py` fetches it); code is of this Python's library, and
prose is its reference. None of it is in the text that comes with Octavo, on which files are judged. The SHA-256 that is
printed depends on Python's version: with 3.11.7 it is b1ed84b587a5fa8e...
"""

from __future__ import annotations

import hashlib
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


def text() -> str:
    """Two pieces of news, one of code and one of prose, and so on."""
    news = [line for line in fetch("news").read_text(encoding="utf-8").split("\n") if line.strip()]
    prose = [value[:PROSE] for _, value in sorted(topics.items()) if len(value) > PROSE]
    found = list[str]()
    for i, module in enumerate(MODULES):
        source = (Path(sysconfig.get_paths()["stdlib"]) / f"{module}.py").read_text(encoding="utf-8")
        start = max(source.find("\nclass ", len(source) // 4), len(source) // 4)
        code = source[start : start + CODE]
        found += [news[2 * i % len(news)], news[(2 * i + 1) % len(news)], code, prose[i % len(prose)]]
    return "\n\n".join(found)


def main() -> None:
    made = text()
    Path(sys.argv[1]).write_text(made, encoding="utf-8")
    print(f"{sys.argv[1]}: {len(made):,} characters, SHA-256 {hashlib.sha256(made.encode()).hexdigest()}")


if __name__ == "__main__":
    main()
