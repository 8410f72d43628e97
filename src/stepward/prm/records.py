"""Rows of a file or folder as dicts, one at a time: JSON Lines, plain or gzipped, JSON, Parquet, ``datasets``.

A row that cannot be read is named by file and line. Nothing is guessed and nothing skipped but blank lines; who
reads on behind such rows gets each of them told.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
# pyarrow has no type stubs, datasets incomplete ones.

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, cast
from urllib.parse import parse_qsl

from stepward.prm.errors import InputError, ProblemFileError

Row = dict[str, Any]
Unread = Callable[["Place", str], None]
"""Told the place of a row that cannot be read, and why."""

_LINES = (".jsonl", ".jsonl.gz", ".ndjson", ".json.gz")
_FILES = (*_LINES, ".json", ".parquet")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a row stands: ``number`` counts lines of a text file, rows of anything else, from 1."""

    path: str
    number: int
    is_line: bool = True

    def fault(self, what: str) -> ProblemFileError:
        """The error that names this place."""
        if self.is_line:
            return ProblemFileError(self.path, self.number, what)
        return ProblemFileError(self.path, None, f"row {self.number}: {what}")


def split_options(source: str) -> tuple[str, dict[str, str]]:
    """``name?key=value&key=value`` -> name and options; a path that exists is taken as it is."""
    if "?" not in source or Path(source).exists():
        return source, {}
    name, _, query = source.partition("?")
    return name, dict(parse_qsl(query, keep_blank_values=True))


def stem_of(source: str) -> str:
    """A name for where rows come from that is no path of a machine: the file's stem, or a Hub id."""
    name, _ = split_options(source)
    if not Path(name).exists() and "/" in name and Path(name).suffix == "":
        return name
    stem = Path(name).name
    for ending in sorted(_FILES, key=len, reverse=True):
        stem = stem.removesuffix(ending)
    return stem


def read_records(source: str | Path, *, unread: Unread | None = None) -> Iterator[tuple[Place, Row]]:
    """Rows of a source, streamed: memory stays flat however many rows, but for ``.json``, whose text is read whole.

    Args:
        source: A ``.jsonl``, ``.jsonl.gz``, ``.json`` or ``.parquet`` file; a folder of such files; a folder that
            ``datasets`` saved; or a Hub id, as ``owner/name?config=main&split=test&revision=...``.
        unread: Where given, it is told of each row that cannot be read, and the rows after it are read.

    Raises:
        ProblemFileError: No such source, a file that cannot be read, or, without ``unread``, a row.
    """
    name, options = split_options(str(source))
    path = Path(name)
    if path.is_dir():
        yield from _read_folder(path, options, unread or _refuse)
    elif path.is_file():
        yield from _read_file(path, unread or _refuse)
    elif name.count("/") == 1 and not name.startswith((".", "/", "~")) and path.suffix not in _FILES:
        yield from _read_hub(name, options)
    else:
        raise ProblemFileError(name, None, "no such file or folder, and not a Hub id (owner/name)")


def _refuse(place: Place, why: str) -> None:
    raise place.fault(why)


def _read_file(path: Path, unread: Unread) -> Iterator[tuple[Place, Row]]:
    if path.name.endswith(".parquet"):
        return _read_parquet(path)
    if path.name.endswith(_LINES):
        return _read_lines(path, unread)
    if path.name.endswith(".json"):
        return _read_json(path, unread)
    raise ProblemFileError(path, None, f"unknown kind of file; readable are {', '.join(_FILES)}")


def _read_lines(path: Path, unread: Unread) -> Iterator[tuple[Place, Row]]:
    number = 0
    with gzip.open(path, "rb") if path.name.endswith(".gz") else path.open("rb") as file:
        lines = iter(file)
        while True:
            place = Place(str(path), number + 1)
            try:
                line = next(lines, None)
            except (EOFError, OSError, zlib.error) as fault:
                raise place.fault(f"the compressed file is cut or damaged here ({fault})") from fault
            if line is None:
                return
            number += 1
            # Files that were joined have a byte order mark at the head of each.
            row = _parse(line.removeprefix(b"\xef\xbb\xbf"))
            if isinstance(row, str):
                unread(place, row)
            elif row is not None:
                yield place, row


