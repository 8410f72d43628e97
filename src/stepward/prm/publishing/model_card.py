"""The card of a reward model, from its folder, its evaluation and the manifest of its data: nothing by hand.

``write_model_card`` puts README.md and, where the history has more than one epoch, a plot beside the weights. What is
not at hand is said to be missing, never left out in silence.
"""

import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any, cast

import yaml

from stepward.prm.dataset.folder import stored_manifest
from stepward.prm.dataset.manifest import Manifest
from stepward.prm.durable import write_durably
from stepward.prm.errors import ModelError
from stepward.prm.publishing.cards import HUB_LICENCES, markdown_table, rights

Json = Mapping[str, Any]
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_METRIC_NAMES = {"f1": "F1 of the first wrong step", "error_accuracy": "accuracy on erroneous solutions",
                 "correct_accuracy": "accuracy on correct solutions"}  # fmt: skip
_SCHEDULE = (
    "epochs",
    "batch_size",
    "learning_rate",
    "head_learning_rate",
    "weight_decay",
    "decay",
    "warmup_share",
)
PLOT = "plots/history.svg"


def write_model_card(
    folder: str | Path,
    *,
    repo: str,
    licence: str,
    name: str | None = None,
    evaluation: str | Path | None = None,
    data: str | Path | None = None,
    datasets: Sequence[str] = (),
) -> Path:
    """Write README.md into a model folder. Returns the card's path.

    Args:
        folder: A trained model: its ``prm.json`` holds the head, the training settings and the metric history.
        repo: Hub id that the card will stand under.
        licence: Of the weights, as the Hub writes it (``apache-2.0``), or a short text. The base model's licence
            binds; only its user knows it.
        name: Heading; the last part of ``repo`` where None.
        evaluation: Folder of an evaluation with its ``results.json``, or that file.
        data: Folder of the dataset that the model was trained on.
        datasets: Hub ids of that dataset, where it is published.

    Raises:
        ModelError: The folder holds no trained model, or the data is not what it was trained on.
    """
    place = Path(folder)
    card = model_card(
        _description(place), repo=repo, licence=licence, name=name or repo.split("/")[-1],
        results=_results(evaluation), manifest=_manifest(data, place), datasets=datasets,
    )  # fmt: skip
    history = _history(_description(place))
    if len(history) > 1:
        (place / PLOT).parent.mkdir(exist_ok=True)
        write_durably(place / PLOT, _plot(history).encode())
    write_durably(place / "README.md", card.encode())
    return place / "README.md"


def _description(folder: Path) -> Json:
    try:
        found = json.loads((folder / "prm.json").read_text(encoding="utf-8"))
        if not isinstance(found["head"], dict):
            raise TypeError("its head is no object")
    except (OSError, ValueError, KeyError, TypeError) as fault:
        raise ModelError(
            f"making a model card: {folder / 'prm.json'} does not describe a reward model ({fault}); train one with "
            "stepward train, or name the folder that it wrote"
        ) from fault
    return cast(Json, found)


def _results(evaluation: str | Path | None) -> Json | None:
    if evaluation is None:
        return None
    path = Path(evaluation)
    file = path / "results.json" if path.is_dir() else path
    try:
        return cast(Json, json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError) as fault:
        raise ModelError(
            f"making a model card: {file} holds no evaluation ({fault}); make one with stepward evaluate"
        ) from fault


def _manifest(data: str | Path | None, folder: Path) -> Manifest | None:
    if data is None:
        return None
    manifest = stored_manifest(Path(data))
    trained_on = _of(_description(folder), "training", "dataset", "fingerprint")
    if manifest is None or (trained_on is not None and manifest.fingerprint != trained_on):
        raise ModelError(
            f"making a model card: {data} has fingerprint {manifest.fingerprint if manifest else None}, and the model "
            f"was trained on {trained_on}; name the dataset that it was trained on"
        )
    return manifest


def _of(tree: object, *names: str) -> Any:
    """A value deep in a JSON tree; None where any part of the way is not there."""
    for name in names:
        if not isinstance(tree, Mapping):
            return None
        tree = cast(Json, tree).get(name)
    return tree


