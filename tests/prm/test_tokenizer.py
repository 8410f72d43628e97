"""Text <-> ids, exact to the character."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from stepward.prm.errors import FormatError, ModelError
from stepward.prm.tokenizer import (
    ByteTokenizer,
    byte_offsets,
    decode_bytes,
    load_tokenizer,
    tokenizer_from_json,
)

CORPUS = ["so we add 12 and 30.\n\nthe answer is 42", "größe 日本語 😀 naïve ∫ x² dx"] * 3


def byte_level(*, specials: tuple[str, ...] = ("<s>", "</s>"), vocab_size: int = 330) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(specials),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def sentencepiece_like() -> Tokenizer:
    """As Llama 2's tokenizer.json: a space is put first, spaces are U+2581, unknown characters are bytes."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "▁", "a", "b", "▁a", "ab", "▁ab"]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    merges = [("▁", "a"), ("a", "b"), ("▁a", "b")]
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


BYTE_LEVEL = tokenizer_from_json(byte_level().to_str(), {"eos_token": "</s>"})
TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40)


@given(TEXT)
def test_every_text_survives_encoding_and_decoding(text: str) -> None:
    for tokenizer in (BYTE_LEVEL, ByteTokenizer()):
        if "</s>" not in text:
            assert tokenizer.decode(tokenizer.encode(text)) == text


@given(TEXT, st.data())
def test_decoding_is_additive_where_no_character_is_split(text: str, data: st.DataObject) -> None:
    ids = BYTE_LEVEL.encode(text)
    cut = data.draw(st.integers(0, len(ids)))
    left, right = BYTE_LEVEL.decode(ids[:cut]), BYTE_LEVEL.decode(ids[cut:])
    if "�" not in left and "�" not in right:
        assert left + right == BYTE_LEVEL.decode(ids)


@given(st.lists(st.integers(0, 329), max_size=25))
def test_any_ids_decode_as_the_tokenizers_library_decodes_them(ids: list[int]) -> None:
    # Random ids: split characters and invalid UTF-8 everywhere. End tokens (id 1) are left out by ours.
    kept = [i for i in ids if i != 1]
    assert BYTE_LEVEL.decode(ids) == byte_level_library.decode(kept, skip_special_tokens=False)


byte_level_library = byte_level()


@given(st.lists(st.integers(0, 329), max_size=25))
def test_offsets_are_the_character_in_which_each_token_begins(ids: list[int]) -> None:
    offsets = BYTE_LEVEL.offsets(ids)
    text = BYTE_LEVEL.decode(ids)
    assert len(offsets) == len(ids)
    assert list(offsets) == sorted(offsets)
    for i, start in enumerate(offsets):
        before, after = BYTE_LEVEL.decode(ids[:i]), BYTE_LEVEL.decode(ids[i:])
        if before + after == text:
            assert start == len(before)
        else:
            # The token begins inside a character, which the texts of both sides show as broken.
            assert 0 <= start < len(text)


def test_bytes_of_one_character_over_several_tokens_share_its_index() -> None:
    tokenizer = tokenizer_from_json(byte_level(vocab_size=258).to_str(), {"eos_token": "</s>"})
    ids = tokenizer.encode("a😀b")
    # a | four bytes of the emoji | b
    assert len(ids) == 6
    assert tokenizer.offsets(ids) == (0, 1, 1, 1, 1, 2)
    # Cut inside: two bytes of an emoji are one broken character, then comes b.
    assert tokenizer.decode(ids[:3]) == "a�"
    assert tokenizer.offsets((*ids[:3], ids[5])) == (0, 1, 1, 2)


def test_special_tokens_inside_the_text_have_their_place() -> None:
    ids = BYTE_LEVEL.encode("<s>12</s>30")
    assert BYTE_LEVEL.specials == {"<s>": 0, "</s>": 1}
    assert ids[0] == 0
    assert 1 in ids
    # The end token is no text; the start token is kept.
    assert BYTE_LEVEL.decode(ids) == "<s>1230"
    end = ids.index(1)
    offsets = BYTE_LEVEL.offsets(ids)
    assert offsets[0] == 0
    assert offsets[1] == 3
    assert offsets[end] == offsets[end + 1] == 5


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"a\xf0\x9f", "a�"),  # The first half of a character is one replacement.
        (b"\xff\xfe", "��"),
        (b"\xe6\x97a", "�a"),
        ("é".encode() + b"\xc3", "é�"),
    ],
)
def test_invalid_bytes_become_replacement_characters(data: bytes, text: str) -> None:
    assert decode_bytes(data) == text
    assert byte_offsets(data, [0, len(data)]) == (0, len(text))


