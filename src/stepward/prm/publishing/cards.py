"""The card of a dataset, from its manifest and rows: nothing on it is written by hand.

``write_card`` puts README.md and two plots beside the tables. The front matter is what the Hub reads: configs,
features, splits, licence, tags.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
# pyarrow and datasets have no type stubs.

from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

import yaml

from stepward.prm.audit.hygiene import statistics
from stepward.prm.dataset.columns import (
    ROLLOUTS,
    ROLLOUTS_SCHEMA,
    SCHEMA_VERSION,
    SOLUTIONS,
    SOLUTIONS_SCHEMA,
    describe,
)
from stepward.prm.dataset.folder import TABLES, TableName, read_table
from stepward.prm.dataset.manifest import Manifest, Totals
from stepward.prm.dataset.store import Dataset, open_dataset
from stepward.prm.durable import write_durably
from stepward.prm.errors import StoreError
from stepward.prm.types import Allocation, Outcome, PolicyInfo

_SIZES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
_SIZE_NAMES = ("n<1K", "1K<n<10K", "10K<n<100K", "100K<n<1M", "1M<n<10M", "10M<n<100M")
HUB_LICENCES = {"mit": "mit", "apache-2.0": "apache-2.0", "cc-by-4.0": "cc-by-4.0", "cc-by-sa-4.0": "cc-by-sa-4.0",
                 "cc0-1.0": "cc0-1.0", "bsd-3-clause": "bsd-3-clause"}  # fmt: skip
"""Licences by their SPDX id in lower case, as the Hub names them; others are ``other``."""
_SEVERAL_PROBLEMS = ("math", "prm800k", "processbench", "competition")
_MATH_RIGHTS = (
    "**Disputed rights.** Problems of MATH (Hendrycks et al. 2021; also those in MATH-500, PRM800K, ProcessBench and "
    "sets made from them) come from competitions. Its authors released them under the MIT licence; on a takedown "
    "notice by Art of Problem Solving, dated 2 January 2025, the Hugging Face Hub closed `hendrycks/competition_math`. "
    "Whether you may use or pass on such problems is for you to find out."
)


def dataset_card(dataset: Dataset, *, repo: str, name: str | None = None) -> str:
    """The text of the card.

    Args:
        dataset: A finished dataset.
        repo: Hub id, for the loading example.
        name: Heading; the last part of ``repo`` where None.

    Raises:
        StoreError: The dataset is not finished.
    """
    manifest = dataset.manifest
    totals = _totals(manifest)
    template = (
        resources.files("stepward.prm.publishing")
        .joinpath("card_templates", "dataset_card.md")
        .read_text("utf-8")
    )
    return Template(template).substitute(
        front_matter=_front_matter(dataset, name or repo.split("/")[-1], repo).strip(),
        name=name or repo.split("/")[-1],
        load="\n".join(f'{t} = load_dataset("{repo}", "{t}", split="train")' for t in _tables(totals)),
        solutions=f"{totals.solutions:,}",
        problems=f"{totals.problems:,}",
        steps=f"{totals.steps:,}",
        rollouts=f"{totals.rollouts:,}",
        fingerprint=manifest.fingerprint,
        making=_making(manifest, totals),
        labels=_labels(totals),
        draws=markdown_table(
            ("outcome", "rollouts", "share"),
            _shares({o.value: totals.draws.get(o.value, 0) for o in Outcome}),
        ),
        contamination=_contamination(manifest.contamination),
        sources=_sources(totals),
        rights=rights(totals),
        biases=_biases(manifest, totals),
        solution_columns=describe(SOLUTIONS).strip(),
        rollout_columns=describe(ROLLOUTS).strip(),
    )


def write_card(folder: str | Path, *, repo: str, name: str | None = None) -> Path:
    """Write README.md and its plots into a dataset folder. Returns the card's path."""
    dataset = open_dataset(folder)
    found = statistics(dataset)
    plots = Path(folder) / "plots"
    plots.mkdir(exist_ok=True)
    write_durably(plots / "labels_by_step.svg", labels_by_step(found["label_by_position"]).encode())
    unknown = _totals(dataset.manifest).first_errors.get("unknown", 0)
    positions = first_errors(found["first_error_by_position"], unknown=unknown)
    write_durably(plots / "first_errors.svg", positions.encode())
    card = Path(folder) / "README.md"
    write_durably(card, dataset_card(dataset, repo=repo, name=name).encode())
    return card


