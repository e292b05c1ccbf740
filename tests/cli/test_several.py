"""`octavo serve` with several models: which are found, what their settings are, and what is wrong with some."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from octavo.cli.options import Where
from octavo.cli.serve.defaults import Defaults
from octavo.cli.serve.options import Naming, ServerLimits
from octavo.cli.serve.several import ModelOptions, Several, Shelf, read_preset
from octavo.data import resolve
from octavo.errors import UsageError
from octavo.router.catalog import Catalog, Found, in_cache, in_folder
from octavo.server.serve_options import ServerOptions
from tests.cli.conftest import Run
from tests.hub_server import Hub
from tests.runtime.tiny import write

BASE = ServerOptions("models", secret="between-us", keys=("k",))


def options(**more: Any) -> ModelOptions:
    return replace(ModelOptions(None, Naming(), Defaults(), Where(), ServerLimits()), **more)


def look(given: tuple[Found, ...] = (), several: Several | None = None, of_all: ModelOptions | None = None) -> Catalog:
    return Shelf(given, of_all or options(), BASE, several or Several(), offline=True).look()


def preset(tmp_path: Path, text: str) -> Several:
    path = tmp_path / "models.ini"
    path.write_text(text)
    return Several(preset=str(path))


DEMO = Found("demo", resolve("demo"), "argument")


def test_a_folder_has_files_sets_of_parts_and_folders(tmp_path: Path) -> None:
    for name in ("b.gguf", "a-Q4_K_M.gguf", "big-00001-of-00002.gguf", "big-00002-of-00002.gguf", "mmproj-b.gguf",
                 "half-00001-of-00002.gguf", "notes.txt", "vision/vision-Q8_0.gguf", "vision/mmproj-F16.gguf",
                 "two/x-Q4_0.gguf", "two/x-Q8_0.gguf", "folder/config.json", "folder/model.safetensors",
                 "lora/adapter_config.json", "lora/adapter_model.safetensors"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x")
    found = {one.name: Path(one.path).relative_to(tmp_path).as_posix() for one in in_folder(str(tmp_path))}
    assert found == {
        "a-Q4_K_M": "a-Q4_K_M.gguf", "b": "b.gguf", "big": "big-00001-of-00002.gguf",
        "vision": "vision/vision-Q8_0.gguf", "two:Q4_0": "two/x-Q4_0.gguf", "two:Q8_0": "two/x-Q8_0.gguf",
        "folder": "folder",
    }
    with pytest.raises(UsageError, match="--models-dir is '/nowhere', which is not a folder"):
        list(in_folder("/nowhere"))


def test_what_has_no_name_or_leads_nowhere_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in (b"a.gguf", b"ev\nil.gguf", b"b\xff.gguf"):
        Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), name))).write_bytes(b"x")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert [one.name for one in in_folder(str(tmp_path))] == ["a"]
    assert "'ev\\nil.gguf' is left out" in caplog.text


def test_the_cache_has_what_octavo_list_shows(octavo: Run, hub: Hub) -> None:
    hub.repository("org/some-GGUF", {"some-Q4_K_M.gguf": b"x" * 100, "some-Q8_0.gguf": b"y" * 100})
    hub.repository("org/folder", {"config.json": b"{}", "model.safetensors": b"z"})
    for name in ("org/some-GGUF:Q8_0", "org/folder"):
        octavo("pull", name)
    found = {one.name: one for one in in_cache()}
    assert [*found] == ["org/folder", "org/some-GGUF:Q8_0"]
    assert found["org/folder"].aliases == ("org/folder:safetensors",)
    catalog = look()
    assert catalog.find("org/folder:safetensors") == "org/folder"
    assert Path(catalog.models["org/some-GGUF:Q8_0"].engine.path).read_bytes() == b"y" * 100


def test_settings_are_of_models_and_the_command_line_wins(tmp_path: Path) -> None:
    several = preset(tmp_path, f"""