def _parse(line: bytes) -> Row | str | None:
    """The row of a line, why it is none, or None where the line is blank."""
    try:
        text = line.decode()
        if not text.strip():
            return None
        return _as_row(json.loads(text, parse_constant=_refuse_constant))
    except UnicodeDecodeError as fault:
        return f"not UTF-8 (byte {fault.start} of the line); save the file as UTF-8"
    except (ValueError, RecursionError) as fault:
        shown = line[:60].decode(errors="replace").strip()
        return f"not a JSON object, or a line that was cut: {fault} (it begins {shown!r})"


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(_no_value(name))


def _no_value(name: str) -> str:
    return f"{name} is no JSON value; write null where a number is not known"


def _as_row(value: object) -> Row | str:
    if not isinstance(value, dict):
        return f"a JSON object is wanted, found {type(value).__name__}"
    return cast(Row, value)


def _read_json(path: Path, unread: Unread) -> Iterator[tuple[Place, Row]]:
    """Rows of a list of objects, decoded one by one: the text is in memory, the objects are not."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except ValueError as fault:
        raise ProblemFileError(path, None, f"not UTF-8: {fault}; save the file as UTF-8") from fault
    constants: list[str] = []
    decoder = json.JSONDecoder(parse_constant=constants.append)
    at = _behind_blanks(text, 0)
    if not text.startswith("[", at):
        raise ProblemFileError(path, None, "a list of objects is wanted; JSON Lines files end in .jsonl")
    at = _behind_blanks(text, at + 1)
    number, more = 0, not text.startswith("]", at)
    while more:
        number += 1
        place = Place(str(path), number, is_line=False)
        constants.clear()
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as fault:
            raise place.fault(f"not JSON: {fault}; a list of objects, or JSON Lines, is wanted") from fault
        row = _no_value(constants[0]) if constants else _as_row(value)
        if isinstance(row, str):
            unread(place, row)
        else:
            yield place, row
        at = _behind_blanks(text, at)
        more = text.startswith(",", at)
        if more:
            at = _behind_blanks(text, at + 1)
        elif not text.startswith("]", at):
            raise place.fault("not JSON: after it a comma or the list's end is wanted; the file may be cut")
    if _behind_blanks(text, at + 1) < len(text):
        raise ProblemFileError(path, None, "not JSON: something follows the list of objects")


def _behind_blanks(text: str, at: int) -> int:
    while text[at : at + 1] in (" ", "\t", "\r", "\n"):
        at += 1
    return at


def _read_parquet(path: Path) -> Iterator[tuple[Place, Row]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(1024):
                for row in batch.to_pylist():
                    number += 1
                    yield Place(str(path), number, is_line=False), row
    except (pa.ArrowException, OSError) as fault:
        raise Place(str(path), number + 1, is_line=False).fault(
            f"not readable as Parquet: {fault}"
        ) from fault


def _read_folder(path: Path, options: dict[str, str], unread: Unread) -> Iterator[tuple[Place, Row]]:
    if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
        import datasets

        saved = datasets.load_from_disk(str(path))
        parts = saved if isinstance(saved, datasets.DatasetDict) else {"": saved}
        yield from _numbered(str(path), _one_split(str(path), parts, options))
        return
    files = [p for p in sorted(path.iterdir()) if p.is_file() and p.name.endswith(_FILES)]
    if not files:
        raise ProblemFileError(
            path, None, f"the folder holds no data ({', '.join(_FILES)} or a saved datasets folder)"
        )
    for file in files:
        yield from _read_file(file, unread)


def _read_hub(name: str, options: dict[str, str]) -> Iterator[tuple[Place, Row]]:
    import datasets

    try:
        parts = datasets.load_dataset(
            name, options.get("config"), revision=options.get("revision"), streaming=True
        )
    except Exception as fault:  # datasets raises many kinds; the user needs the name and the remedy
        raise InputError(
            f"reading {name!r} from the Hub failed: {fault}. It was taken for a Hub id because no such file or "
            "folder exists; name a configuration as owner/name?config=...&split=..."
        ) from fault
    yield from _numbered(name, _one_split(name, cast(dict[str, Any], parts), options))


def _one_split(name: str, parts: Any, options: dict[str, str]) -> Any:
    splits = list(parts)
    split = options.get("split", splits[0] if len(splits) == 1 else None)
    if split not in splits:
        raise ProblemFileError(name, None, f"name a split as {name}?split=...; it has {', '.join(splits)}")
    return parts[split]


def _numbered(name: str, rows: Any) -> Iterator[tuple[Place, Row]]:
    for number, row in enumerate(rows, 1):
        yield Place(name, number, is_line=False), cast(Row, row)