def _totals(manifest: Manifest) -> Totals:
    if manifest.totals is None:
        raise StoreError("making a card: the dataset is not finished; run it to its end with --resume")
    return manifest.totals


# --- front matter ------------------------------------------------------------------------------------------


def licence_of(totals: Totals) -> str | None:
    """The one licence of all rows as the Hub writes it; None where it is unknown or there are several."""
    names = {licence.strip().casefold() for licence in totals.licences}
    return HUB_LICENCES.get(next(iter(names))) if len(names) == 1 else None


def _tables(totals: Totals) -> dict[TableName, int]:
    """Tables by their number of rows. A configuration without a row is one that ``datasets`` cannot load."""
    sizes = {"solutions": totals.solutions, "rollouts": totals.rollouts}
    return {table: sizes[table] for table in TABLES if sizes[table]}


def _front_matter(dataset: Dataset, name: str, repo: str) -> str:
    manifest = dataset.manifest
    totals = _totals(manifest)
    licence = licence_of(totals)
    tables = _tables(totals)
    made = ["monte-carlo"] if sum(totals.draws.values()) else []
    front: dict[str, Any] = {
        "pretty_name": name,
        "license": licence or "other",
        "tags": ["process-reward-model", "prm", "step-labels", *made, "stepward"],
        "task_categories": ["text-generation"],
        "size_categories": [_SIZE_NAMES[sum(totals.solutions >= s for s in _SIZES)]],
        "configs": [_config(table, manifest.file_format) for table in tables],
        "dataset_info": [_info(dataset, table, num_rows) for table, num_rows in tables.items()],
    }
    if licence is None:
        front["license_name"] = "see-sources"
        front["license_link"] = f"https://huggingface.co/datasets/{repo}#sources-licences-and-rights"
    if front["configs"]:
        front["configs"][0]["default"] = True
    return yaml.safe_dump(front, sort_keys=False, allow_unicode=True, width=110)


def _config(table: str, file_format: str) -> dict[str, Any]:
    return {"config_name": table, "data_files": [{"split": "train", "path": f"{table}/*.{file_format}"}]}


def _stored_schema(dataset: Dataset, table: TableName) -> Any:
    """Columns that the files have: of an older version there are fewer."""
    if dataset.manifest.schema_version != SCHEMA_VERSION:
        return read_table(dataset.files(table)[0]).schema
    return SOLUTIONS_SCHEMA if table == "solutions" else ROLLOUTS_SCHEMA


def _info(dataset: Dataset, table: TableName, num_rows: int) -> dict[str, Any]:
    from datasets import Features  # heavy

    at = 0 if table == "solutions" else 1
    features: Any = Features.from_arrow_schema(_stored_schema(dataset, table))
    size = sum(shard.files[at].num_bytes for shard in dataset.manifest.shards)
    return {
        "config_name": table,
        "features": features._to_yaml_list(),
        "splits": [{"name": "train", "num_bytes": size, "num_examples": num_rows}],
        "download_size": size,
        "dataset_size": size,
    }


# --- sections ----------------------------------------------------------------------------------------------


def markdown_table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def _shares(counts: Mapping[str, int]) -> list[tuple[str, ...]]:
    whole = sum(counts.values())
    return [(k, f"{n:,}", f"{n / whole:.1%}" if whole else "-") for k, n in counts.items()]


