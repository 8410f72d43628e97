"""Text <-> token ids, exact to the character, without transformers.

Decoding is a table look-up: every id has its bytes, ``decode(a + b)`` is the text of the joined bytes, and
``offsets`` follow from the same bytes. So a continuation decodes the same with and without what stands before
it, which the decoders that strip a first space (SentencePiece models) do not promise.
"""

import bisect
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from stepward.prm.errors import FormatError, ModelError
from stepward.prm.policy import Tokenizer
from stepward.prm.types import TokenIds

if TYPE_CHECKING:
    import tokenizers

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ByteTokenizer:
    """Ids are the UTF-8 bytes of the text. For engines that speak text only, and for logs."""

    @property
    def hash(self) -> str:
        """Always ``utf8-bytes``."""
        return "utf8-bytes"

    @property
    def bos_id(self) -> int | None:
        """None: bytes have no start token."""
        return None

    @property
    def eos_ids(self) -> frozenset[int]:
        """Empty: bytes have no end token."""
        return frozenset()

    def encode(self, text: str) -> TokenIds:
        """The bytes of the text. Raises FormatError on a lone surrogate."""
        return tuple(_utf8(text))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of the bytes; invalid bytes become U+FFFD."""
        return decode_bytes(_as_bytes(ids))

    def offsets(self, ids: Sequence[int]) -> tuple[int, ...]:
        """Character index at which each byte starts, or of the character it lies in."""
        return byte_offsets(_as_bytes(ids), range(len(ids)))


@dataclass(frozen=True, slots=True, eq=False)
class JsonTokenizer:
    """A ``tokenizer.json`` behind the ``Tokenizer`` protocol. Made by ``load_tokenizer``.

    Attributes:
        hash: SHA-256 (16 hex digits) of vocabulary, merges, added tokens, normaliser, pre-tokeniser and decoder.
        bos_id: The token that the model's own tokenizer puts before every text, or None where it puts none.
        eos_ids: Tokens that end a completion.
        specials: Text -> id of the control tokens; text from outside must not hold them.
        vocab_size: One more than the highest id.
    """

    hash: str
    bos_id: int | None
    eos_ids: frozenset[int]
    specials: Mapping[str, int]
    vocab_size: int
    _pieces: tuple[bytes, ...] = field(repr=False)
    _start: "tokenizers.Tokenizer" = field(repr=False)
    _inner: "tokenizers.Tokenizer" = field(repr=False)

    def encode(self, text: str) -> TokenIds:
        """Ids of the text as it stands inside a sequence: no special token and no prefix space added.

        Control tokens spelt out in the text become their ids. Raises FormatError on a lone surrogate.
        """
        _utf8(text)
        return tuple(self._inner.encode(text, add_special_tokens=False).ids)

    def encode_start(self, text: str) -> TokenIds:
        """Ids of a text that starts a sequence, as the model's own tokenizer gives them, special tokens not added.

        Differs from ``encode`` only for tokenizers that put a space before the first word.
        """
        _utf8(text)
        return tuple(self._start.encode(text, add_special_tokens=False).ids)

    def piece(self, token_id: int) -> bytes:
        """The bytes of one id; empty for an end token and for an id that the vocabulary does not name."""
        if token_id < 0:
            raise ModelError(f"decoding token ids: {token_id} is negative; ids start at 0")
        return self._pieces[token_id] if token_id < len(self._pieces) else b""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids, without end tokens. Bytes that are no UTF-8 become U+FFFD."""
        return decode_bytes(self._bytes(ids))

    def offsets(self, ids: Sequence[int]) -> tuple[int, ...]:
        """Start of each id's text, as a character index into ``decode(ids)``; length = len(ids)."""
        starts: list[int] = []
        position = 0
        for token_id in ids:
            starts.append(position)
            position += len(self.piece(token_id))
        return byte_offsets(self._bytes(ids), starts)

    def _bytes(self, ids: Sequence[int]) -> bytes:
        """All pieces joined; every rollout is decoded, so without a call an id."""
        pieces = self._pieces
        if len(ids) and min(ids) >= 0:
            try:
                return b"".join([pieces[i] for i in ids])
            except IndexError:
                pass
        return b"".join(map(self.piece, ids))


def encode_start(tokenizer: Tokenizer, text: str) -> TokenIds:
    """Ids of a text that starts a sequence, for any tokenizer."""
    if isinstance(tokenizer, JsonTokenizer):
        return tokenizer.encode_start(text)
    return tokenizer.encode(text)


def decode_bytes(data: bytes) -> str:
    """UTF-8 with U+FFFD for each maximal run of bytes that cannot be part of a character."""
    return data.decode("utf-8", errors="replace")


