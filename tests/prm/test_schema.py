"""Rows and records: both ways without loss, one type whatever the values, faults named."""

from dataclasses import replace
from pathlib import Path

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepward.prm.dataset.columns import ROLLOUTS, SOLUTIONS, Column, arrow_field, describe
from stepward.prm.dataset.schema import (
    ROLLOUTS_SCHEMA,
    SCHEMA_VERSION,
    SOLUTIONS_SCHEMA,
    check_solutions,
    conform,
    rollout_of,
    rollouts_table,
    rows_of,
    solution_of,
    solutions_table,
)
from stepward.prm.errors import FormatError
from stepward.prm.types import (
    Allocation,
    Check,
    CheckKind,
    Counts,
    Estimate,
    FinishReason,
    LabeledSolution,
    LabelerInfo,
    Message,
    Outcome,
    Phase,
    PolicyInfo,
    Problem,
    Reason,
    Rollout,
    Sampler,
    Solution,
    Step,
    StepLabel,
    Verdict,
    VerdictKind,
)

TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
SHARE = st.none() | st.floats(0, 1)
COUNT = st.integers(0, 2**31 - 1)
IDS = st.lists(st.integers(0, 2**31 - 1), max_size=3).map(tuple)
LOGPROBS = st.lists(st.floats(-50, 0).map(lambda x: round(x, 4)), max_size=3).map(tuple)


def verdicts():
    span = st.none() | st.tuples(st.integers(0, 9), st.integers(0, 9))
    return st.builds(
        Verdict, st.sampled_from(VerdictKind), TEXT, TEXT, st.sampled_from(Reason), TEXT, span, st.just(0.0)
    )


def policies():
    sampler = st.builds(
        Sampler, st.floats(0, 2), st.floats(0.1, 1), st.integers(0, 50), st.floats(0, 1), st.integers(1, 99),
        st.lists(TEXT, max_size=2).map(tuple),
    )  # fmt: skip
    return st.builds(PolicyInfo, TEXT, TEXT, TEXT, sampler, TEXT)


@st.composite
def labelled_solutions(draw) -> LabeledSolution:
    num_steps = draw(st.integers(0, 3))
    message = st.builds(Message, TEXT, TEXT)
    problem = Problem(
        draw(TEXT),
        draw(TEXT | st.lists(message, min_size=1, max_size=2).map(tuple)),
        draw(st.lists(TEXT, max_size=2).map(tuple)),
        draw(st.builds(Check, st.sampled_from(CheckKind), SHARE, st.none() | TEXT)),
        draw(TEXT),
        draw(TEXT),
    )
    steps = draw(
        st.lists(
            st.builds(Step, TEXT, IDS, st.sampled_from(Phase), LOGPROBS),
            min_size=num_steps,
            max_size=num_steps,
        )
    )
    label = st.builds(
        StepLabel, st.sampled_from([None, 0, 1]), SHARE, TEXT, st.lists(verdicts(), max_size=2).map(tuple),
        st.none() | TEXT,
    )  # fmt: skip
    solution = Solution(
        draw(TEXT),
        problem.id,
        tuple(steps),
        draw(st.integers(0, 2**63 - 1)),
        draw(st.none() | st.sampled_from(Outcome)),
        draw(st.none() | TEXT),
        draw(st.sampled_from(FinishReason)),
        draw(st.sampled_from(["sampled", "encoded"])),
    )
    estimate = st.builds(Estimate, st.builds(Counts, *[COUNT] * 9), SHARE, SHARE, SHARE)
    return LabeledSolution(
        problem,
        solution,
        tuple(draw(st.lists(estimate, min_size=num_steps + 1, max_size=num_steps + 1))),
        tuple(draw(st.lists(label, min_size=num_steps, max_size=num_steps))),
        draw(st.none() | st.integers(0, num_steps - 1)) if num_steps else None,
        draw(policies()),
        draw(policies()),
        draw(TEXT),
        draw(st.integers(0, 2**63 - 1)),
        draw(st.sampled_from(Allocation)),
        draw(st.integers(0, 2**40)),
        draw(st.integers(0, 2**40)),
        draw(st.builds(LabelerInfo, TEXT, TEXT, TEXT)),
    )


ROWS = st.lists(labelled_solutions(), min_size=1, max_size=3)
few = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@few
@given(ROWS)
def test_a_row_gives_back_the_record_it_was_made_from(records):
    assert [solution_of(row) for row in rows_of(solutions_table(records))] == records