def model_card(
    description: Json,
    *,
    repo: str,
    licence: str,
    name: str,
    results: Json | None = None,
    manifest: Manifest | None = None,
    datasets: Sequence[str] = (),
) -> str:
    """The text of the card; arguments as in ``write_model_card``, read already."""
    template = (
        resources.files("stepward.prm.publishing")
        .joinpath("card_templates", "model_card.md")
        .read_text("utf-8")
    )
    history = _history(description)
    plot = f"\n\n![Loss and F1 by epoch]({PLOT})" if len(history) > 1 else ""
    return Template(template).substitute(
        front_matter=_front_matter(description, name, repo, licence, results, datasets).strip(),
        name=name,
        repo=repo,
        identity=_identity(description),
        step_format=_of(description, "step_format", "delimiter") or "not stored",
        prompt=_of(description, "prompt", "name") or "not stored",
        training=_training(description),
        history=_history_table(history) + plot,
        evaluation=_evaluation(results),
        data=_data(description, manifest, datasets),
        limits=_limits(description, manifest),
    )


# --- front matter ------------------------------------------------------------------------------------------


def _front_matter(
    description: Json, name: str, repo: str, licence: str, results: Json | None, datasets: Sequence[str]
) -> str:
    known = HUB_LICENCES.get(licence.strip().casefold())
    base = _of(description, "training", "base")
    front: dict[str, Any] = {
        "license": known or "other",
        "library_name": "stepward",
        "tags": ["process-reward-model", "prm", "reward-model", "stepward"],
    }
    if known is None:
        link = f"https://huggingface.co/{repo}#limits"
        front |= {"license_name": licence or "unknown", "license_link": link}
    if isinstance(base, str) and _HUB_ID.fullmatch(base):
        front["base_model"] = base
    if datasets:
        front["datasets"] = list(datasets)
    if index := _model_index(name, results):
        front["model-index"] = index
    return yaml.safe_dump(front, sort_keys=False, allow_unicode=True, width=110)


def _model_index(name: str, results: Json | None) -> list[dict[str, Any]]:
    """Measured values as the Hub lists them; a value that could not be computed is not listed."""
    entries: list[dict[str, Any]] = []
    run = _own_run(results)
    for subset in _of(run, "result", "subsets") or ():
        metrics = [
            {"type": metric, "name": words, "value": round(value, 4)}
            for metric, words in _METRIC_NAMES.items()
            if (value := _of(subset, metric, "value")) is not None
        ]
        if metrics:
            entries.append(
                {
                    "task": {"type": "text-classification", "name": "First wrong step"},
                    "dataset": {"type": str(subset["name"]), "name": str(subset["name"])},
                    "metrics": metrics,
                }
            )
    return [{"name": name, "results": entries}] if entries else []


def _own_run(results: Json | None) -> Json | None:
    """The run of the model itself: the manifest names it; the others are baselines."""
    runs: Sequence[Json] = _of(results, "runs") or ()
    named = _of(results, "manifest", "prm")
    return next((r for r in runs if _of(r, "result", "scorer") == named), runs[0] if runs else None)


# --- sections ----------------------------------------------------------------------------------------------


def _said(value: object) -> str:
    if value is None:
        return "not stored"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _identity(description: Json) -> str:
    head = cast(Json, description["head"])
    rows = [
        ("head", f"`{head.get('kind')}`, {_said(head.get('outputs'))} outputs"),
        ("reads", "causally: a step's score does not change when more follows" if description.get("causal")
         else "the whole text: a step's score may change when more follows"),
        ("reference", "a frozen language model's log-probabilities beside the text" if description.get("reference")
         else "none"),
        ("tokenizer", f"`{_said(_of(description, 'training', 'tokenizer_hash'))}`"),
        ("at most", f"{_said(description.get('max_tokens'))} tokens"),
    ]  # fmt: skip
    return markdown_table(("", ""), rows)


