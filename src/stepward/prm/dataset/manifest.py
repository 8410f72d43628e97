"""What a dataset folder says of itself: the run that made it, and what came out.

A manifest holds nothing that depends on time, machine or cache, so that the same run gives the same bytes. Who
makes one hands in a ``config`` without paths of a machine; tokens and keys are scrubbed here in any case.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

from stepward.prm.errors import StoreError
from stepward.prm.types import Allocation, LabelerInfo, PolicyInfo, Sampler

JsonObject = Mapping[str, Any]


def canonical_json(value: object) -> str:
    """JSON with sorted keys and no free choice of spacing: equal values give equal text.

    Raises:
        ValueError: The value holds NaN or an infinity.
    """
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def config_hash(config: JsonObject) -> str:
    """The first 16 hex digits of SHA-256 over the canonical JSON of a configuration, scrubbed first."""
    return hashlib.sha256(canonical_json(scrub(config)).encode()).hexdigest()[:16]


_SECRET_NAME = re.compile(
    r"^token$|(^|_)(api_?key|(hf|access|auth|bearer|refresh|hub)_?token|secret|password|passwd|authorization|"
    r"credentials?)$",
    re.IGNORECASE,
)
_SECRET_TEXT = re.compile(
    r"hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|(?<=Bearer )\S+|(?<=://)[^/@\s]+:[^/@\s]+(?=@)"
)
SCRUBBED = "[scrubbed]"


def scrub_text(text: str) -> str:
    """The text without what looks like a token or key; for error messages and logs as well."""
    return _SECRET_TEXT.sub(SCRUBBED, text)


def scrub(value: Any) -> Any:
    """A copy of a JSON value without secrets: by the name of the field, and by the look of the text."""
    if isinstance(value, Mapping):
        items = cast(Mapping[str, Any], value).items()
        return {k: SCRUBBED if isinstance(v, str) and _SECRET_NAME.match(k) else scrub(v) for k, v in items}
    if isinstance(value, list | tuple):
        return [scrub(v) for v in cast(Sequence[Any], value)]
    return scrub_text(value) if isinstance(value, str) else value


@dataclass(frozen=True, slots=True)
class FileReceipt:
    """One stored file.

    Attributes:
        path: Relative to the folder, with forward slashes.
        sha256: Of its bytes.
        num_bytes: Its size.
        num_rows: Rows of the table in it.
    """

    path: str
    sha256: str
    num_bytes: int
    num_rows: int


@dataclass(frozen=True, slots=True)
class Totals:
    """What a shard, or the whole dataset, holds.

    Attributes:
        problems: Runs of rows with the same problem id (a problem's rows stand together).
        solutions: Rows of the solutions table.
        rollouts: Rows of the rollouts table.
        steps: Steps of all solutions.
        labels: Steps by label: ``right``, ``wrong``, ``unknown``.
        first_errors: Solutions by what is known: ``none`` (every step right), ``some``, ``unknown``.
        outcomes: Solutions by their own outcome; ``not_graded`` where it is null.
        draws: Rollouts counted at the prefixes, by outcome.
        prompt_tokens: Sum over rows.
        generated_tokens: Sum over rows.
        sources: Solutions by ``source``.
        licences: Solutions by ``licence``; empty = unknown.
    """

    problems: int = 0
    solutions: int = 0
    rollouts: int = 0
    steps: int = 0
    labels: Mapping[str, int] = field(default_factory=dict[str, int])
    first_errors: Mapping[str, int] = field(default_factory=dict[str, int])
    outcomes: Mapping[str, int] = field(default_factory=dict[str, int])
    draws: Mapping[str, int] = field(default_factory=dict[str, int])
    prompt_tokens: int = 0
    generated_tokens: int = 0
    sources: Mapping[str, int] = field(default_factory=dict[str, int])
    licences: Mapping[str, int] = field(default_factory=dict[str, int])

    def __add__(self, other: "Totals") -> "Totals":
        """Counts added name by name."""
        return sum_of((self, other))


def sum_of(parts: Iterable[Totals]) -> Totals:
    """Totals of all parts together, counts added name by name."""
    numbers: Counter[str] = Counter()
    tallies: dict[str, Counter[str]] = {name: Counter() for name in _TALLIES}
    for part in parts:
        for name in _NUMBERS:
            numbers[name] += getattr(part, name)
        for name, tally in tallies.items():
            tally.update(getattr(part, name))
    whole: dict[str, Any] = {**numbers, **{name: dict(+tally) for name, tally in tallies.items()}}
    return Totals(**whole)


_NUMBERS = ("problems", "solutions", "rollouts", "steps", "prompt_tokens", "generated_tokens")
_TALLIES = ("labels", "first_errors", "outcomes", "draws", "sources", "licences")


@dataclass(frozen=True, slots=True)
class Receipt:
    """What is written last for a shard: with it the shard is finished.

    Attributes:
        index: Number of the shard, from 0.
        run: ``Manifest.run_id`` of the run that wrote it; a receipt of another run counts for nothing.
        files: Its files: solutions first, then rollouts.
        totals: What it holds.
    """

    index: int
    run: str
    files: tuple[FileReceipt, ...]
    totals: Totals


@dataclass(frozen=True, slots=True)
class Manifest:
    """The run that made a dataset; ``totals``, ``shards`` and ``fingerprint`` are filled in by sealing.

    Attributes:
        config: What decides the rows, as JSON values, without paths of a machine and output places.
        code_version: Version or revision of the code. Not part of ``run_id``: a run may be resumed by a later
            one, which the manifest then names.
        seeds: Seeds by what they are for.
        policy: Who sampled solutions, None where they were brought.
        completer: Who sampled rollouts, None where there were none.
        allocation: How rollouts were spread.
        labeler: The label rule.
        constants: Run-wide constants that a pilot fixed.
        prompts: Prompt template by hash.
        step_format: ``StepFormat`` as JSON.
        tokenizer_hash: Hash of the tokenizer of the ids.
        contamination: What was checked against which sets, and found.
        derived_from: Fingerprint and name of the dataset that this one was made from, where there is one.
        schema_version: Version of both tables.
        file_format: ``parquet`` or ``arrow`` (the IPC file format).
        totals: What all shards hold.
        shards: Their receipts, in order.
        fingerprint: Hash over the checksums of all shards.
    """

    config: JsonObject
    code_version: str
    allocation: Allocation
    labeler: LabelerInfo
    seeds: Mapping[str, int] = field(default_factory=dict[str, int])
    policy: PolicyInfo | None = None
    completer: PolicyInfo | None = None
    constants: JsonObject = field(default_factory=dict[str, Any])
    prompts: Mapping[str, str] = field(default_factory=dict[str, str])
    step_format: JsonObject = field(default_factory=dict[str, Any])
    tokenizer_hash: str = ""
    contamination: JsonObject = field(default_factory=dict[str, Any])
    derived_from: JsonObject = field(default_factory=dict[str, Any])
    schema_version: int = 3
    file_format: str = "parquet"
    totals: Totals | None = None
    shards: tuple[Receipt, ...] = ()
    fingerprint: str | None = None

    @property
    def config_hash(self) -> str:
        """Hash of the configuration alone."""
        return config_hash(self.config)

    @property
    def run_id(self) -> str:
        """Hash of everything that decides the rows: two runs with one id give the same rows."""
        return hashlib.sha256(canonical_json(self.identity()).encode()).hexdigest()[:16]

    def identity(self) -> dict[str, Any]:
        """The fields that decide the rows, as JSON values."""
        # Without what came out, of which there is a receipt a shard: none of it decides rows.
        row = _to_json(replace(self, totals=None, shards=()))
        return {name: row[name] for name in _IDENTITY}

    def to_json(self) -> str:
        """Text of manifest.json: indented, keys sorted, secrets scrubbed, the same for the same run."""
        row = {**_to_json(self), "config_hash": self.config_hash, "run_id": self.run_id}
        return json.dumps(row, sort_keys=True, ensure_ascii=False, indent=1, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str, *, place: str = "manifest.json") -> "Manifest":
        """The inverse of ``to_json``.

        Raises:
            StoreError: The text is no manifest, or its ``run_id`` is not the hash of its fields.
        """
        try:
            row = json.loads(text)
            stated = row["run_id"]
            manifest = cls(
                policy=_policy_of(row["policy"]),
                completer=_policy_of(row["completer"]),
                allocation=Allocation(row["allocation"]),
                labeler=LabelerInfo(**row["labeler"]),
                totals=None if row["totals"] is None else Totals(**row["totals"]),
                shards=tuple(receipt_of(r) for r in row["shards"]),
                **{name: row[name] for name in _PLAIN},
            )
        except (ValueError, KeyError, TypeError) as fault:
            raise StoreError(
                f"{place} is no manifest of this Stepward: {fault!r}; it was cut or edited"
            ) from fault
        if manifest.run_id != stated:
            raise StoreError(
                f"{place} was edited: it states run_id {stated}, its fields give {manifest.run_id}"
            )
        return manifest


_IDENTITY = (
    "config", "seeds", "policy", "completer", "allocation", "labeler", "constants", "prompts", "step_format",
    "tokenizer_hash", "derived_from", "schema_version", "file_format",
)  # fmt: skip
_PLAIN = (
    "config", "code_version", "seeds", "constants", "prompts", "step_format", "tokenizer_hash", "contamination",
    "derived_from", "schema_version", "file_format", "fingerprint",
)  # fmt: skip


def _to_json(manifest: Manifest) -> dict[str, Any]:
    # json round trip: what is compared and hashed is what a reader of the file will see (tuples as lists, ...)
    row = asdict(replace(manifest, prompts={}))
    scrubbed = scrub(row)
    # a prompt is stored to the letter: its hash stands in every row
    scrubbed["prompts"] = dict(manifest.prompts)
    return cast(dict[str, Any], json.loads(canonical_json(scrubbed)))


def _policy_of(row: dict[str, Any] | None) -> PolicyInfo | None:
    if row is None:
        return None
    sampler: dict[str, Any] = row["sampler"]
    stop = tuple(sampler["stop"])
    plain = {k: v for k, v in row.items() if k != "sampler"}
    return PolicyInfo(
        **plain, sampler=Sampler(**{k: v for k, v in sampler.items() if k != "stop"}, stop=stop)
    )


def receipt_of(row: dict[str, Any]) -> Receipt:
    """The receipt of its JSON value."""
    files = tuple(FileReceipt(**f) for f in row["files"])
    return Receipt(row["index"], row["run"], files, Totals(**row["totals"]))


def fingerprint_of(shards: Sequence[Receipt]) -> str:
    """Hash over the checksums of all shards in order: equal for equal bytes, whoever wrote them."""
    files = [[f.path, f.sha256, f.num_rows] for shard in shards for f in shard.files]
    return hashlib.sha256(canonical_json(files).encode()).hexdigest()