def test_a_tokenizer_that_puts_a_space_first_does_so_only_at_the_start() -> None:
    library = sentencepiece_like()
    tokenizer = tokenizer_from_json(
        library.to_str(), {"eos_token": "</s>", "bos_token": "<s>", "add_bos_token": True}
    )
    # As the library: ▁ab. As a piece inside a text: ab.
    assert tokenizer.encode_start("ab") == tuple(library.encode("ab", add_special_tokens=False).ids) == (264,)
    assert tokenizer.encode("ab") == (263,)
    assert tokenizer.decode(tokenizer.encode(" ab ab")) == " ab ab"
    assert tokenizer.bos_id == 1
    # The library strips the first space of whatever it decodes; a continuation needs it.
    assert library.decode([264]) == "ab"
    assert tokenizer.decode((264,)) == " ab"
    # é is two byte tokens: C3 A9.
    assert tokenizer.encode("é") == (3 + 0xC3, 3 + 0xA9)
    assert tokenizer.decode((3 + 0xC3, 3 + 0xA9)) == "é"
    assert tokenizer.offsets((3 + 0xC3, 3 + 0xA9, 264)) == (0, 0, 1)


def test_tokens_that_no_re_encoding_gives_stay_as_they_are() -> None:
    # Case P083 of the fault reports: sampled ids he|llo, of which the tokenizer itself would make hello.
    vocab = {t: i for i, t in enumerate(["h", "e", "l", "o", "he", "ll", "llo", "hello"])}
    merges = [("h", "e"), ("l", "l"), ("ll", "o"), ("he", "llo")]
    tokenizer = tokenizer_from_json(Tokenizer(models.BPE(vocab, merges)).to_str())
    assert tokenizer.decode((4, 6)) == "hello"
    assert tokenizer.encode("hello") == (7,)
    assert tokenizer.offsets((4, 6)) == (0, 2)


def test_a_stored_truncation_rule_cuts_nothing() -> None:
    library = byte_level()
    library.enable_truncation(3)
    library.enable_padding(length=50)
    tokenizer = tokenizer_from_json(library.to_str())
    text = "the answer is 42 and so on"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_start_token_is_the_one_that_the_tokenizer_adds_itself() -> None:
    library = byte_level()
    named_only = {"bos_token": "<s>", "eos_token": "</s>"}
    assert tokenizer_from_json(library.to_str(), named_only).bos_id is None
    library.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    assert tokenizer_from_json(library.to_str(), named_only).bos_id == 0
    assert tokenizer_from_json(library.to_str(), named_only | {"add_bos_token": False}).bos_id is None
    # encode never adds it.
    assert 0 not in tokenizer_from_json(library.to_str(), named_only).encode("12")


def test_end_tokens_come_from_all_three_configurations() -> None:
    library = byte_level(specials=("<s>", "</s>", "<|im_end|>"))
    tokenizer = tokenizer_from_json(
        library.to_str(), {"eos_token": {"content": "</s>"}}, {"eos_token_id": [2]}, {"eos_token_id": 1}
    )
    assert tokenizer.eos_ids == {1, 2}


def test_equal_content_has_an_equal_hash_and_other_content_another() -> None:
    library = byte_level()
    raw = json.loads(library.to_str())
    one = tokenizer_from_json(json.dumps(raw))
    # Spacing, key order, post-processing, padding and the older spelling of merges change no id.
    older = json.loads(json.dumps(raw, sort_keys=True))
    older["model"]["merges"] = [" ".join(m) if isinstance(m, list) else m for m in raw["model"]["merges"]]
    older["truncation"] = {"direction": "Right", "max_length": 9, "strategy": "LongestFirst", "stride": 0}
    assert tokenizer_from_json(json.dumps(older)).hash == one.hash
    library.add_tokens([AddedToken("<step>", special=False)])
    assert tokenizer_from_json(library.to_str()).hash != one.hash
    swapped = json.loads(json.dumps(raw))
    vocab = swapped["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    assert tokenizer_from_json(json.dumps(swapped)).hash != one.hash
    assert ByteTokenizer().hash == "utf8-bytes"


def test_ids_beyond_the_vocabulary_have_no_text() -> None:
    # Models with a padded embedding can sample them.
    assert BYTE_LEVEL.decode((BYTE_LEVEL.vocab_size + 5,)) == ""
    with pytest.raises(ModelError, match="negative"):
        BYTE_LEVEL.decode((-1,))


def test_what_cannot_be_encoded_or_read_is_named(tmp_path: Path) -> None:
    for tokenizer in (BYTE_LEVEL, ByteTokenizer()):
        with pytest.raises(FormatError, match="character 1"):
            tokenizer.encode("a\ud800")
    with pytest.raises(ModelError, match="256 is not in"):
        ByteTokenizer().decode((65, 256))
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="can be read"):
        load_tokenizer(tmp_path)
    joined_by_spaces = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    joined_by_spaces.decoder = decoders.WordPiece()
    with pytest.raises(ModelError, match="WordPiece does not keep the text"):
        tokenizer_from_json(joined_by_spaces.to_str())


def test_the_library_is_imported_only_when_a_tokenizer_is_loaded() -> None:
    import subprocess
    import sys

    code = "import sys, stepward.prm.tokenizer as t; t.ByteTokenizer().encode('a'); print('tokenizers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