def _training(description: Json) -> str:
    training = _of(description, "training")
    if training is None:
        return "Not stored in this checkpoint."
    rows = [
        ("base", f"`{_said(_of(training, 'base'))}`"),
        ("loss", f"`{_said(_of(training, 'loss'))}` on target `{_said(_of(training, 'labelling', 'target'))}`"),
        ("solutions", f"{_said(_of(training, 'rows', 'kept'))} of {_said(_of(training, 'rows', 'rows'))}"),
        ("labelled steps", f"{_said(_of(training, 'rows', 'labelled'))} of {_said(_of(training, 'rows', 'steps'))}"),
    ]  # fmt: skip
    rows += [(key.replace("_", " "), _said(_of(training, "schedule", key))) for key in _SCHEDULE]
    trained: object = _of(training, "trained")
    if rank := _of(trained, "lora_rank"):
        rows.append(("LoRA", f"rank {rank}, alpha {_said(_of(trained, 'lora_alpha'))}"))
    if _of(trained, "frozen_backbone"):
        rows.append(("backbone", "frozen"))
    rows.append(("seed", _said(_of(training, "seed"))))
    rows.append(("run", f"`{_said(_of(training, 'run'))}`"))
    return markdown_table(("", ""), rows)


def _history(description: Json) -> list[Json]:
    history = description.get("history")
    return (
        [cast(Json, e) for e in cast(list[Any], history) if isinstance(e, Mapping)]
        if isinstance(history, list)
        else []
    )


def _history_table(history: Sequence[Json]) -> str:
    if not history:
        return "The checkpoint holds no metric history."
    names = list(dict.fromkeys(name for entry in history for name in entry))
    rows = [tuple(_cell(entry.get(name)) for name in names) for entry in history]
    return markdown_table(tuple(name.replace("_", " ") for name in names), rows)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


_LINES = {"loss": "#c0483c", "f1": "#2f7d4f", "step_accuracy": "#2f5f9e"}


def _plot(history: Sequence[Json]) -> str:
    """Lines over epochs on one axis from 0 to the largest value, at least 1, as an SVG that stands alone."""
    lines = {
        name: [(at, float(e[name])) for at, e in enumerate(history) if isinstance(e.get(name), int | float)]
        for name in _LINES
    }
    top = max([1.0, *(value for points in lines.values() for _, value in points)])
    body = [f'<text x="40" y="14" font-size="12">From 0 to {top:.3g}, by epoch</text>']
    for number, (name, points) in enumerate(lines.items()):
        places = " ".join(
            f"{40 + 280 * at / (len(history) - 1):.1f},{180 - 150 * value / top:.1f}" for at, value in points
        )
        colour, words = _LINES[name], name.replace("_", " ")
        body.append(
            f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="2"><title>{words}</title>'
            "</polyline>"
        )
        body.append(f'<text x="{40 + 100 * number}" y="212" font-size="12" fill="{colour}">{words}</text>')
    axis = '<path d="M40 30 V180 H320" fill="none" stroke="#888"/>'
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 340 220" font-family="sans-serif" role="img">'
        f"<title>Loss and F1 by epoch</title>{axis}{''.join(body)}</svg>\n"
    )


def _interval(value: object) -> str:
    point, low, high = (_of(value, key) for key in ("value", "low", "high"))
    if point is None:
        return _of(value, "note") or "-"
    return f"{point:.3f}" if low is None else f"{point:.3f} ({low:.3f} to {high:.3f})"


