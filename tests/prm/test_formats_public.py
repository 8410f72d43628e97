"""Real rows of public sets: every one read or named, through the contract and a format and back the same."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stepward.flows.cli.main import app
from stepward.prm.dataset.schema import rows_of, solution_of, solutions_table
from stepward.prm.dataset.store import open_dataset
from stepward.prm.formats.fields import only
from stepward.prm.formats.registry import ExportReport, ImportReport, export_rows, format_named, import_rows
from stepward.prm.formats.step_sets import READERS, rows_of_set
from stepward.prm.records import Place, read_records
from stepward.prm.types import LabeledSolution

STEP_SETS = {
    "autorace": ["autorace_gsm8k_chain_200"],
    "bigbench_mistake": [
        "bigbench_mistake_dyck_languages", "bigbench_mistake_logical_deduction",
        "bigbench_mistake_multistep_arithmetic", "bigbench_mistake_tracking_shuffled_objects",
        "bigbench_mistake_word_sorting",
    ],
    "mr_gsm8k": ["mr_gsm8k_wrong_590"],
    "mrben": ["mrben_chemistry", "mrben_math", "mrben_physics"],
    "mrben_coding": ["mrben_coding"],
    "parc": ["parc_perl"],
    "verify_cot": [
        "verify_cot_MATH_100", "verify_cot_addsub_100", "verify_cot_aqua_rat_100", "verify_cot_date_100",
        "verify_cot_gsm8k_100", "verify_cot_last_letters_100",
    ],
}  # fmt: skip


def stored(rows: list[LabeledSolution]) -> list[LabeledSolution]:
    """Through the contract's table and back."""
    return [solution_of(row) for row in rows_of(solutions_table(rows))]


def read_file(name: str, path: Path) -> tuple[list[LabeledSolution], ImportReport]:
    report = ImportReport()
    rows = list(import_rows(format_named(name), read_records(path), report, source=path.stem))
    assert report.rows == report.kept + len(report.rejected)
    return rows, report


def there_and_back(name: str, rows: list[LabeledSolution]) -> tuple[list[LabeledSolution], ExportReport]:
    out, back = ExportReport(), ImportReport()
    foreign = [json.loads(json.dumps(row)) for row in export_rows(format_named(name), rows, out)]
    assert out.solutions == len(rows) == out.written + sum(out.left_out.values())
    places = ((Place("out.jsonl", n), row) for n, row in enumerate(foreign, 1))
    again = list(import_rows(format_named(name), places, back, source=""))
    assert back.rejected == []
    return again, out


def seen(row: LabeledSolution, *, with_id: bool = False) -> tuple[object, ...]:
    """What is compared: texts, labels, first error, and the id where the format holds it."""
    steps = tuple(step.text for step in row.solution.steps)
    labels = tuple(label.label for label in row.labels)
    return row.problem.text, steps, labels, row.first_error, row.solution.id if with_id else ""


@pytest.mark.slow
def test_all_rows_of_prmbench_survive_trl_rows_or_are_named(data_dir):
    total = 0
    for name in ("all_open_half.jsonl.gz", "subset400_open_half.jsonl"):
        rows, report = read_file("prmbench", data_dir / "prmbench" / name)
        total += report.rows
        assert all("error_steps holds" in why or "is empty" in why for _, why in report.rejected)
        assert len(report.rejected) < 0.04 * report.rows
        rows = stored(rows)
        again, out = there_and_back("trl_stepwise", rows)
        assert sum(out.left_out.values()) == 0
        assert "steps after the first unknown label" not in out.lost
        assert [seen(r) for r in again] == [seen(r) for r in rows]
        assert set(out.lost) <= {
            "problem_id",
            "source",
            "solution_id",
            "decided_by",
            "rationale",
            "labeler",
        }
    assert total == 3252 + 207


@pytest.mark.slow
def test_all_rows_of_processbench_survive_as_they_are(data_dir):
    total = 0
    for subset in ("gsm8k", "math", "olympiadbench", "omnimath"):
        path = data_dir / "processbench" / f"{subset}.jsonl"
        rows, report = read_file("processbench", path)
        total += report.rows
        assert report.rejected == []
        original = [row for _, row in read_records(path)]
        out = list(export_rows(format_named("processbench"), stored(rows), ExportReport()))
        keys = ("id", "generator", "problem", "steps", "final_answer_correct", "label")
        assert out == [{k: row[k] for k in keys} for row in original]
        assert Counter(r.first_error is None for r in rows)[True] == sum(r["label"] == -1 for r in original)
    assert total == 1675


@pytest.mark.slow
def test_all_rows_of_the_step_sets_survive_or_are_named(data_dir):
    total = rejected = written = not_expressible = unsound = 0
    for reader, stems in STEP_SETS.items():
        for stem in stems:
            path = data_dir / "steps" / f"{stem}.jsonl"
            report = ImportReport()
            rows = stored(list(rows_of_set(READERS[reader](path), report)))
            assert report.rows == report.kept + len(report.rejected) == sum(1 for _ in read_records(path))
            assert report.kept == len(rows)
            total += report.rows
            unsound += sum(all(label.label is None for label in r.labels) for r in rows)
            rejected += len(report.rejected)
            again, out = there_and_back("processbench", rows)
            written += out.written
            not_expressible += sum(out.left_out.values())
            sayable = [r for r in rows if r.first_error is not None or all(s.label == 1 for s in r.labels)]
            assert [seen(r, with_id=True) for r in again] == [seen(r, with_id=True) for r in sayable]
    assert total == 3440
    assert written + not_expressible + rejected == total
    # solutions judged unsound as a whole, of which nobody said which step is wrong
    assert not_expressible == unsound > 0
    assert rejected < 100