@few
@given(
    st.lists(
        st.tuples(
            TEXT,
            st.builds(
                Rollout, TEXT, COUNT, COUNT, st.integers(0, 2**63 - 1), IDS, TEXT, st.sampled_from(FinishReason),
                st.none() | LOGPROBS, st.none() | st.sampled_from(Outcome), st.none() | TEXT, st.none() | TEXT,
            ),
        ),
        max_size=3,
    )
)  # fmt: skip
def test_a_rollout_row_gives_back_the_rollout(rollouts):
    table = rollouts_table(rollouts)
    assert table.schema.equals(ROLLOUTS_SCHEMA, check_metadata=True)
    assert [rollout_of(row) for row in rows_of(table)] == rollouts


def through_polars_and_back(records, cut):
    table = solutions_table(records)
    chunked = pa.concat_tables([table.slice(0, cut), table.slice(cut)])
    assert conform(pl.from_arrow(chunked).to_arrow()).equals(table)


@few
@given(ROWS, st.integers(0, 3))
def test_arrow_to_polars_to_arrow_keeps_values_and_declared_types(records, cut):
    through_polars_and_back(records, cut)


@pytest.mark.slow
@settings(few, max_examples=200)
@given(ROWS, st.integers(0, 3))
def test_arrow_to_polars_to_arrow_does_not_depend_on_chunks_in_200_cases(records, cut):
    # pola-rs/polars#23111: the conversion failed unless the frame was rechunked
    through_polars_and_back(records, cut)


def empty_row() -> LabeledSolution:
    nobody = PolicyInfo("", "", "scripted")
    return LabeledSolution(
        Problem("p", "2+2?"), Solution("p-0", "p", ()), (Estimate(),), (), None, nobody, nobody, "", 0,
        Allocation.FIXED_K, 0, 0, LabelerInfo("", "", ""),
    )  # fmt: skip


def one_step(**step) -> LabeledSolution:
    row = empty_row()
    solution = replace(row.solution, steps=(Step("4"),))
    return replace(row, solution=solution, prefixes=(Estimate(),) * 2, labels=(StepLabel(**step),))


def test_a_shard_whose_lists_are_all_empty_and_values_all_null_has_the_same_types():
    # huggingface/datasets#8046
    assert solutions_table([empty_row()]).schema.equals(solutions_table([one_step(label=1)]).schema)
    assert solutions_table([]).schema.equals(SOLUTIONS_SCHEMA, check_metadata=True)


@pytest.fixture
def written(tmp_path: Path) -> tuple[Path, pa.Table]:
    verdict = Verdict(VerdictKind.REFUTED, "arithmetic", "1", evidence="2+2 is 4", span=(0, 3))
    row = one_step(label=0, verdicts=(verdict,), p_first_error=0.75)
    table = solutions_table([replace(row, first_error=0), empty_row()])
    path = tmp_path / "rows.parquet"
    pq.write_table(table, path)
    return path, table


def test_pyarrow_reads_the_declared_schema_and_its_version(written):
    path, table = written
    read = pq.read_table(path)
    assert read.equals(table)
    assert read.schema.metadata[b"stepward.schema_version"] == str(SCHEMA_VERSION).encode()


def test_polars_reads_nested_columns(written):
    frame = pl.read_parquet(written[0])
    assert frame["steps"].to_list()[0][0]["verdicts"][0]["span"] == {"start": 0, "end": 3}
    assert frame["steps"].to_list()[1] == []


def test_duckdb_reads_nested_columns(written):
    found = duckdb.sql(
        f"select steps[1].verdicts[1].span.end, steps[1].p_first_error, len(steps) from '{written[0]}' order by 3"
    )
    assert found.fetchall() == [(None, None, 0), (3, 0.75, 1)]


def test_pandas_reads_nested_columns(written):
    frame = pd.read_parquet(written[0])
    assert frame.loc[0, "steps"][0]["label"] == 0
    assert pd.isna(frame.loc[1, "first_error"])
    assert list(frame.columns) == SOLUTIONS_SCHEMA.names


def test_datasets_reads_nested_columns_and_gives_the_same_table_back(written, tmp_path):
    import datasets

    path, table = written
    loaded = datasets.load_dataset(
        "parquet", data_files=str(path), split="train", cache_dir=str(tmp_path / "c")
    )
    assert loaded[0]["steps"][0]["verdicts"][0]["evidence"] == "2+2 is 4"
    assert conform(loaded.with_format("arrow")[:]).equals(table)


