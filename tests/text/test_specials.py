"""Tokens with a role, found by id and by text, and those that end a generation."""

from __future__ import annotations

from octavo.text import Tokenizer
from tests.text.vocabularies import CONTROL, NORMAL, USER_DEFINED, byte_level, spm


def make(special: dict[str, int], **ids: int) -> Tokenizer:
    return Tokenizer.from_metadata(byte_level([], special=special, **ids))


def texts(tokenizer: Tokenizer) -> set[str]:
    return {tokenizer.texts[i] for i in tokenizer.stop_ids}


def test_roles_by_id_and_by_text() -> None:
    special = dict.fromkeys(["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|fim_pad|>", "<pad>"], CONTROL)
    tokenizer = make(special, eos_token_id=256, padding_token_id=260)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.eot_id, tokenizer.pad_id) == (None, 256, 258, 260)
    assert texts(tokenizer) == {"<|endoftext|>", "<|im_end|>", "<|fim_pad|>"}


def test_an_id_in_the_file_comes_before_the_text() -> None:
    tokenizer = make(dict.fromkeys(["<|eot_id|>", "<stop>"], CONTROL), eot_token_id=257)
    assert tokenizer.eot_id == 257
    assert texts(tokenizer) == {"<|eot_id|>", "<stop>"}


def test_end_tokens_are_control_tokens_whatever_the_file_says() -> None:
    tokenizer = make({"<end_of_turn>": NORMAL})
    assert tokenizer.is_special(256)
    assert tokenizer.encode("<end_of_turn>") == [256]
    assert len(tokenizer.encode("<end_of_turn>", parse_special=False)) > 1


def test_harmony_markers_inside_an_answer() -> None:
    names = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>"]
    tokenizer = make(dict.fromkeys(names, CONTROL))
    assert texts(tokenizer) == {"<|return|>", "<|call|>"}
    assert [n for n in names if not tokenizer.is_special(tokenizer.texts.index(n))] == names[:4]
    assert texts(make({"<|end|>": CONTROL})) == {"<|end|>"}


def test_an_end_of_sentences_beside_an_end_of_calls_is_text() -> None:
    """As llama.cpp has it for Gemma 4 and PLaMo, whose `</s>` is a tag of HTML."""
    tokenizer = make({"<eos>": CONTROL, "</s>": CONTROL, "<|tool_response>": CONTROL}, eos_token_id=256)
    assert texts(tokenizer) == {"<eos>", "<|tool_response>"}
    assert not tokenizer.is_special(257)
    assert texts(make({"</s>": CONTROL})) == {"</s>"}


def test_white_space_before_the_mask_of_some_models_belongs_to_it() -> None:
    from tokenizers import AddedToken
    from tokenizers import Tokenizer as Engine
    from tokenizers.decoders import ByteLevel as Bytes
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel

    metadata = byte_level([], special={"<mask>": CONTROL, "<pad>": CONTROL})
    tokenizer = Tokenizer.from_metadata(metadata | {"general.architecture": "nomic-bert-moe"})
    engine = Engine(BPE({text: i for i, text in enumerate(tokenizer.texts)}, []))
    engine.pre_tokenizer, engine.decoder = ByteLevel(add_prefix_space=False), Bytes()
    engine.add_special_tokens([AddedToken("<mask>", lstrip=True), AddedToken("<pad>")])
    for text in ("a <mask> b", " \t\n<mask>", "<mask>  <mask>.", "a <pad> b", "<pad> <mask>"):
        assert tokenizer.encode(text) == engine.encode(text).ids, text


def test_sentencepiece_defaults() -> None:
    metadata = spm({"a": -1.0})
    for role in ("bos", "eos", "unknown"):
        del metadata[f"tokenizer.ggml.{role}_token_id"]
    tokenizer = Tokenizer.from_metadata(metadata)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id) == (1, 2, 0)
    assert tokenizer.stop_ids == {2}
    assert tokenizer.add_bos
    assert not tokenizer.add_eos


def test_user_defined_tokens_are_text() -> None:
    tokenizer = make({"  ": USER_DEFINED, "<s>": CONTROL})
    assert tokenizer.decode([256, 257], skip_special=True) == "  "
    assert tokenizer.decode([256, 257]) == "  <s>"