@pytest.mark.parametrize(
    ("name", "file", "solutions"),
    [
        ("math_shepherd", "openr_samples_math-shepherd.jsonl", 7),
        ("prm800k", "openr_samples_prm800k.jsonl", 35),
        ("openr", "openr_samples_math-aps.jsonl", None),
        ("openr_tree", "openr_samples_math-aps-tree.jsonl", None),
    ],
)
def test_real_samples_of_a_format_are_read_whole_and_survive_it(data_dir, name, file, solutions):
    rows, report = read_file(name, data_dir / "prm_samples" / file)
    assert report.rejected == []
    if solutions is not None:
        assert len(rows) == solutions
    again, out = there_and_back(name, stored(rows))
    held = set(format_named(name).holds)
    before, after = ({repr(only(r, held)) for r in part} for part in (rows, again))
    # OpenR's trees hold the same step twice under one node, once as a leaf or with another value
    assert after <= before
    shared = out.lost["value, where another solution gave a shared prefix another one"]
    assert len(before - after) <= shared + sum(out.left_out.values())
    assert out.written + sum(out.left_out.values()) == len(rows)


def test_real_math_shepherd_rows_are_written_as_they_were(data_dir):
    path = data_dir / "prm_samples" / "openr_samples_math-shepherd.jsonl"
    rows, _ = read_file("math_shepherd", path)
    written = list(export_rows(format_named("math_shepherd"), rows, ExportReport()))
    original = [row for _, row in read_records(path)]
    assert [(r["input"], r["label"]) for r in written] == [(r["input"], r["label"]) for r in original]


def test_real_prm800k_ratings_become_labels(data_dir):
    rows, _ = read_file("prm800k", data_dir / "prm_samples" / "openr_samples_prm800k.jsonl")
    first = rows[0]
    # ratings of the chosen branch: 1, the annotator's own step, 1, 1, 1, 1
    assert [s.label for s in first.labels] == [1, None, 1, 1, 1, 1]
    assert first.problem.answers == ("29",)
    # its five rejected second steps, all rated -1
    assert [[s.label for s in r.labels] for r in rows[1:6]] == [[1, 0]] * 5
    assert [r.first_error for r in rows[1:6]] == [1] * 5


# --- the same through the command line -----------------------------------------------------------------------


def in_a_process(*words: str | Path) -> str:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "stepward", *map(str, words)],
        env=env,
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def in_this_process(*words: str | Path) -> str:
    """The same in this process: starting one for each of 24 files four times would be most of the test."""
    done = CliRunner().invoke(app, [str(w) for w in words])
    assert done.exit_code == 0, done.output
    return done.output


def number_before(words: str, said: str) -> int:
    return int(said.partition(words)[0].split()[-1].replace(",", ""))


PRMBENCH = ("all_open_half.jsonl.gz", "subset400_open_half.jsonl")
PROCESSBENCH = ("gsm8k", "math", "olympiadbench", "omnimath")
SETS = [
    *(("prmbench", f"prmbench/{name}", "trl_stepwise") for name in PRMBENCH),
    *(("processbench", f"processbench/{name}.jsonl", "processbench") for name in PROCESSBENCH),
    *(
        (reader, f"steps/{stem}.jsonl", "processbench")
        for reader, stems in STEP_SETS.items()
        for stem in stems
    ),
]
IN_PROCESSES = (1, 2, len(SETS) - 1)
NOT_HELD = {
    "trl_stepwise": {"problem_id", "source", "solution_id", "decided_by", "rationale", "labeler"},
    "processbench": {"problem_id", "source"},
}
"""What of these rows the format cannot hold, by name; for ProcessBench the name of the source, and ids made of it."""


@pytest.mark.slow
def test_all_8574_rows_go_through_import_export_and_import_by_command(data_dir, tmp_path):
    total = 0
    for number, (reader, file, form) in enumerate(SETS):
        command = in_a_process if number in IN_PROCESSES else in_this_process
        first, again, out = (tmp_path / f"{number}-{name}" for name in ("first", "again", "out.jsonl"))
        said = command("import", reader, data_dir / file, "--out", first, "--name", "set")
        kept, rows = number_before(" of ", said.split(" from ")[1]), number_before(" rows", said)
        total += rows
        assert (
            kept
            + said.count("  rejected ")
            + sum(number_before(" more", line) for line in said.splitlines() if line.endswith(" more"))
            == rows
        )
        command("dataset", "verify", first)
        told = command("export", form, first, "--out", out)
        lost = {line.split(" lost ")[1] for line in told.splitlines() if " lost " in line}
        assert lost <= NOT_HELD[form], (file, lost)
        command("import", form, out, "--out", again, "--name", "set")
        before = [r for r in open_dataset(first).solutions() if form != "processbench" or is_known(r)]
        after = list(open_dataset(again).solutions())
        held = [format_named(form).held(r) for r in before]
        assert all("label" in names for names in held)
        wanted = [only(r, names) for r, names in zip(before, held, strict=True)]
        assert [only(r, names) for r, names in zip(after, held, strict=True)] == wanted, file
    assert total == 8574


def is_known(row: LabeledSolution) -> bool:
    return row.first_error is not None or all(s.label == 1 for s in row.labels)


def test_a_set_of_no_such_name_is_named_with_those_that_there_are(tmp_path):
    done = CliRunner().invoke(app, ["import", "prmbenchh", "x.jsonl", "--out", str(tmp_path / "d")])
    assert "prmbenchh" in str(done.exception)
    assert "bigbench_mistake" in str(done.exception)
    assert not (tmp_path / "d").exists()
