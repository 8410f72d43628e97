"""The page of a search: accuracy against tokens, what each method reached and cost, how it was made."""

from collections.abc import Sequence

from stepward.prm.evaluation.intervals import Measure
from stepward.prm.evaluation.page import heading, page, paragraph, settings_table, table
from stepward.prm.evaluation.search_results import RunSummary, SearchResults
from stepward.prm.evaluation.svg import MOST_LINES, Series, interval_chart, line_chart


def render_search(results: SearchResults, found: Sequence[RunSummary]) -> str:
    """The page as text."""
    blocks = _warnings(found)
    budgets = {s.budget_tokens for s in found}
    blocks += [
        heading("Accuracy"),
        interval_chart([("", _accuracies(found))], title="Accuracy of each run", x_name="accuracy of the weighted vote",
                       coloured=False, low=None, high=None),
    ]  # fmt: skip
    if len(budgets) > 1:
        blocks.append(_curves(found))
    blocks.append(
        table(
            ["method", "budget", "weighted vote", "best score", "a right candidate", "over the first"],
            [
                (s.method, s.budget_tokens, s.accuracy, s.best_accuracy, s.coverage, s.over_first)
                for s in found
            ],
            caption="'Over the first' is the difference to the first method at the same budget, paired by problem.",
        )
    )
    shares = [
        (s.name, [("generated", Measure(s.generated_tokens)), ("scored", Measure(s.scored_tokens))])
        for s in found
    ]
    blocks += [
        heading("Where the tokens went"),
        interval_chart(shares, title="Tokens a problem", x_name="tokens a problem, mean", low=0.0, high=None),
        table(
            ["method", "budget", "generated", "scored", "most of one problem", "problems without an answer"],
            [
                (
                    s.method,
                    s.budget_tokens,
                    round(s.generated_tokens, 1),
                    round(s.scored_tokens, 1),
                    s.most_tokens,
                    s.num_without_answer,
                )
                for s in found
            ],
            caption="Means a problem; the budget is generated and scored tokens together.",
        ),
        heading("How this was made"),
        settings_table(_manifest(results, found)),
    ]
    first = found[0]
    lead = f"{len(found)} runs on {first.num_problems:,} problems. Numbers in brackets are intervals by resampling."
    return page(results.title, lead, blocks)


def _warnings(found: Sequence[RunSummary]) -> list[str]:
    said: list[str] = []
    for s in found:
        if s.num_unknown:
            said.append(
                paragraph(
                    f"{s.name}: {s.num_unknown:,} of {s.num_problems:,} problems have no known outcome (no gold "
                    "answer, or a fault) and are left out of its accuracy.",
                    warning=True,
                )
            )
        if s.num_faults:
            said.append(paragraph(f"{s.name}: the engine failed {s.num_faults:,} draws.", warning=True))
    return said


def _accuracies(found: Sequence[RunSummary]) -> list[tuple[str, Measure]]:
    return [(s.name, s.accuracy) for s in found]


def _curves(found: Sequence[RunSummary]) -> str:
    methods = list(dict.fromkeys(s.method for s in found))[:MOST_LINES]
    series = [
        Series(
            m,
            tuple(
                sorted(
                    ((s.generated_tokens + s.scored_tokens, s.accuracy) for s in found if s.method == m),
                    key=lambda point: point[0],
                )
            ),
        )
        for m in methods
    ]
    return line_chart(
        series,
        title="Accuracy against tokens",
        x_name="tokens a problem, generated and scored",
        y_name="accuracy",
    )


def _manifest(results: SearchResults, found: Sequence[RunSummary]) -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = list(results.manifest.items())
    rows += [
        (f"settings of {s.name}", [f"{k} = {v}" for k, v in s.settings.items()]) for s in found if s.settings
    ]
    return rows