def without_fields(column: Column, version: int) -> Column:
    """The column as an older version declared it."""
    if not isinstance(column.kind, tuple):
        return column
    return replace(column, kind=tuple(without_fields(c, version) for c in column.kind if c.since <= version))


@pytest.mark.parametrize("version", range(1, SCHEMA_VERSION))
def test_a_table_of_an_older_version_is_read_and_its_new_columns_are_filled(version):
    rows = [one_step(label=1), empty_row()]
    fields = [arrow_field(without_fields(c, version)) for c in SOLUTIONS if c.since <= version]
    old_schema = pa.schema(fields, metadata={b"stepward.schema_version": str(version).encode()})
    assert ("num_timeout" in str(old_schema)) == (version >= 2)
    assert "marks" not in str(old_schema)
    kept = [f.name for f in old_schema.field("prefixes").type.value_type]
    old_rows = [
        {**row, "prefixes": [{k: p[k] for k in kept} for p in row["prefixes"]]}
        for row in rows_of(solutions_table(rows))
    ]
    old = pa.Table.from_pylist(old_rows, schema=old_schema)
    assert [solution_of(row) for row in rows_of(conform(old))] == rows


def test_a_table_of_a_later_version_is_refused():
    newer = solutions_table([]).replace_schema_metadata({b"stepward.schema_version": b"99"})
    with pytest.raises(FormatError, match="schema version 99"):
        conform(newer)


def test_a_missing_column_is_named_and_not_filled():
    with pytest.raises(FormatError, match="answers"):
        conform(solutions_table([empty_row()]).drop(["answers"]))


def test_columns_of_three_rows_and_of_none_are_never_joined_and_no_column_is_lost():
    # huggingface/datasets#8572: joining columns dropped those of an empty part
    three, none = solutions_table([empty_row()] * 3), solutions_table([])
    columns = [(three if i else none).column(i) for i in range(three.num_columns)]
    with pytest.raises(pa.ArrowInvalid):
        pa.Table.from_arrays(columns, schema=SOLUTIONS_SCHEMA).validate()
    joined = pa.concat_tables([three, none])
    assert joined.schema.names == [c.name for c in SOLUTIONS]
    assert conform(joined).equals(three)


def test_a_sum_of_logprobs_that_is_not_finite_though_each_is_does_not_refuse_a_row():
    row = one_step(label=1)
    huge = replace(row.solution.steps[0], token_logprobs=(-1.7e308, -1.7e308))
    kept = replace(row, solution=replace(row.solution, steps=(huge,)))
    assert solution_of(rows_of(solutions_table([kept]))[0]) == kept
    broken = replace(huge, token_logprobs=(float("-inf"), float("inf")))
    with pytest.raises(FormatError, match=r"token_logprobs.*-inf"):
        solutions_table([replace(row, solution=replace(row.solution, steps=(broken,)))])


def test_numbers_that_are_not_finite_are_refused_with_their_column():
    row = one_step(label=1, p_first_error=float("nan"))
    with pytest.raises(FormatError, match=r"steps\.p_first_error.*nan"):
        solutions_table([row])


def test_a_label_of_an_unknown_kind_is_refused():
    with pytest.raises(FormatError, match="2"):
        solutions_table([one_step(label=2)])


def test_a_first_error_outside_the_steps_names_the_solution():
    with pytest.raises(FormatError, match="p-0"):
        solutions_table([replace(one_step(label=1), first_error=1)])


def test_a_null_where_none_may_be_names_the_column():
    table = solutions_table([empty_row()])
    at = table.schema.get_field_index("source")
    with pytest.raises(FormatError, match="source"):
        check_solutions(table.set_column(at, "source", pa.array([None], pa.string())))


def test_every_column_and_field_of_the_contract_is_documented():
    page = describe(SOLUTIONS) + describe(ROLLOUTS)

    def names(kind: pa.DataType, path: str):
        if pa.types.is_list(kind):
            yield from names(kind.value_type, path + "[]")
        elif pa.types.is_struct(kind):
            for field in kind:
                yield f"{path}.{field.name}"
                yield from names(field.type, f"{path}.{field.name}")

    for field in [*SOLUTIONS_SCHEMA, *ROLLOUTS_SCHEMA]:
        for path in [field.name, *names(field.type, field.name)]:
            assert f"`{path}`" in page or f"`{path}[]`" in page, path
