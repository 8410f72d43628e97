"""A folder of the schema version before: verified, read by every door, labelled again into one of this version.

It is made here with its own schema and manifest, as the code of that version wrote them, and with nothing of the
store.
"""

import hashlib
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stepward.labeling.relabel import Relabeling, relabel_dataset
from stepward.prm.audit.hygiene import statistics
from stepward.prm.audit.labels import apply_corrections
from stepward.prm.dataset.schema import ROLLOUTS_SCHEMA, SCHEMA_VERSION, SOLUTIONS_SCHEMA
from stepward.prm.dataset.store import Manifest, ShardStore, open_dataset, verify
from stepward.prm.errors import StoreError
from stepward.prm.publishing.cards import write_card
from stepward.prm.types import Allocation, Counts, LabelerInfo, Outcome

TEXT, INT, LONG, REAL = pa.string(), pa.int32(), pa.int64(), pa.float64()


def struct(**fields: pa.DataType) -> pa.DataType:
    return pa.struct(list(fields.items()))


SAMPLER = struct(temperature=REAL, top_p=REAL, top_k=INT, min_p=REAL, max_tokens=INT, stop=pa.list_(TEXT))
POLICY = struct(name=TEXT, revision=TEXT, engine=TEXT, sampler=SAMPLER, prompt_hash=TEXT)
COUNTS = ("right", "wrong", "truncated", "no_answer", "no_gold", "undecided", "timeout", "error")
PREFIX = struct(
    **{f"num_{name}": INT for name in COUNTS}, n_unique=INT, value=REAL, value_low=REAL, value_high=REAL
)
VERDICT = struct(
    verifier=TEXT, version=TEXT, verdict=TEXT, reason=TEXT, span=struct(start=INT, end=INT), evidence=TEXT
)
STEP = struct(
    text=TEXT, token_ids=pa.list_(INT), token_logprobs=pa.list_(REAL), phase=TEXT, p_first_error=REAL, label=pa.int8(),
    decided_by=TEXT, verdicts=pa.list_(VERDICT), rationale=TEXT,
)  # fmt: skip
SOLUTIONS_OF_2 = pa.schema(
    {
        "problem_id": TEXT, "problem": TEXT, "messages": pa.list_(struct(role=TEXT, content=TEXT)),
        "answers": pa.list_(TEXT), "check": struct(kind=TEXT, tolerance=REAL, payload=TEXT), "source": TEXT,
        "licence": TEXT, "solution_id": TEXT, "solution_seed": LONG, "finish_reason": TEXT, "ids_from": TEXT,
        "policy": POLICY, "completer": POLICY, "tokenizer_hash": TEXT, "seed": LONG, "allocation": TEXT,
        "prefixes": pa.list_(PREFIX), "steps": pa.list_(STEP), "final_answer": TEXT, "outcome": TEXT,
        "first_error": INT, "tokens": struct(prompt=LONG, generated=LONG),
        "labeler": struct(name=TEXT, version=TEXT, config_hash=TEXT),
    },
    {"stepward.schema_version": "2", "stepward.table": "solutions"},
)  # fmt: skip
ROLLOUTS_OF_2 = pa.schema(
    {
        "solution_id": TEXT, "problem_id": TEXT, "num_steps": INT, "index": INT, "seed": LONG,
        "token_ids": pa.list_(INT), "text": TEXT, "finish_reason": TEXT, "logprobs": pa.list_(REAL), "outcome": TEXT,
        "answer": TEXT, "error": TEXT,
    },
    {"stepward.schema_version": "2", "stepward.table": "rollouts"},
)  # fmt: skip

WHO = {
    "name": "org/policy", "revision": "abc", "engine": "vllm", "prompt_hash": "ph",
    "sampler": {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "max_tokens": 1024, "stop": ["\n\n"]},
}  # fmt: skip
BY = {"name": "math_shepherd", "version": "1", "config_hash": "c"}


def counted(value: float | None, **counts: int) -> dict:
    return {
        **{f"num_{name}": counts.get(name, 0) for name in COUNTS},
        "n_unique": 4, "value": value, "value_low": None, "value_high": None,
    }  # fmt: skip


def step(text: str, *verdicts: dict) -> dict:
    return {
        "text": text, "token_ids": [5, 6], "token_logprobs": [], "phase": "answer", "p_first_error": None,
        "label": None, "decided_by": "", "verdicts": list(verdicts), "rationale": None,
    }  # fmt: skip


REFUTED = {
    "verifier": "arithmetic", "version": "1", "verdict": "refuted", "reason": "", "span": {"start": 3, "end": 13},
    "evidence": "4 * 3 is 12",
}  # fmt: skip


