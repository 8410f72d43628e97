"""Foreign files as they come: marks of Windows, joined files, broken lines, lists, and many rows in little memory."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stepward.flows.cli.main import app
from stepward.flows.foreign import import_dataset
from stepward.prm.dataset.store import open_dataset
from stepward.prm.errors import FormatError, ProblemFileError
from stepward.prm.formats.fields import FIELDS, only
from stepward.prm.formats.registry import formats

BOM = b"\xef\xbb\xbf"
ALL_BUT_NAMES = frozenset(FIELDS) - {"source", "solution_id", "problem_id"}
"""What does not come from the file's own name."""
TRL = {"prompt": "p", "completions": ["a", "b"], "labels": [True, False]}
ROWS = {
    "trl_stepwise": TRL,
    "math_shepherd": {"input": "q Step 1: a ки\nStep 2: b ки", "label": "q Step 1: a +\nStep 2: b -"},
    "processbench": {"id": "i", "problem": "p", "steps": ["a", "b"], "label": 1, "generator": "g"},
    "prmbench": {"modified_question": "q", "modified_process": ["a", "b"], "error_steps": [2]},
    "prm800k": {
        "question": {"problem": "p"},
        "label": {"steps": [{"completions": [{"text": "a", "rating": 1}], "chosen_completion": 0}]},
    },
    "openr": {"question": "q", "reasoning_steps": [{"solution_prefix": "q\n\na", "mc_value": 0.5}]},
    "openr_tree": {
        "question": "q",
        "reasoning_steps": {"text": "", "mc_value": 0.5, "children": [{"text": "a", "mc_value": 1, "children": []}]},
    },
    "rlhflow": {"conversations": [{"role": "user", "content": "q Step 1: a"}, {"role": "assistant", "content": "+"}]},
    "qwen": {
        "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a<extra_0>"}],
        "labels": [1],
    },
    "betaprm": {"question": "q", "answer": "1", "steps": ["a"], "k": [1], "n": [2]},
}  # fmt: skip


def read_in(path: Path, name: str = "trl_stepwise", out: str = "out"):
    """(rows of the contract, report) of a file that is imported."""
    report = import_dataset(name, str(path), path.parent / out, name="set", overwrite=True)
    assert report.rows == report.kept + len(report.rejected)
    return list(open_dataset(path.parent / out).solutions()), report


def test_every_format_that_can_be_read_has_a_row_here():
    assert set(ROWS) == {f.name for f in formats().values() if f.read}


@pytest.mark.parametrize("name", ROWS)
def test_a_byte_order_mark_and_windows_line_ends_change_no_row(tmp_path, name):
    line = json.dumps(ROWS[name], ensure_ascii=False).encode()
    # The problem and the steps of the second row end their lines as Windows does.
    crlf = json.dumps(ROWS[name], ensure_ascii=False).replace("\\n", "\\r\\n").encode()
    plain, windows, zipped = (tmp_path / n for n in ("a.jsonl", "b.jsonl", "c.jsonl.gz"))
    plain.write_bytes(line + b"\n" + line + b"\n")
    windows.write_bytes(BOM + line + b"\r\n\r\n" + crlf)
    zipped.write_bytes(gzip.compress(windows.read_bytes()))
    wanted, report = read_in(plain, name)
    assert (report.rows, report.kept) == (2, 2)
    for path in (windows, zipped):
        rows, report = read_in(path, name)
        assert (report.rows, report.kept, report.rejected) == (2, 2, [])
        assert rows[0] == wanted[0]
        texts = [[s.text.replace("\r\n", "\n") for s in r.solution.steps] for r in rows]
        assert texts == [[s.text for s in r.solution.steps] for r in wanted]
        assert [[s.label for s in r.labels] for r in rows] == [[s.label for s in r.labels] for r in wanted]


@pytest.mark.parametrize(
    ("name", "file"), [("mr_gsm8k", "steps/mr_gsm8k_wrong_590.jsonl"), ("parc", "steps/parc_perl.jsonl")]
)
def test_an_annotated_set_that_windows_saved_gives_the_same_rows(data_dir, tmp_path, name, file):
    lines = (data_dir / file).read_bytes().splitlines()[:40]
    plain, windows = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    plain.write_bytes(b"\n".join(lines))
    windows.write_bytes(BOM + b"\r\n".join(lines))
    wanted, _ = read_in(plain, name)
    rows, report = read_in(windows, name)
    assert report.rows == 40
    assert [only(r, ALL_BUT_NAMES) for r in rows] == [only(r, ALL_BUT_NAMES) for r in wanted]


def test_a_carriage_return_within_a_text_is_the_texts_own(tmp_path):
    path = tmp_path / "set.jsonl"
    path.write_text(json.dumps({**TRL, "completions": ["a\r\nb", "c\rd"]}) + "\r\n")
    ((row,), _) = read_in(path)
    assert [s.text for s in row.solution.steps] == ["a\r\nb", "c\rd"]


def test_files_that_were_joined_keep_no_byte_order_mark_in_their_middle(tmp_path):
    path = tmp_path / "set.jsonl"
    part = BOM + json.dumps(TRL).encode() + b"\r\n"
    path.write_bytes(part + part)
    rows, report = read_in(path)
    assert (report.kept, report.rejected) == (2, [])
    assert {r.problem.text for r in rows} == {"p"}


