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
        f"read is named with its line.\n\n{table}\n\n\\* where the format can say what the row says.\n"
    )


def main(arguments: list[str]) -> None:
    """Write the page to the path that is given."""
    Path(arguments[0]).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