def byte_offsets(data: bytes, starts: Sequence[int]) -> tuple[int, ...]:
    """Character index, in ``decode_bytes(data)``, of the character that holds each byte position.

    Args:
        data: Bytes, valid UTF-8 or not.
        starts: Ascending byte positions in [0, len(data)].

    Returns:
        One index a position; a position in the middle of a character has that character's index, the position
        ``len(data)`` has the length of the text.
    """
    firsts = _character_starts(data)
    last = len(data)
    return tuple(len(firsts) if s >= last else bisect.bisect_right(firsts, s) - 1 for s in starts)


def load_tokenizer(folder: str | Path) -> JsonTokenizer:
    """Read ``tokenizer.json`` and, where they exist, the configurations beside it.

    Args:
        folder: A checkpoint folder.

    Raises:
        ModelError: No ``tokenizer.json``, or one whose decoder does not keep the text.
    """
    folder = Path(folder)
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelError(
            f"loading the tokenizer of {folder.name}: there is no tokenizer.json; "
            "save the checkpoint with a fast tokenizer (AutoTokenizer.from_pretrained(...).save_pretrained(...))"
        )
    configs = [
        _read_json(folder / name)
        for name in ("tokenizer_config.json", "generation_config.json", "config.json")
    ]
    return tokenizer_from_json(path.read_text(encoding="utf-8"), *configs, name=folder.name)


def tokenizer_from_json(
    text: str,
    tokenizer_config: Json | None = None,
    generation_config: Json | None = None,
    model_config: Json | None = None,
    *,
    name: str = "tokenizer.json",
) -> JsonTokenizer:
    """Build a tokenizer from the text of a ``tokenizer.json``.

    Args:
        text: Its text.
        tokenizer_config: ``tokenizer_config.json``: names the start and end tokens.
        generation_config: ``generation_config.json``: names further end tokens.
        model_config: ``config.json``: end tokens where the others name none.
        name: What errors call it.

    Raises:
        ModelError: The text is no tokenizer, or its decoder does not keep the text.
    """
    import tokenizers

    try:
        raw = cast(Json, json.loads(text))
        start = tokenizers.Tokenizer.from_str(text)
    except Exception as fault:
        raise ModelError(
            f"loading the tokenizer of {name}: not a tokenizer.json that can be read: {fault}"
        ) from fault
    # A stored truncation rule would silently cut long prompts, a padding rule would lengthen short ones.
    start.no_truncation()
    start.no_padding()
    inner = start
    without_prefix = _without_prefix_space(raw)
    if without_prefix != raw:
        inner = tokenizers.Tokenizer.from_str(json.dumps(without_prefix))
        inner.no_truncation()
        inner.no_padding()
    tokenizer_config = tokenizer_config or {}
    eos_ids = _eos_ids(start, tokenizer_config, generation_config or {}, model_config or {})
    pieces = _pieces(raw, start, name)
    for eos in eos_ids:
        if eos < len(pieces):
            pieces[eos] = b""
    return JsonTokenizer(
        hash=_content_hash(raw),
        bos_id=_bos_id(start, tokenizer_config),
        eos_ids=eos_ids,
        specials={t["content"]: t["id"] for t in _added_tokens(raw) if t.get("special")},
        vocab_size=len(pieces),
        _pieces=tuple(pieces),
        _start=start,
        _inner=inner,
    )


