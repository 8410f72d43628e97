"""Problem and solution sources: what is understood, and what is named when it cannot be."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stepward.prm.errors import ProblemFileError
from stepward.prm.problems import FieldMap, last_boxed, read_problems, read_solutions
from stepward.prm.types import CheckKind, Message, problem_id


@pytest.fixture
def lines(tmp_path: Path):
    def write(*rows: object, name: str = "set.jsonl", raw: bytes | None = None) -> Path:
        path = tmp_path / name
        text = (
            "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows).encode() if raw is None else raw
        )
        path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
        return path

    return write


def test_gsm8k_gold_stands_after_the_last_hashes(lines):
    row = {"question": "How many?", "answer": "She has <<3+4=7>>7.\nSo 7 * 1,000\n#### 7,000"}
    (problem,) = read_problems(lines(row))
    assert problem.answers == ("7,000",)
    assert problem.statement == "How many?"
    assert problem.source == "set"
    assert problem.id == problem_id("set", "How many?")


def test_math_gold_is_the_answer_field_else_the_last_box(lines):
    boxed = {"problem": "a", "solution": "first \\boxed{1}, so \\boxed{\\frac{1}{\\{2\\}}}."}
    given = {"problem": "b", "solution": "\\boxed{3}", "answer": "4"}
    assert [p.answers for p in read_problems(lines(boxed, given))] == [("\\frac{1}{\\{2\\}}",), ("4",)]


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("\\boxed{5}", "5"),
        ("\\boxed{a{b}c} and \\boxed{\\text{(A)}}", "\\text{(A)}"),
        ("so $\\boxed 12$.", "12"),
        ("\\fbox{7}", "7"),
        ("\\boxed{cut", None),
        ("no box", None),
        ("\\boxed{}", None),
    ],
)
def test_the_last_box_is_found_with_its_braces_balanced(text, inside):
    assert last_boxed(text) == inside


@pytest.mark.parametrize(
    "row", [{"problem": "p"}, {"problem": "p", "answer": None}, {"problem": "p", "answer": ""}]
)
def test_a_problem_without_gold_is_kept_without_gold(lines, row):
    assert [p.answers for p in read_problems(lines(row))] == [()]


@pytest.mark.parametrize(
    ("answer", "answers"),
    [
        (7, ("7",)),
        (145.0, ("145",)),
        (0.1, ("0.1",)),
        (True, ("True",)),
        (["1/2", 0.5, None], ("1/2", "0.5")),
        (0, ("0",)),
    ],
)
def test_answers_that_are_numbers_or_lists_become_texts(lines, answer, answers):
    assert next(read_problems(lines({"problem": "p", "answer": answer}))).answers == answers


def test_a_truncated_line_is_named_with_its_number(lines):
    path = lines(raw=b'{"problem": "a", "answer": 1}\n\n{"problem": "b", "ans')
    stream = read_problems(path)
    assert next(stream).statement == "a"
    with pytest.raises(ProblemFileError, match=r"set\.jsonl:3: .*cut"):
        next(stream)


def test_a_cut_gzip_file_names_the_line_where_it_ends(tmp_path):
    rows = "".join(json.dumps({"problem": f"number {i}"}) + "\n" for i in range(5000))
    path = tmp_path / "set.jsonl.gz"
    path.write_bytes(gzip.compress(rows.encode())[:-400])
    with pytest.raises(ProblemFileError, match="cut or damaged") as fault:
        list(read_problems(path))
    assert fault.value.line is not None
    assert 1 < fault.value.line <= 5000


def test_a_byte_order_mark_and_windows_line_ends_are_no_part_of_the_problem(lines):
    path = lines(raw=b'\xef\xbb\xbf{"problem": "a"}\r\n{"problem": "b"}\r\n')
    assert [p.statement for p in read_problems(path)] == ["a", "b"]


def test_a_line_that_is_not_utf8_is_named(lines):
    path = lines(raw=b'{"problem": "a"}\n{"problem": "caf\xe9"}\n')
    with pytest.raises(ProblemFileError, match=":2: not UTF-8"):
        list(read_problems(path))


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ({"problem": "  \n"}, "empty"),
        ({"title": "p"}, "no statement"),
        ({"problem": 3}, "no statement"),
        ([1, 2], "JSON object"),
        ({"problem": "p", "answer": {"a": 1}}, "dict"),
        ({"problem": "p", "id": 1.5}, "id"),
        ({"messages": [{"role": "user"}]}, "role, content"),
        ({"messages": [{"role": "user", "content": " "}]}, "empty"),
        ({"problem": "p", "check": {"kind": "guess"}}, "check"),
    ],
)
def test_a_row_that_cannot_be_used_is_named_by_file_and_line(lines, row, what):
    with pytest.raises(ProblemFileError, match=what) as fault:
        list(read_problems(lines({"problem": "first"}, row)))
    assert fault.value.line == 2


def test_nan_is_no_json_value(lines):
    with pytest.raises(ProblemFileError, match=r":1: .*NaN"):
        list(read_problems(lines(raw=b'{"problem": "a", "answer": NaN}\n')))


def test_an_id_that_occurs_twice_is_an_error_that_names_both_places(lines):
    path = lines({"problem": "a"}, {"problem": "b"}, {"problem": "a"})
    with pytest.raises(ProblemFileError, match=r"set\.jsonl:3: .*twice .*set\.jsonl:1"):
        list(read_problems(path))
    assert [p.statement for p in read_problems(path, duplicates="skip")] == ["a", "b"]


def test_a_rows_own_id_is_kept(lines):
    rows = [{"problem": "p", "unique_id": "test/7.json"}, {"problem": "p", "id": 12}]
    assert [p.id for p in read_problems(lines(*rows))] == ["test/7.json", "12"]


def test_ids_do_not_depend_on_the_format_of_the_file(lines, tmp_path):
    rows = [{"problem": "a", "answer": "1"}, {"problem": "ü", "answer": "2"}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "set.parquet")
    (tmp_path / "set.json").write_text(json.dumps(rows))
    expected = list(read_problems(lines(*rows)))
    for name in ("set.parquet", "set.json"):
        assert list(read_problems(tmp_path / name)) == expected
    assert list(read_problems(lines(*rows, name="set.jsonl.gz"))) == expected


def test_a_datasets_folder_is_read_and_asks_for_a_split_where_there_are_several(tmp_path):
    import datasets

    train = datasets.Dataset.from_list([{"question": "a", "answer": "#### 1"}])
    test = datasets.Dataset.from_list([{"question": "b", "answer": "#### 2"}])
    datasets.DatasetDict(train=train, test=test).save_to_disk(str(tmp_path / "saved"))
    with pytest.raises(ProblemFileError, match="train, test"):
        list(read_problems(tmp_path / "saved"))
    assert [p.answers for p in read_problems(f"{tmp_path / 'saved'}?split=test")] == [("2",)]


def test_a_missing_file_and_a_damaged_parquet_file_are_named(tmp_path):
    with pytest.raises(ProblemFileError, match="no such file"):
        list(read_problems(tmp_path / "gone.jsonl"))
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(ProblemFileError, match=r"bad\.parquet: row 1: not readable"):
        list(read_problems(tmp_path / "bad.parquet"))


def test_a_conversation_stays_a_conversation(lines):
    turns = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    (problem,) = read_problems(lines({"messages": turns, "answer": "1"}))
    assert problem.statement == (Message("system", "s"), Message("user", "u"))
    assert problem.text == "s\n\nu"


def test_choices_are_shown_in_the_statement_and_an_index_becomes_its_letter(lines):
    (problem,) = read_problems(lines({"question": "Which?", "choices": ["red", "blue"], "answer": 1}))
    assert problem.statement == "Which?\n(A) red\n(B) blue"
    assert problem.answers == ("B",)
    assert problem.check.kind is CheckKind.CHOICE
    assert json.loads(problem.check.payload or "") == ["red", "blue"]


def test_fields_can_be_named(lines):
    row = {"q": "what", "gold": "no", "a": "yes", "key": "k1"}
    (problem,) = read_problems(lines(row), fields=FieldMap("q", "a", "key"))
    assert (problem.statement, problem.answers, problem.id) == ("what", ("yes",), "k1")


def test_the_generator_gives_the_same_problems_again_and_refuses_a_bad_number():
    first, again = (list(read_problems("generator:5?seed=3")) for _ in range(2))
    assert first == again
    assert len({p.id for p in first}) == 5
    assert all(p.answers for p in first)
    with pytest.raises(ProblemFileError, match="generator:N"):
        list(read_problems("generator:many"))


def test_reading_streams_and_stops_early(lines):
    path = lines(raw=b'{"problem": "a"}\n' + b"not json\n")
    assert next(read_problems(path)).statement == "a"


def test_solutions_come_as_text_or_steps_with_problem_text_or_id(lines):
    rows = [
        {"problem_id": "p1", "solution": "x\ny"},
        {"question": "q?", "steps": ["a", "b"], "generator": "m"},
        {"question": "q?", "samples": ["one", {"response": "two", "model": "n"}]},
    ]
    found = [(s.problem_id, s.problem, s.steps, s.text, s.generator) for s in read_solutions(lines(*rows))]
    assert found == [
        ("p1", None, (), "x\ny", "unknown"),
        (None, "q?", ("a", "b"), None, "m"),
        (None, "q?", (), "one", "unknown"),
        (None, "q?", (), "two", "n"),
    ]


@pytest.mark.parametrize(
    "row",
    [{"solution": "s"}, {"problem": "p"}, {"problem": "p", "steps": []}, {"problem": "p", "steps": [1]}],
)
def test_a_solution_without_problem_or_text_is_named(lines, row):
    with pytest.raises(ProblemFileError, match=r"set\.jsonl:1"):
        list(read_solutions(lines(row)))


def test_every_public_problem_file_is_read_whole(data_dir):
    counts = {
        "gsm8k_test.jsonl": 1319, "gsm_hard.jsonl": 1319, "math500_test.jsonl": 500, "svamp.jsonl": 1000,
        "math_test_5000.jsonl.gz": 5000, "olympiadbench_text_en.jsonl": 675,
    }  # fmt: skip
    for name, count in counts.items():
        problems = list(read_problems(data_dir / "problems" / name))
        assert len(problems) == count
        assert all(p.answers for p in problems), name


def test_boxed_answers_of_math_are_the_answers_that_math500_states(data_dir):
    boxed = {p.statement: p.answers for p in read_problems(data_dir / "problems" / "math_test_5000.jsonl.gz")}
    stated = list(read_problems(data_dir / "problems" / "math500_test.jsonl"))
    shared = [p for p in stated if p.statement in boxed]
    assert len(shared) > 450
    assert all(boxed[p.statement] == p.answers for p in shared)