BROKEN = [
    (b'{"prompt": "p", "completions": ["a"], "labels": [NaN]}', "NaN is no JSON value"),
    (b'{"prompt": "p", "completions": ["a"], "labels": [-Infinity]}', "-Infinity is no JSON value"),
    (b'{"prompt": "p", "completions": ["a"], "la', "cut"),
    (b'{"prompt": "caf\xe9", "completions": ["a"], "labels": [1]}', "not UTF-8"),
    (b"[1, 2]", "a JSON object is wanted, found list"),
    (b"[" * 100_000, "not a JSON object"),
    (b'{"prompt": "p", "completions": ["a"], "labels": [1, 0]}', "2 labels for 1"),
]


def test_a_line_that_is_no_row_is_named_and_those_after_it_are_read(tmp_path):
    path = tmp_path / "set.jsonl"
    good = json.dumps(TRL).encode()
    path.write_bytes(b"\n".join(part for line, _ in BROKEN for part in (good, line)) + b"\n" + good)
    rows, report = read_in(path)
    # 8 good lines, 7 broken ones: 15 in, 8 kept, 7 rejected, at the even lines
    assert (report.rows, report.kept, len(rows)) == (15, 8, 8)
    assert [place for place, _ in report.rejected] == [f"{path}:{2 * n}" for n in range(1, 8)]
    for (_, why), (_, wanted) in zip(report.rejected, BROKEN, strict=True):
        assert wanted in why
    assert [r.solution.id.rpartition("-")[2] for r in rows] == [str(n) for n in range(8)]


def test_the_command_names_broken_lines_and_counts_them(tmp_path):
    path = tmp_path / "set.jsonl"
    path.write_bytes(json.dumps(TRL).encode() + b"\n" + BROKEN[0][0] + b"\n")
    done = CliRunner().invoke(app, ["import", "trl_stepwise", str(path), "--out", str(tmp_path / "d")])
    assert done.exit_code == 0, done.output
    assert "1 solutions from 1 of 2 rows" in done.output
    assert f"rejected {path}:2: not a JSON object" in done.output.replace("\n", " ")


def test_a_file_of_another_format_is_refused_with_its_first_rows_and_nothing_is_written(tmp_path):
    path = tmp_path / "set.jsonl"
    path.write_text((json.dumps(ROWS["processbench"]) + "\n") * 3)
    with pytest.raises(
        FormatError, match=r"none of its 3 rows is one of 'trl_stepwise'(?s:.*)set\.jsonl:1: "
    ):
        import_dataset("trl_stepwise", str(path), tmp_path / "d")
    assert not (tmp_path / "d").exists()


def test_a_list_of_rows_is_read_one_by_one_and_its_bad_rows_are_named(tmp_path):
    path = tmp_path / "set.json"
    good = json.dumps(TRL)
    path.write_bytes(BOM + f'[\r\n {good},\r\n {{"labels": [NaN]}} , {good}, 3]\r\n'.encode())
    rows, report = read_in(path)
    assert (report.rows, report.kept, len(rows)) == (4, 2, 2)
    assert [(place[-2:], why[:12]) for place, why in report.rejected] == [
        (":2", "NaN is no JS"),
        (":4", "a JSON objec"),
    ]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('{"a": 1}', "a list of objects is wanted"),
        ("", "a list of objects is wanted"),
        ("[", "row 1: not JSON"),
        ('[{"a": 1}', "row 1: not JSON: after it a comma"),
        ('[{"a": 1},]', "row 2: not JSON"),
        ('[{"a": 1}] x', "something follows"),
        ('[{"a": 1} {"a": 2}]', "row 1: not JSON"),
    ],
)
def test_a_list_that_was_cut_or_is_none_is_refused(tmp_path, text, what):
    path = tmp_path / "set.json"
    path.write_text(text)
    with pytest.raises(ProblemFileError, match=what):
        import_dataset("trl_stepwise", str(path), tmp_path / "d")


def test_a_list_without_rows_is_refused_as_a_dataset(tmp_path):
    path = tmp_path / "set.json"
    path.write_text(" [ ] ")
    with pytest.raises(FormatError, match="none of its 0 rows"):
        import_dataset("trl_stepwise", str(path), tmp_path / "d")


PEAK = """
import re, sys
from pathlib import Path
from stepward.flows.foreign import import_dataset

report = import_dataset("trl_stepwise", sys.argv[1], Path(sys.argv[2]))
print(report.kept, int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024)
"""


@pytest.mark.slow
@pytest.mark.alone
def test_a_file_eight_times_as_large_takes_hardly_more_memory(tmp_path):
    # hiyouga/LlamaFactory#7526. Beside a shard of rows, what stays is the number of solutions of each problem.
    peaks = []
    for number in (10_000, 80_000):
        path = tmp_path / f"{number}.jsonl"
        with path.open("w") as file:
            for i in range(number):
                row = {"prompt": f"{i} + 1?", "completions": [f"{i + 1}", "."], "labels": [True, True]}
                file.write(json.dumps(row) + "\n")
        ran = subprocess.run(
            [sys.executable, "-c", PEAK, str(path), str(tmp_path / f"d{number}")],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        kept, peak = ran.stdout.split()
        assert int(kept) == number
        peaks.append(float(peak))
    # 70,000 more problems at 200 bytes for their numbers: 13 MiB, and what the allocator keeps
    assert peaks[1] - peaks[0] < 60
    assert peaks[1] < 400