def _policy(policy: PolicyInfo | None, otherwise: str) -> str:
    if policy is None:
        return otherwise
    s = policy.sampler
    sampler = (
        f"temperature {s.temperature:g}, top_p {s.top_p:g}, top_k {s.top_k}, at most {s.max_tokens} tokens"
    )
    return f"`{policy.name}` at `{policy.revision or 'unknown revision'}` ({policy.engine}; {sampler})"


def _making(manifest: Manifest, totals: Totals) -> str:
    rows = [
        (
            "solutions by",
            _policy(manifest.policy, "brought from elsewhere; `policy` of a row names whom it knows of"),
        ),
        ("rollouts by", _policy(manifest.completer, "nobody: there are none")),
        ("allocation", f"`{manifest.allocation}`"),
        ("label rule", f"`{manifest.labeler.name}`, version {manifest.labeler.version or '-'}"),
        ("seeds", ", ".join(f"{k} = {v}" for k, v in manifest.seeds.items()) or "-"),
        ("tokens", f"{totals.generated_tokens:,} generated, {totals.prompt_tokens:,} of prompts"),
        (
            "run",
            f"`{manifest.run_id}` (configuration `{manifest.config_hash}`, Stepward {manifest.code_version})",
        ),
        ("schema", f"version {manifest.schema_version}"),
    ]
    if manifest.derived_from:
        rows.append(("made from", f"`{manifest.derived_from.get('fingerprint', 'unknown')}`"))
    return markdown_table(("", ""), list(rows))


def _labels(totals: Totals) -> str:
    steps = markdown_table(("step label", "steps", "share"), _shares(totals.labels))
    errors = markdown_table(("first wrong step", "solutions", "share"), _shares(totals.first_errors))
    outcomes = markdown_table(("final answer", "solutions", "share"), _shares(totals.outcomes))
    return f"{steps}\n\n{errors}\n\n{outcomes}"


def _contamination(note: Mapping[str, Any]) -> str:
    if not note:
        return "Not checked against any benchmark. Check it before you train on it: `stepward audit contamination`."
    if "benchmarks" not in note:  # known without a comparison, such as solutions replayed from a log
        return "\n\n".join(str(value) for value in note.values())
    rows = [
        (name, f"{size:,}", str(note["exact"].get(name, 0)), str(note["near"].get(name, 0)))
        for name, size in note["benchmarks"].items()
    ]
    head = ("benchmark", "its problems", "exactly here", "nearly here")
    means = (
        f"{note['checked']:,} problems were compared. *Exactly*: the same text without case, blanks and punctuation. "
        f"*Nearly*: at least {note['min_overlap']:.0%} of the {note['ngram']}-word sequences (numbers masked) are the "
        "benchmark problem's. The manifest lists the matches."
    )
    return f"{markdown_table(head, rows)}\n\n{means}"


def _sources(totals: Totals) -> str:
    sources = markdown_table(
        ("source", "solutions", "share"), _shares({k or "unnamed": n for k, n in totals.sources.items()})
    )
    licences = markdown_table(
        ("licence", "solutions", "share"), _shares({k or "unknown": n for k, n in totals.licences.items()})
    )
    outputs = (
        "The solutions are the output of the models above, whose licences may limit their use, such as for training "
        "other models: see the models' own cards."
    )
    return f"{sources}\n\n{licences}\n\n{outputs}"


def rights(totals: Totals) -> str:
    """What is known to be disputed of the sources of a dataset."""
    disputed = any(part in source.casefold() for source in totals.sources for part in _SEVERAL_PROBLEMS)
    return _MATH_RIGHTS if disputed else "No source of this dataset is known to us to be disputed."


