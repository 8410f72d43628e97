"""docs/dataset.md, made from the column documentation: a test holds the page equal to what this gives.

Write it with ``python -m stepward.prm.publishing.data_page docs/dataset.md``.
"""

import sys
from pathlib import Path

from stepward.prm.dataset.columns import ROLLOUTS, SCHEMA_VERSION, SOLUTIONS, describe
from stepward.prm.formats.registry import formats

_HEAD = f"""# The dataset

<!-- Made by python -m stepward.prm.publishing.data_page; edit that file or stepward/prm/dataset/columns.py. -->

A dataset is a folder of two Parquet tables, one row a solution and one row a rollout, with a manifest that says how
they were made. datasets, polars, duckdb, pandas and pyarrow read both as they are. The schema is version
{SCHEMA_VERSION}; a reader reads the version before too.

```
manifest.json                     the run, the totals, every shard's checksums; written last
solutions/shard-00000.parquet     one row a solution
rollouts/shard-00000.parquet      one row a rollout, joined by solution_id
receipts/shard-00000.json         with it a shard is finished
run_metrics.parquet               seconds and the like: what depends on time and machine, outside the fingerprint
run_metrics.json, .jsonl          figures of the run and its log, see docs/engines.md; never published
```

```python
from stepward.prm.dataset.store import open_dataset, verify

dataset = open_dataset("my-dataset")
for row in dataset.solutions():       # records, streamed
    print(row.problem.id, row.first_error, [label.label for label in row.labels])
dataset.scan().collect()              # a polars frame
verify("my-dataset").faults           # () where every byte is as it was written
```

Unknown is a value: a fault of a verifier, a checker or an engine never becomes "wrong". Counts by outcome are kept
at every prefix, so any label rule can be applied again without a model.
"""

_FIGURES = """## Figures

`make bench-dataset` writes these to benchmarks/results/dataset.json; CPU seconds on a busy two-core machine, ratios
within one run. Rows have 8 steps of 40 tokens with log-probabilities and a verdict each.

| what | figure | goal |
| --- | --- | --- |
| rows a CPU second against a bare `ParquetWriter` that flushes nothing | 0.86 of 20,700 | 0.80 |
| rows a second against the same writer with fsync and rename | 0.87 of 8,860 | 0.80 |
| rows a CPU second from records, as a labelling run writes them | 6,100 | |
| peak memory to write 2,000,000 steps from records, to read them as records | 367 MiB, 175 MiB | 1,500 MiB |
| peak memory to import 20,000 rows of JSON lines, and 160,000 | 170 MiB, 180 MiB | |
| `verify` against reading and hashing alone | 0.96 of 1,240 MiB a CPU second | 0.90 |
| relabel 1,000,000 steps, by each of the nine rules on columns | 0.8 to 1.8 CPU s | 10 CPU s |
| relabel 1,000,000 steps by `changepoint`, problem by problem | 171 CPU s | |

The import's figures are of `import_dataset` in a process of its own; `python -m benchmarks.dataset --only import` does
the same with a million rows.

`python -m pytest -m slow tests/prm/test_formats_public.py` (30 CPU s) takes all 8,574 rows of PRMBench, ProcessBench
and the annotated step sets through import, this contract, a foreign format and import again, by command:

| set, and the format | rows | kept | named | written | left out | fields lost |
| --- | --- | --- | --- | --- | --- | --- |
| PRMBench, `trl_stepwise` | 3,459 | 3,404 | 55 | 3,404 | 0 | `problem_id`, `source` and those below |
| ProcessBench, `processbench` | 1,675 | 1,675 | 0 | 1,675 | 0 | `problem_id`, `source` |
| step sets, `processbench` | 3,440 | 3,426 | 14 | 3,216 | 210 | `problem_id`, `source` |

All else is equal. TRL's rows also lose `solution_id`, `decided_by`, `rationale` and `labeler`. Named and not read: in
PRMBench 53 rows that mark a step which is not there and 2 with an empty step; in the step sets 13 whose error cannot be
placed and 1 with an empty step. Left out are solutions judged as wholes: nobody said which step is wrong, and
ProcessBench's rows cannot say that.
"""


def page() -> str:
    """The text of docs/dataset.md."""
    rows = ["| format | read | write | holds, beside texts | what it is |", "| --- | --- | --- | --- | --- |"]
    for form in formats().values():
        ways = " | ".join("yes" if way else "no" for way in (form.read, form.write))
        held = ", ".join(
            [f"`{name}`" for name in sorted(form.holds)] + [f"`{n}`*" for n in sorted(form.holds_if)]
        )
        rows.append(f"| `{form.name}` | {ways} | {held or '-'} | {form.about} |")
    table = "\n".join(rows)
    return (
        f"{_HEAD}\n## Table solutions\n\n{describe(SOLUTIONS)}\n## Table rollouts\n\n{describe(ROLLOUTS)}\n"
        "## Foreign formats\n\nWhat a format cannot hold is counted by name when it is written; a row that cannot be "
        f"read is named with its line.\n\n{table}\n\n\\* where the format can say what the row says.\n\n{_FIGURES}"
    )


def main(arguments: list[str]) -> None:
    """Write the page to the path that is given."""
    Path(arguments[0]).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
