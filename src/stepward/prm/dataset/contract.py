"""Tables from elsewhere brought to the contract, and tables checked against it before they are stored."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false, reportMissingTypeStubs=false
# pyarrow has no type stubs.

import math

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stepward.prm.dataset.columns import (
    ROLLOUTS,
    SCHEMA_VERSION,
    SOLUTIONS,
    SOLUTIONS_SCHEMA,
    VERSION_KEY,
    Column,
    arrow_field,
)
from stepward.prm.errors import FormatError


def schema_version(schema: pa.Schema) -> int:
    """The version that a table says it has; the current one where it says nothing (polars drops metadata)."""
    stated = (schema.metadata or {}).get(VERSION_KEY)
    return int(stated) if stated is not None else SCHEMA_VERSION


def conform(table: pa.Table, schema: pa.Schema = SOLUTIONS_SCHEMA) -> pa.Table:
    """A table with exactly the declared columns and types.

    Takes what polars, pandas or an older version of Stepward wrote: ``large_list`` and ``large_string`` become
    ``list`` and ``string``, columns come in the declared order, columns that a later version brought are filled
    (``Column.fill``), columns that are not of the contract are dropped.

    Raises:
        FormatError: A newer version, a missing column, or a type that cannot be cast without loss.
    """
    version = schema_version(table.schema)
    if version > SCHEMA_VERSION:
        raise FormatError(
            f"the table has schema version {version}, this Stepward reads up to {SCHEMA_VERSION}; "
            "install a newer Stepward to read it"
        )
    columns = SOLUTIONS if schema is SOLUTIONS_SCHEMA else ROLLOUTS
    missing = [c.name for c in columns if c.name not in table.schema.names and c.since == 1]
    if missing:
        raise FormatError(
            f"the table lacks the columns {missing}; it has {table.schema.names}. A foreign format is read "
            "with stepward.prm.formats"
        )
    arrays = [_upgraded(_column_of(table, c), c) for c in columns]
    return pa.Table.from_arrays(arrays, schema=schema)


def _column_of(table: pa.Table, column: Column) -> pa.Array:
    if column.name not in table.schema.names:
        return pa.array([column.fill] * len(table), arrow_field(column).type)
    return one_chunk(table.column(column.name))


def _upgraded(array: pa.Array, column: Column) -> pa.Array:
    """Cast to the declared type; fields that the array lacks are filled."""
    target = arrow_field(column).type
    if array.type == target:
        return array
    try:
        return _fill_fields(array, column).cast(target)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as fault:
        raise FormatError(
            f"column {column.name!r} has type {array.type}, which cannot become {target}: {fault}"
        ) from fault


def _fill_fields(array: pa.Array, column: Column) -> pa.Array:
    if not isinstance(column.kind, tuple) or pa.types.is_null(array.type):
        return array
    is_list = pa.types.is_list(array.type) or pa.types.is_large_list(array.type)
    structs = array.flatten() if is_list else array
    present = {structs.type.field(i).name: child for i, child in enumerate(structs.flatten())}
    missing = [c.name for c in column.kind if c.name not in present and c.since == 1]
    if missing:
        raise FormatError(f"column {column.name!r} lacks the fields {missing}; it has {sorted(present)}")
    children = [
        _upgraded(present[c.name], c)
        if c.name in present
        else pa.array([c.fill] * len(structs), arrow_field(c).type)
        for c in column.kind
    ]
    mask = structs.is_null() if structs.null_count else None
    filled = pa.StructArray.from_arrays(children, fields=[arrow_field(c) for c in column.kind], mask=mask)
    if not is_list:
        return filled
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    null_lists = array.is_null() if array.null_count else None
    return pa.ListArray.from_arrays(pa.array(offsets), filled, mask=null_lists)


def check_solutions(table: pa.Table) -> None:
    """Refuse rows that break the contract.

    Raises:
        FormatError: A null where none may be, a NaN or infinite number, a label other than 0, 1 and null, a
            row without exactly one prefix more than steps, or a first error outside the steps. The message
            names the solution.
    """
    _check_columns(table, SOLUTIONS)
    steps = pc.list_value_length(table["steps"])
    for fault, wrong in (
        ("needs one prefix more than steps", pc.not_equal(pc.list_value_length(table["prefixes"]), pc.add(steps, 1))),
        ("has a first_error that is none of its steps", pc.or_(
            pc.less(table["first_error"], 0), pc.greater_equal(table["first_error"], steps))),
    ):  # fmt: skip
        if pc.any(wrong).as_py():
            at = pc.index(wrong, True).as_py()
            raise FormatError(f"solution {table['solution_id'][at].as_py()!r} {fault}")
    labels = set(pc.unique(_flat_field(table["steps"], "label")).to_pylist())
    if not labels <= {0, 1, None}:
        raise FormatError(
            f"a step label is 1 (right), 0 (wrong) or null (unknown); found {labels - {0, 1, None}}"
        )


def _flat_field(column: pa.ChunkedArray, field: str) -> pa.Array:
    return pc.struct_field(one_chunk(column).flatten(), field)


def check_rollouts(table: pa.Table) -> None:
    """Refuse rollouts that break the contract: a null or a number that is not finite where none may be."""
    _check_columns(table, ROLLOUTS)


def _check_columns(table: pa.Table, columns: tuple[Column, ...]) -> None:
    for column in columns:
        _check_values(one_chunk(table.column(column.name)), column, column.name)


def _check_values(array: pa.Array, column: Column, path: str) -> None:
    if array.null_count and not column.nullable:
        raise FormatError(f"column {path!r} holds {array.null_count} nulls; it may hold none")
    if column.repeated:
        array = array.flatten()
        if array.null_count:
            raise FormatError(
                f"the lists of column {path!r} hold {array.null_count} nulls; they may hold none"
            )
    if isinstance(column.kind, tuple):
        valid = array.drop_null() if array.null_count else array
        for child, values in zip(column.kind, valid.flatten(), strict=True):
            _check_values(values, child, f"{path}.{child.name}")
    elif pa.types.is_floating(array.type):
        # A sum is finite only where every term is, and needs no array of its own.
        total = pc.sum(array).as_py()
        if total is not None and not math.isfinite(total) and not pc.all(pc.is_finite(array)).as_py():
            bad = next(v for v in array.to_pylist() if v is not None and not math.isfinite(v))
            raise FormatError(
                f"column {path!r} holds {bad}; a number is finite, or null where it is not known"
            )


def one_chunk(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """The column as one array; nothing is copied where it is one already (``combine_chunks`` always copies)."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