def _biases(manifest: Manifest, totals: Totals) -> str:
    draws = sum(totals.draws.values())
    cut = totals.draws.get("truncated", 0)
    lines: list[str] = []
    if draws:
        lines += [
            "A label by rollouts says whether *this completer* still reaches the answer, not whether the step is "
            "valid: a strong completer repairs wrong steps, a weak one fails after right ones.",
            "A right final answer may stand on a wrong step; such errors are nearly invisible to rollouts.",
        ]
    else:
        lines.append("The labels were brought with the solutions; no rollout supports or contradicts them.")
    if draws and manifest.allocation is not Allocation.FIXED_K:
        lines.append(
            f"Rollouts were allocated by `{manifest.allocation}`: prefixes have different numbers of draws, and k/n of "
            "a prefix is biased. Use the stored posterior values, or rules that are valid for this allocation."
        )
    if draws and cut:
        lines.append(
            f"{cut / draws:.1%} of all draws were cut by the token limit; long solutions are affected most."
        )
    if totals.labels.get("unknown"):
        share = totals.labels["unknown"] / max(1, totals.steps)
        lines.append(f"{share:.1%} of the steps have no label. They are unknown, not right and not wrong.")
    return "\n".join(f"- {line}" for line in lines)


# --- plots -------------------------------------------------------------------------------------------------

_COLOURS = {"right": "#2f7d4f", "wrong": "#c0483c", "unknown": "#b9b9b9"}


def labels_by_step(by_position: Mapping[int, Mapping[str, int]]) -> str:
    """Stacked shares of labels by step index, as SVG; 20 stands for all later ones."""
    columns = [
        (f"{at}+" if at == 20 else str(at), [(kind, counts.get(kind, 0)) for kind in _COLOURS])
        for at, counts in sorted(by_position.items())
    ]
    return _stacked("Labels by step index", tuple(_COLOURS), columns)


def first_errors(by_position: Mapping[int | None, int], *, unknown: int = 0) -> str:
    """Solutions by the index of their first wrong step, as SVG: the first 30, then those without one.

    Args:
        by_position: Solutions by index; None = no wrong step, or not known.
        unknown: How many of those under None are not known.
    """
    bars = [
        ("wrong", str(at), n)
        for at, n in sorted((k, n) for k, n in by_position.items() if k is not None)[:30]
    ]
    none = by_position.get(None, 0) - unknown
    bars += [bar for bar in (("right", "none", none), ("unknown", "?", unknown)) if bar[2]]
    most = max((n for _, _, n in bars), default=1)
    columns = [(name, [(kind, n), ("", most - n)]) for kind, name, n in bars]
    return _stacked(f"Solutions by first wrong step; the highest bar is {most:,}", (), columns)


def _stacked(title: str, legend: Sequence[str], columns: list[tuple[str, list[tuple[str, int]]]]) -> str:
    """Bars of equal width, parts upon each other, each bar as high as its parts together; ``legend`` names colours."""
    width, height, bar = 60 + 24 * max(1, len(columns)), 220, 18
    body: list[str] = []
    for number, (name, parts) in enumerate(columns):
        whole = sum(n for _, n in parts) or 1
        x, y = 40 + 24 * number, 190.0
        for kind, count in parts:
            tall = 160 * count / whole
            y -= tall
            if kind:
                label = escape(f"{name}: {count:,} {kind}")
                body.append(
                    f'<rect x="{x}" y="{y:.1f}" width="{bar}" height="{tall:.1f}" fill="{_COLOURS[kind]}">'
                    f"<title>{label}</title></rect>"
                )
        body.append(
            f'<text x="{x + bar / 2}" y="206" font-size="11" text-anchor="middle">{escape(name)}</text>'
        )
    head = f'<text x="8" y="18" font-size="12">{escape(title)}</text>' + "".join(
        f'<text x="{150 + 60 * at}" y="18" font-size="12" fill="{_COLOURS[kind]}">{kind}</text>'
        for at, kind in enumerate(legend)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {max(width, 340)} {height}" font-family="sans-serif" '
        f'role="img"><title>{escape(title)}</title>{head}{"".join(body)}</svg>\n'
    )