def solution(number: int) -> dict:
    """Two steps; 3 of 4 rollouts are right after the first, none of 4 after the second (a fifth ran out of time)."""
    return {
        "problem_id": f"p{number}", "problem": "What is (2 + 2) * 3?", "messages": None, "answers": ["12"],
        "check": {"kind": "math", "tolerance": None, "payload": None}, "source": "made", "licence": "MIT",
        "solution_id": f"p{number}-0", "solution_seed": 9, "finish_reason": "stop", "ids_from": "sampled",
        "policy": WHO, "completer": WHO, "tokenizer_hash": "t", "seed": 7, "allocation": "fixed_k",
        "prefixes": [counted(0.4, right=2, wrong=3), counted(0.75, right=3, wrong=1),
                     counted(0.0, wrong=4, timeout=1)],
        "steps": [step("2 + 2 = 4."), step("So 4 * 3 = 13.", REFUTED)], "final_answer": "13", "outcome": "wrong",
        "first_error": None, "tokens": {"prompt": 11, "generated": 120}, "labeler": BY,
    }  # fmt: skip


def rollouts(number: int) -> list[dict]:
    at = [(1, "right")] * 3 + [(1, "wrong")] + [(2, "wrong")] * 4 + [(2, "timeout")]
    return [
        {
            "solution_id": f"p{number}-0", "problem_id": f"p{number}", "num_steps": t, "index": i, "seed": 100 + i,
            "token_ids": [1, 2], "text": " so 12", "finish_reason": "stop", "logprobs": None, "outcome": outcome,
            "answer": "12", "error": None,
        }
        for i, (t, outcome) in enumerate(at)
    ]  # fmt: skip


def canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def old_folder(folder: Path, *, sealed: bool = True) -> Path:
    """Two shards of one solution each, as version 2 wrote them."""
    decides = {
        "config": {"k": 4}, "seeds": {"run": 7}, "policy": WHO, "completer": WHO, "allocation": "fixed_k",
        "labeler": BY, "constants": {}, "prompts": {}, "step_format": {}, "tokenizer_hash": "t",
        "derived_from": {}, "schema_version": 2, "file_format": "parquet",
    }  # fmt: skip
    run = hashlib.sha256(canonical(decides).encode()).hexdigest()[:16]
    totals = {
        "problems": 1, "solutions": 1, "rollouts": 9, "steps": 2, "labels": {"unknown": 2},
        "first_errors": {"unknown": 1}, "outcomes": {"wrong": 1}, "draws": {"right": 5, "timeout": 1, "wrong": 8},
        "prompt_tokens": 11, "generated_tokens": 120, "sources": {"made": 1}, "licences": {"MIT": 1},
    }  # fmt: skip
    twice = {k: {n: 2 * c for n, c in v.items()} if isinstance(v, dict) else 2 * v for k, v in totals.items()}
    for name in ("solutions", "rollouts", "receipts"):
        (folder / name).mkdir(parents=True)
    receipts = []
    for index in range(2):
        files = []
        for name, rows, schema in (
            ("solutions", [solution(index)], SOLUTIONS_OF_2),
            ("rollouts", rollouts(index), ROLLOUTS_OF_2),
        ):
            path = f"{name}/shard-{index:05d}.parquet"
            pq.write_table(pa.Table.from_pylist(rows, schema=schema), folder / path, compression="zstd")
            content = (folder / path).read_bytes()
            files.append(
                {
                    "path": path,
                    "sha256": hashlib.sha256(content).hexdigest(),
                    "num_bytes": len(content),
                    "num_rows": len(rows),
                }
            )
        receipt = {"index": index, "run": run, "files": files, "totals": totals}
        (folder / f"receipts/shard-{index:05d}.json").write_text(canonical(receipt))
        receipts.append(receipt)
    files = [[f["path"], f["sha256"], f["num_rows"]] for r in receipts for f in r["files"]]
    manifest = {
        **decides, "code_version": "0.0.2", "contamination": {}, "run_id": run,
        "config_hash": hashlib.sha256(canonical({"k": 4}).encode()).hexdigest()[:16],
        "totals": twice if sealed else None, "shards": receipts if sealed else [],
        "fingerprint": hashlib.sha256(canonical(files).encode()).hexdigest() if sealed else None,
    }  # fmt: skip
    name = "manifest.json" if sealed else "manifest.partial.json"
    (folder / name).write_text(json.dumps(manifest, sort_keys=True, indent=1) + "\n")
    return folder


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return old_folder(tmp_path / "old")


def test_the_version_before_is_the_one_that_this_file_makes():
    assert SCHEMA_VERSION == 3, "write the folder of the version before anew when there is another one"