def _utf8(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as fault:
        raise FormatError(
            f"encoding a text: character {fault.start} ({text[fault.start]!r}) is a lone surrogate and has no UTF-8 "
            "form; repair the source, for example with text.encode('utf-8', 'replace').decode()"
        ) from fault


def _as_bytes(ids: Sequence[int]) -> bytes:
    try:
        return bytes(ids)
    except ValueError as fault:
        bad = next(i for i in ids if not 0 <= i <= 255)
        raise ModelError(
            f"decoding bytes: id {bad} is not in 0..255; were these ids made by another tokenizer?"
        ) from fault


def _character_starts(data: bytes) -> list[int]:
    """Byte position of every character of ``decode_bytes(data)``."""
    starts: list[int] = []
    position = 0
    while position < len(data):
        try:
            data[position:].decode("utf-8")
            valid, bad = len(data) - position, 0
        except UnicodeDecodeError as fault:
            valid, bad = fault.start, fault.end - fault.start
        starts += [position + i for i in range(valid) if data[position + i] & 0xC0 != 0x80]
        position += valid
        if bad:
            starts.append(position)
            position += bad
    return starts


def _read_json(path: Path) -> Json:
    if not path.is_file():
        return {}
    try:
        return cast(Json, json.loads(path.read_text(encoding="utf-8")))
    except ValueError as fault:
        raise ModelError(f"reading {path.name} of {path.parent.name}: not JSON: {fault}") from fault


def _content_hash(raw: Json) -> str:
    """Of what decides ids and text; two spellings of the same merges hash alike."""
    model = {k: v for k, v in cast(Json, raw.get("model") or {}).items() if v not in (None, False)}
    if "merges" in model:
        model["merges"] = [m.split(" ", 1) if isinstance(m, str) else list(m) for m in model["merges"]]
    parts = {k: raw.get(k) for k in ("added_tokens", "normalizer", "pre_tokenizer", "decoder")} | {
        "model": model
    }
    text = json.dumps(parts, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _token_text(value: Any) -> str | None:
    return cast(str | None, cast(Json, value).get("content") if isinstance(value, dict) else value)


def _added_tokens(raw: Json) -> list[Json]:
    return cast(list[Json], raw.get("added_tokens") or [])


def _bos_id(tokenizer: "tokenizers.Tokenizer", config: Json) -> int | None:
    """The start token, only where the model's own tokenizer adds it: many models name one and never use it."""
    adds = config.get("add_bos_token")
    if adds is False:
        return None
    if adds is True:
        bos = _token_text(config.get("bos_token"))
        return tokenizer.token_to_id(bos) if bos else None
    with_specials = tokenizer.encode("a", add_special_tokens=True)
    if with_specials.ids and with_specials.special_tokens_mask[0]:
        return with_specials.ids[0]
    return None


def _eos_ids(
    tokenizer: "tokenizers.Tokenizer", config: Json, generation_config: Json, model_config: Json
) -> frozenset[int]:
    ids: set[int] = set()
    for value in (generation_config.get("eos_token_id"), model_config.get("eos_token_id")):
        ids.update(cast(list[int], value) if isinstance(value, list) else [] if value is None else [value])
    eos = _token_text(config.get("eos_token"))
    if eos and (eos_id := tokenizer.token_to_id(eos)) is not None:
        ids.add(eos_id)
    return frozenset(ids)


def _decoders(raw: Json) -> list[Json]:
    decoder = raw.get("decoder")
    if decoder is None:
        return []
    return cast(list[Json], decoder["decoders"] if decoder["type"] == "Sequence" else [decoder])


_EXACT_DECODERS = frozenset({"ByteLevel", "Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"})


def _pieces(raw: Json, tokenizer: "tokenizers.Tokenizer", name: str) -> list[bytes]:
    """The bytes of every id. Without a decoder a token's text is its piece: joining with spaces would be wrong."""
    decoders = _decoders(raw)
    kinds = [d["type"] for d in decoders]
    unknown = [k for k in kinds if k not in _EXACT_DECODERS]
    if unknown:
        raise ModelError(
            f"loading the tokenizer of {name}: its decoder {unknown[0]} does not keep the text exactly; "
            f"Stepward reads tokenizers whose decoder is one of {', '.join(sorted(_EXACT_DECODERS))}, or none"
        )
    added: dict[int, str] = {t["id"]: t["content"] for t in _added_tokens(raw)}
    vocab = tokenizer.get_vocab(with_added_tokens=True)
    pieces = [b""] * (1 + max(vocab.values(), default=-1))
    from_char = _byte_of_char() if "ByteLevel" in kinds else {}
    for token, token_id in vocab.items():
        if token_id in added:
            pieces[token_id] = added[token_id].encode("utf-8")
        elif from_char and all(c in from_char for c in token):
            pieces[token_id] = bytes(from_char[c] for c in token)
        else:
            pieces[token_id] = _piece_of(token, decoders)
    return pieces


def _piece_of(token: str, decoders: list[Json]) -> bytes:
    for decoder in decoders:
        if decoder["type"] == "Metaspace":
            token = token.replace(decoder.get("replacement", "▁"), " ")
        elif decoder["type"] == "Replace" and "String" in decoder["pattern"]:
            token = token.replace(decoder["pattern"]["String"], decoder["content"])
        elif decoder["type"] == "ByteFallback" and len(token) == 6 and token[:3] == "<0x" and token[5] == ">":
            return bytes([int(token[3:5], 16)])
    return token.encode("utf-8")


def _byte_of_char() -> dict[str, int]:
    """The printable stand-in of each byte in byte-level BPE (Radford et al. 2019), inverted."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in set(kept)]
    return {chr(b): b for b in kept} | {chr(256 + i): b for i, b in enumerate(rest)}


def _without_prefix_space(raw: Json) -> Json:
    """The same tokenizer for text inside a sequence: the rules that put a space before the first word dropped."""
    changed = cast(Json, json.loads(json.dumps(raw)))
    normalizer = changed.get("normalizer")
    if normalizer and normalizer["type"] == "Prepend":
        changed["normalizer"] = None
    elif normalizer and normalizer["type"] == "Sequence":
        normalizer["normalizers"] = [n for n in normalizer["normalizers"] if n["type"] != "Prepend"]
    pre = changed.get("pre_tokenizer")
    for part in (pre["pretokenizers"] if pre["type"] == "Sequence" else [pre]) if pre else []:
        if part["type"] == "Metaspace":
            part["prepend_scheme"] = "never"
            part.pop("add_prefix_space", None)
        elif part["type"] == "ByteLevel":
            part["add_prefix_space"] = False
    return changed
