"""What a labelling run shows on its Prefect page: progress while it goes, then a table and a report.

An artifact that cannot be written never ends a run: labels are the work, this is its window.
"""

import time
from collections import Counter
from typing import Any
from uuid import UUID

from stepward.flows.config import LabelConfig
from stepward.flows.label import Progress
from stepward.flows.orchestration.prefect_server import is_of_server
from stepward.prm.dataset.manifest import Totals
from stepward.prm.dataset.store import Dataset, open_dataset
from stepward.prm.errors import StoreError

_EVERY_S = 10.0


class LabelPage:
    """The artifacts of one labelling run; used inside its flow.

    Args:
        config: The run.
    """

    def __init__(self, config: LabelConfig) -> None:
        self._config = config
        self._artifact: UUID | None = None
        self._last = 0.0
        self.progress: Progress | None = None

    async def update(self) -> None:
        """Show how far the run is; at most every few seconds, however small its shards."""
        if self.progress is None or time.monotonic() - self._last < _EVERY_S:
            return
        self._last = time.monotonic()
        await self._show(self.progress)

    async def close(self, progress: Progress) -> None:
        """Show the end: progress, the table of counts, and the report where the dataset is finished."""
        await self._show(progress)
        try:
            dataset = open_dataset(self._config.out, partial=True)
        except StoreError:
            return
        from prefect.artifacts import acreate_markdown_artifact, acreate_table_artifact

        await _tolerated(
            acreate_table_artifact(table_of(dataset), key="labels", description="What the dataset holds")
        )
        await _tolerated(acreate_markdown_artifact(report_of(dataset, progress), key="labelling-report"))

    async def _show(self, progress: Progress) -> None:
        from prefect.artifacts import acreate_progress_artifact, aupdate_progress_artifact

        done = progress.found + progress.problems
        share = 100.0 * done / max(1, progress.total_problems)
        text = f"{done:,} of {progress.total_problems:,} problems, {progress.tokens:,} tokens"
        if self._artifact is None:
            found = await _tolerated(
                acreate_progress_artifact(share, key="labelling-progress", description=text)
            )
            self._artifact = found if isinstance(found, UUID) else None
        else:
            await _tolerated(aupdate_progress_artifact(self._artifact, share, description=text))


def table_of(dataset: Dataset) -> list[dict[str, Any]]:
    """Balance, shares of outcomes and of unknown labels, tokens a label, and the solve rates' histogram."""
    totals = sum((shard.totals for shard in dataset.manifest.shards), Totals())
    labelled = sum(n for kind, n in totals.labels.items() if kind != "unknown")
    rows: list[dict[str, Any]] = [
        _row("problems", totals.problems),
        _row("solutions", totals.solutions),
        _row("steps", totals.steps),
        *(_row(f"steps labelled {kind}", n, totals.steps) for kind, n in sorted(totals.labels.items())),
        *(_row(f"solutions {kind}", n, totals.solutions) for kind, n in sorted(totals.outcomes.items())),
        *(_row(f"draws {kind}", n, sum(totals.draws.values())) for kind, n in sorted(totals.draws.items())),
        _row("generated tokens a labelled step", round(totals.generated_tokens / max(1, labelled), 1)),
    ]
    histogram = solve_rates(dataset)
    return rows + [
        _row(f"problems solved {name}", n, sum(histogram.values())) for name, n in histogram.items()
    ]


def solve_rates(dataset: Dataset) -> dict[str, int]:
    """Problems by the share of their decided solutions that is right, in fifths; 0 and 1 apart."""
    right: Counter[str] = Counter()
    decided: Counter[str] = Counter()
    for batch in dataset.batches("solutions", columns=["problem_id", "outcome"]):
        for problem, outcome in zip(*(c.to_pylist() for c in batch.columns), strict=True):
            right[problem] += outcome == "right"
            decided[problem] += outcome in ("right", "wrong")
    names = [
        "never",
        "up to 20 %",
        "up to 40 %",
        "up to 60 %",
        "up to 80 %",
        "below 100 %",
        "always",
        "unknown",
    ]
    histogram = dict.fromkeys(names, 0)
    for problem, n in decided.items():
        if n == 0:
            name = "unknown"
        elif right[problem] in (0, n):
            name = "always" if right[problem] else "never"
        else:
            name = names[1 + min(4, int(5 * right[problem] / n - 1e-9))]
        histogram[name] += 1
    return histogram


def report_of(dataset: Dataset, progress: Progress) -> str:
    """The run in a few lines of Markdown."""
    manifest = dataset.manifest
    state = f"finished, fingerprint `{manifest.fingerprint}`" if manifest.fingerprint else "not finished"
    seconds = max(1e-9, time.monotonic() - progress.began)
    lines = [
        f"# Labels by {manifest.labeler.name}",
        f"Folder `{dataset.folder.name}`: {state}.",
        "",
        f"- policy: {manifest.policy.name if manifest.policy else 'of the solutions file'}",
        f"- allocation: {manifest.allocation.value}",
        f"- this process: {progress.problems:,} problems, {progress.labelled_steps:,} labels, "
        f"{progress.tokens:,} tokens, {3600 * progress.labelled_steps / seconds:,.0f} labels an hour",
    ]
    if progress.stopped is not None:
        lines.append(f"- stopped: {progress.stopped}")
    if progress.shards_left:
        lines.append(f"- shards left to other processes: {progress.shards_left:,}")
    if progress.skipped:
        lines.append(f"- problems without rows: {len(progress.skipped):,}")
    return "\n".join(lines)


def _row(name: str, number: float, of: float | None = None) -> dict[str, Any]:
    return {"what": name, "number": number, "share": f"{number / of:.1%}" if of else ""}


async def _tolerated(call: Any) -> object:
    try:
        return await call
    except Exception as fault:
        if not is_of_server(fault):
            raise
        return None  # the server has gone or is locked: the run goes on, and its end tells of it