def test_a_folder_of_the_version_before_is_whole_and_is_read_with_new_fields_at_their_defaults(old):
    assert verify(old).faults == ()
    dataset = open_dataset(old)
    rows = list(dataset.solutions())
    assert [r.solution.id for r in rows] == ["p0-0", "p1-0"]
    assert rows[0].prefixes[2].counts == Counts(wrong=4, timeout=1, n_unique=4)
    assert rows[0].labels[1].verdicts[0].span == (3, 13)
    # What version 3 brought: outcomes were from answers, nothing was marked, no hint was read.
    assert {(r.solution.outcome_from, r.solution.outcome_share, r.marks) for r in rows} == {
        ("answers", None, ())
    }
    assert {s.hint for r in rows for s in r.labels} == {None}
    drawn = [r.outcome for i, r in dataset.rollouts() if i == "p0-0"]
    assert drawn.count(Outcome.RIGHT) == 3
    assert statistics(dataset)["outcome_from"] == {"answers": 2}
    assert statistics(dataset)["decided_by"] == {"unknown": 4}


def test_tables_of_the_version_before_have_the_columns_of_this_one_by_every_door(old):
    dataset = open_dataset(old)
    for table, schema in (("solutions", SOLUTIONS_SCHEMA), ("rollouts", ROLLOUTS_SCHEMA)):
        assert dataset.shard(table, 1).schema.equals(schema)
        assert {tuple(b.schema.names) for b in dataset.batches(table)} == {tuple(schema.names)}
        frame = dataset.scan(table).collect()
        assert frame.columns == schema.names
        assert frame.equals(type(frame)(pa.concat_tables([dataset.shard(table, i) for i in range(2)])))
    marks = dataset.scan().select("solution_id", "marks").collect()
    assert marks.to_dicts() == [{"solution_id": "p0-0", "marks": []}, {"solution_id": "p1-0", "marks": []}]
    assert [b.schema.names for b in dataset.batches(columns=["marks"])] == [["marks"]] * 2


@pytest.mark.parametrize("rule", ["hard", "changepoint"])
def test_a_folder_of_the_version_before_is_labelled_again_into_one_of_this(old, tmp_path, rule):
    before = {p: p.read_bytes() for p in old.rglob("*.*") if p.is_file()}
    sealed, report = relabel_dataset(open_dataset(old), tmp_path / "new", Relabeling(rule))
    assert (sealed.schema_version, report.solutions, report.decided) == (SCHEMA_VERSION, 2, 2)
    assert sealed.derived_from["fingerprint"] == open_dataset(old).manifest.fingerprint
    assert verify(tmp_path / "new").faults == ()
    again = open_dataset(tmp_path / "new")
    # any right after the first step, none of four after the second
    assert [[s.label for s in r.labels] for r in again.solutions()] == [[1, 0]] * 2
    assert [r.first_error for r in again.solutions()] == [1, 1]
    written = pq.read_schema(again.files()[0])
    assert written.equals(SOLUTIONS_SCHEMA)
    assert written.metadata[b"stepward.schema_version"] == b"3"
    assert list(again.rollouts()) == list(open_dataset(old).rollouts())
    assert {p: p.read_bytes() for p in before} == before


def test_corrections_to_a_folder_of_the_version_before_make_one_of_this(old, tmp_path):
    sealed = apply_corrections(
        open_dataset(old), [{"solution_id": "p1-0", "corrected_first_error": 0}], tmp_path / "new"
    )
    assert sealed.schema_version == SCHEMA_VERSION
    assert [r.first_error for r in open_dataset(tmp_path / "new").solutions()] == [None, 0]


def test_a_card_of_a_folder_of_the_version_before_describes_the_files_that_are_there(old, tmp_path):
    import datasets

    write_card(old, repo="me/old")
    loaded = datasets.load_dataset(str(old), "solutions", split="train", cache_dir=str(tmp_path / "cache"))
    assert loaded["solution_id"] == ["p0-0", "p1-0"]
    assert loaded.column_names == SOLUTIONS_OF_2.names


def test_an_unfinished_run_of_the_version_before_is_read_but_not_gone_on_with(tmp_path):
    folder = old_folder(tmp_path / "old", sealed=False)
    with pytest.raises(StoreError, match="not finished"):
        open_dataset(folder)
    assert len(list(open_dataset(folder, partial=True).solutions())) == 2
    now = Manifest({"k": 4}, "1", Allocation.FIXED_K, LabelerInfo(**BY))
    with pytest.raises(StoreError, match="schema_version"):
        ShardStore.create_or_resume(folder, now, resume=True)