def _evaluation(results: Json | None) -> str:
    runs: Sequence[Json] = _of(results, "runs") or ()
    own = _own_run(results)
    if results is None or own is None:
        return "Not evaluated, as far as this card knows. Evaluate it before you rely on it: `stepward evaluate`."
    rows = [
        (
            str(_of(run, "result", "scorer")),
            *(_interval(_of(run, "result", "macro", metric)) for metric in _METRIC_NAMES),
        )
        for run in runs
    ]
    parts = [markdown_table(("scorer", *_METRIC_NAMES.values()), rows)]
    if _of(own, "result", "oracle"):
        parts.append("**The threshold was chosen on the reported data itself (oracle).**")
    elif threshold := _of(own, "result", "threshold"):
        value, source = (_said(_of(threshold, key)) for key in ("value", "source"))
        parts.append(f"Threshold {value}, chosen on `{source}`, which is not reported.")
    parts.append("In brackets: 95 % intervals by bootstrap over problems.")
    subsets = [
        (
            str(s["name"]),
            f"{_said(_of(s, 'f1', 'n'))}",
            *(_interval(_of(s, metric)) for metric in _METRIC_NAMES),
        )
        for s in _of(own, "result", "subsets") or ()
    ]
    parts.append(markdown_table(("subset", "solutions", *_METRIC_NAMES.values()), subsets))
    if calibration := _of(own, "calibration"):
        parts.append(
            f"Calibration of single steps: AUROC {_interval(_of(calibration, 'auroc'))}, Brier score "
            f"{_interval(_of(calibration, 'brier'))}, expected calibration error {_interval(_of(calibration, 'ece'))}."
        )
    parts += [_best_of_n(found) for found in _of(results, "best_of_n") or ()]
    return "\n\n".join(parts)


def _best_of_n(found: Json) -> str:
    points: Sequence[Json] = _of(found, "points") or ()
    most = max((p["cut"] for p in points), default=0)
    rows = [
        (str(p["method"]), _interval(_of(p, "accuracy")), _interval(_of(p, "over_majority")))
        for p in points
        if p["cut"] == most
    ]
    head = f"Choosing among {most} {found.get('cut_by', 'samples')} of {_said(found.get('num_problems'))} problems:\n\n"
    return head + markdown_table(("method", "accuracy", "over majority"), rows) if rows else ""


def _data(description: Json, manifest: Manifest | None, datasets: Sequence[str]) -> str:
    named = ", ".join(f"[{d}](https://huggingface.co/datasets/{d})" for d in datasets)
    fingerprint = _said(_of(description, "training", "dataset", "fingerprint"))
    labeler = _said(_of(description, "training", "dataset", "labeler"))
    first = f"Dataset `{fingerprint}`{f' ({named})' if named else ''}, labels by `{labeler}`."
    if manifest is None or manifest.totals is None:
        return f"{first} Its manifest was not at hand: sources, licences and contamination are on the dataset's card."
    totals = manifest.totals
    note = manifest.contamination
    matches = sum(note.get("exact", {}).values()) + sum(note.get("near", {}).values())
    checked = (
        f"{note.get('checked', 0):,} problems were compared with {', '.join(note['benchmarks'])}: {matches:,} matches."
        if "benchmarks" in note
        else "Its problems were not compared with any benchmark."
    )
    rows = [
        ("sources", ", ".join(f"{k or 'unnamed'} ({n:,})" for k, n in totals.sources.items())),
        ("licences", ", ".join(f"{k or 'unknown'} ({n:,})" for k, n in totals.licences.items())),
        ("solutions by", f"`{manifest.policy.name}`" if manifest.policy else "brought"),
        ("rollouts by", f"`{manifest.completer.name}`" if manifest.completer else "none"),
        ("step labels", ", ".join(f"{n:,} {k}" for k, n in totals.labels.items())),
    ]
    return f"{first}\n\n{markdown_table(('', ''), rows)}\n\n{checked}\n\n{rights(totals)}"


def _limits(description: Json, manifest: Manifest | None) -> str:
    lines = [
        "A score is as good as its labels. Labels by rollouts say whether the completer still reached the answer, not "
        "whether the step is valid; a right answer that stands on a wrong step is nearly invisible to them.",
        "It was trained on the solutions of one policy: those of another are out of its distribution. Measure it on "
        "yours before you rely on it.",
        "Used as a reward it can be exploited: long, empty or repeated steps may score well. See the guards of "
        "`stepward.training.rewards`.",
        "The base model's licence and that of the policy's outputs bind these weights too.",
    ]
    cut = _of(description, "training", "rows", "steps_cut")
    if cut:
        lines.append(
            f"{cut:,} steps were cut by the token limit in training: long solutions are known less well."
        )
    if manifest is not None and manifest.completer is not None and manifest.policy != manifest.completer:
        lines.append("Rollouts came from another model than the solutions: the labels are off-policy.")
    return "\n".join(f"- {line}" for line in lines)