version = 1
; of all
[*]
c = 512
temp = 0.5
[demo]
alias = small, default
n-gpu-layers = 3
top-k = 7
load-on-startup = true
[other]
model = {resolve('demo')}
strict-model = true
temp = 0.25
""")
    several.memory = "2G"
    catalog = look((DEMO,), several, options(defaults=Defaults(top_k=9)))
    demo, other = catalog.models["demo"], catalog.models["other"]
    assert (demo.engine.n_ctx, demo.engine.gpu_layers) == (512, 3)
    assert (other.engine.n_ctx, other.engine.gpu_layers) == (512, None)
    assert demo.server.sampling == {"temperature": 0.5, "top_k": 9}
    assert other.server.sampling == {"temperature": 0.25, "top_k": 9}
    assert (demo.server.aliases, demo.load, other.load, other.source) == (("default", "small"), True, False, "preset")
    assert all(one.engine.asks and one.engine.memory == 2 << 30 for one in (demo, other))
    assert all((one.server.keys, one.server.secret) == (("k",), "between-us") for one in (demo, other))
    assert (catalog.find("small"), catalog.find("x")) == ("demo", None)


@pytest.mark.parametrize(("text", "words"), [
    ("[demo]\nport = 5", r"\[demo\]: No such option: --port"),
    ("[demo]\ntmp = 5", r"\[demo\]: No such option: --tmp \(did you mean --temp\?\)"),
    ("[demo]\nlod-on-startup = true", r"\[demo\]: no setting 'lod-on-startup' \(did you mean 'load-on-startup'\?\)"),
    ("[demo]\nhelp =", r"\[demo\]: No such option: --help"),
    ("[demo]\ntemp = hot", r"\[demo\]: Invalid value for '--temp' / '--temperature': not a number"),
    ("[demo]\ntemp = -3", r"models.ini: \[demo\]: temp = -3: temperature is -3"),
    ("[demo]\ntop-k = 5\nctx-size = 99999",
     r"models.ini: \[demo\]: ctx-size = 99999: n_ctx is 99999, but the model was made for 1024 tokens"),
    ("[demo]\nkv-memory = much", r"\[demo\]: kv-memory = much: --kv-memory is 'much'"),
    ("[demo]\nkv-memory = 1K", r"\[demo\]: kv-memory = 1K: kv_memory is 1024 \(allowed: "),
    ("[demo]\nlora = /nowhere.gguf", r"\[demo\]: lora = /nowhere.gguf: .*/nowhere.gguf"),
    ("[demo]\nchat-template-file = /nowhere.j2", r"\[demo\]: chat-template-file = /nowhere.j2: .*/nowhere.j2"),
    ("[demo]\nchat-template = tools", r"\[demo\]: chat-template = tools: "),
    ("[demo]\nchat-template-kwargs = {", r"\[demo\]: chat-template-kwargs = \{: "),
    ("[a]\nmodel = {tmp}/broken.gguf", r"\[a\]: model = .*broken.gguf: .*broken.gguf, byte 0, header"),
    ("[a]\nmodel = /nowhere.gguf", r"\[a\]: model = /nowhere.gguf: .*/nowhere.gguf"),
    ("[*]\nkv-memory = much", r"models.ini: \[\*\]: kv-memory = much: "),
    ("[demo]\nload-on-startup = perhaps", r"\[demo\]: load-on-startup is 'perhaps' \(allowed: true, false\)"),
    ("[demo]\nmmap = true", r"\[demo\]: no option --mmap here: how a file is read needs no option: leave it out"),
    ("[demo]\nmodel = a\nhf-repo = b/c", r"\[demo\] has several models: a, b/c"),
    ("[other]\ntemp = 1", r"\[other\] is not a model that is there \(allowed: demo, or `model = PATH"),
    ("[*]\nmodel = a", r"\[\*\] is of all models, and names one: a"),
    ("temp = 1\n[demo]", r"temp stands before all sections \(allowed: version\)"),
    ("[demo]\n[demo]", r"section 'demo' already exists"),
    ("[demo]\ntemp", r"contains parsing errors"),
    ("[demo]\nalias = a,,b", r"--alias is 'a,,b' \(allowed: names separated by commas\)"),
    ("[demo]\nctx-size = -5", r"demo: --ctx-size is -5 \(allowed: 1 or more\)"),
    ("[demo]\nlora = /nowhere.gguf", r"demo: /nowhere.gguf: there is no such file or folder"),
    ("[*]\nchat-template = {{ x", r"demo: the model has no chat template called '\{\{ x' \(allowed: default\)"),
])
def test_settings_that_are_wrong(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"x" * 99)
    with pytest.raises(UsageError, match=words):
        look((DEMO,), preset(tmp_path, text.replace("{tmp}", str(tmp_path))))


def test_settings_of_all_models_that_one_can_not_have(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    catalog = look((DEMO,), preset(tmp_path, "[*]\nctx-size = 99999\n"))
    assert catalog.models["demo"].engine.n_ctx == 99999
    assert "models.ini: [*]: ctx-size = 99999: n_ctx is 99999, but the model was made for 1024 tokens" in caplog.text
    assert "(of demo)" in caplog.text


def test_a_draft_of_all_models_goes_to_those_that_it_fits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    other = Found("other", write(tmp_path / "other.gguf"), "argument")
    forced = ServerLimits(draft="demo", speculate="draft")
    for of_all, several, place in (
        (options(limits=ServerLimits(draft="demo")), None, "--draft = "),
        (options(limits=forced), preset(tmp_path, "[demo]\ntemp = 0"), "--draft = "),
        (None, preset(tmp_path, "[*]\ndraft = demo\n"), "models.ini: [*]: draft = "),
    ):
        caplog.clear()
        found = look((DEMO, other), several, of_all).models
        assert (found["demo"].engine.draft, found["other"].engine.draft) == (resolve("demo"), None)
        assert found["other"].engine.speculate == "auto"
        (said,) = caplog.messages
        assert place in said
        assert "another vocabulary: token " in said
        assert "other is served without it" in said


@pytest.mark.parametrize(("text", "words"), [
    ("draft = demo", r"models.ini: \[other\]: draft = .*: another vocabulary: token "),
    ("draft = {other}\nspeculate = off", r"\[other\]: draft = .*: speculate is off, beside a draft model or head"),
    ("draft = {other}\ntensor-parallel = 2", r"\[other\]: draft = .*: tensor_parallel is 2, beside a draft model"),
    ("draft = /nowhere.gguf", r"models.ini: \[other\]: draft = /nowhere.gguf: /nowhere.gguf"),
])
def test_a_draft_of_one_model_that_does_not_fit(tmp_path: Path, text: str, words: str) -> None:
    path = write(tmp_path / "other.gguf")
    given = DEMO, Found("other", path, "argument")
    with pytest.raises(UsageError, match=words):
        look(given, preset(tmp_path, f"[other]\n{text.format(other=path)}\n"))
    found = look(given, preset(tmp_path, f"[other]\ndraft = {path}\n")).models
    assert (found["demo"].engine.draft, found["other"].engine.draft) == (None, path)


def test_two_models_with_one_name(tmp_path: Path) -> None:
    other = tmp_path / "demo.gguf"
    other.write_bytes(b"x")
    with pytest.raises(UsageError, match=rf"two models are called 'demo': \S+ and {other} \(allowed: a name for each"):
        look((DEMO, Found("second", str(other), "argument", ("demo",))))


def test_models_that_were_named_come_first(tmp_path: Path) -> None:
    folder = Several(models_dir=str(tmp_path))
    for name in ("a.gguf", "demo.gguf", "z.gguf"):
        (tmp_path / name).symlink_to(DEMO.path)
    z = Found("z", str(tmp_path / "z.gguf"), "argument")
    found = look((z, DEMO), folder).models
    assert [(one.name, one.source) for one in found.values()] == [
        ("z", "argument"), ("demo", "argument"), ("a", "models_dir")]


def test_two_files_of_one_name(tmp_path: Path) -> None:
    paths = [tmp_path / "sub" / "one.gguf", tmp_path / "one.gguf"]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        shutil.copy(resolve("demo"), path)
    first, second = (Found("one", str(path), "argument") for path in paths)
    words = (" and {} would both be called 'one'; give one of them another name in --models-preset "
             "([NAME], model = FILE)")
    with pytest.raises(UsageError, match=re.escape(f"{paths[0]}{words.format(paths[1])}")):
        look((first, second))
    with pytest.raises(UsageError, match=re.escape(f"{paths[1]}{words.format(paths[0])}")):
        look((second,), preset(tmp_path, f"[one]\nmodel = {paths[0]}").__class__(models_dir=str(paths[0].parent)))
    with pytest.raises(UsageError, match="would both be called 'one'"):
        look((second,), preset(tmp_path, f"[one]\nmodel = {paths[0]}"))
    with pytest.raises(UsageError, match="would both be called 'demo'"):
        look((DEMO, replace(DEMO)))
    assert look((second,), Several(models_dir=str(tmp_path / "sub" / ".."))).models.keys() == {"one", "sub"}
    both = look((second,), preset(tmp_path, f"[two]\nmodel = {paths[0]}")).models
    assert {name: one.engine.path for name, one in both.items()} == {"one": str(paths[1]), "two": str(paths[0])}


def test_a_name_that_is_unknown() -> None:
    catalog = look((DEMO,))
    assert catalog.unknown("dem") == "unknown model 'dem'; did you mean 'demo'?"
    assert catalog.unknown("gpt-4o") == "unknown model 'gpt-4o' (choices: demo)"
    assert Catalog([]).unknown("demo") == (
        "unknown model 'demo': there is none yet; `octavo pull` or POST /models brings one, and `octavo serve demo` "
        "serves the built-in one")
    many = Catalog([replace(catalog.models["demo"], server=replace(BASE, name=f"m{i:02}")) for i in range(10)])
    assert many.unknown("gpt-4o").endswith("m06, m07 and 2 more at /v1/models)")


@pytest.mark.parametrize(("line", "words"), [
    ("demo demo --replicas 2", "--replicas is for one MODEL, without --models-dir"),
    ("demo --idle 5 --kv-events tcp://*:5557", "--kv-events is for one MODEL"),
    ("demo demo --alias a", "--alias is of one model: write it into the model's section of --models-preset"),
    ("demo demo --lora a", "--lora is of one model"),
    ("demo demo --memory much", "--memory is 'much' (allowed: bytes, such as 512M or 4G)"),
    ("demo --models-dir /nowhere", "--models-dir is '/nowhere', which is not a folder"),
    ("demo --models-preset /nowhere.ini", "/nowhere.ini"),
    ("demo /nowhere.gguf", "/nowhere.gguf"),
])
def test_command_lines_that_are_wrong(octavo: Run, line: str, words: str) -> None:
    assert words in octavo("serve", *line.split(), "--port", "0").error()


def test_a_model_of_the_folder_that_is_named_by_its_name_alone(octavo: Run, tmp_path: Path) -> None:
    (tmp_path / "one.gguf").write_bytes(b"x")
    error = octavo("serve", "demo", "one", "--models-dir", str(tmp_path), "--port", "0").error()
    assert error == "octavo: error: one is in --models-dir, whose models are all served: leave it out"


def test_a_name_that_cannot_be_shown(octavo: Run, tmp_path: Path) -> None:
    path = tmp_path / "a\nb.gguf"
    path.write_bytes(b"x")
    assert octavo("serve", "demo", str(path), "--port", "0").error() == (
        f"octavo: error: {str(path)!r} has a name with characters that can't be shown; give it another one in "
        "--models-preset ([NAME], model = FILE)")


def test_other_programs_names(tmp_path: Path) -> None:
    path = preset(tmp_path, "[a]\nmodel = demo\nparallel = 3\npredict = 5\nkv-cache-type = q8_0\n").preset
    assert path is not None
    section = read_preset(path)["a"]
    assert (section.options.limits.max_sequences, section.options.defaults.max_tokens) == (3, 5)
    assert (section.options.where.kv, section.model) == ("q8_0", "demo")
