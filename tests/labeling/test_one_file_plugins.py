"""The files that the docs show, put beside an entry point and nothing else, are reached by name from a run."""

import asyncio
import importlib
import json
import re
import sys
from pathlib import Path

import pytest

from stepward.flows.config import LabelConfig, parse
from stepward.flows.label import label
from stepward.labeling.estimators import registry
from stepward.labeling.plan import Engines
from stepward.labeling.policies.scripted import scripted_policy
from stepward.labeling.search import tree_sources
from stepward.prm.dataset.store import open_dataset
from stepward.prm.errors import ConfigError
from stepward.verifiers.answer import Grader

DOCS = Path(__file__).parents[2] / "docs"


def shown_in(page: str, decorator: str) -> str:
    """The code block of a page that holds the decorator: a whole file."""
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)
    return next(block for block in blocks if decorator in block)


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Puts a file and the metadata that names it into a folder of packages; registries are as before after it."""
    site = tmp_path / "site"
    monkeypatch.syspath_prepend(site)
    registries = (registry.REGISTRY, tree_sources.REGISTRY)
    for known in registries:
        known.all()  # what is in the tree is there before the copies are made
        monkeypatch.setattr(known, "_entries", dict(known._entries))
        monkeypatch.setattr(known, "_loaded", True)
    modules = []

    def put(module: str, source: str, group: str) -> None:
        assert len(source.strip().splitlines()) <= 30
        folder = site / f"{module}-1.0.dist-info"
        folder.mkdir(parents=True)
        (site / f"{module}.py").write_text(source)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text(f"[{group}]\n{module} = {module}\n")
        modules.append(module)
        importlib.invalidate_caches()
        for known in registries:
            known._loaded = False

    yield put
    for module in modules:
        sys.modules.pop(module, None)


def labelled(tmp_path, **settings):
    """The rows of three scripted problems of two steps: the answer is right after the first, at random after it."""
    rows = [{"id": f"p{i}", "question": f"Which way, {i}?", "answer": "6"} for i in range(3)]
    (tmp_path / "problems.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    policy = scripted_policy(
        lambda problem_id, so_far, seed: (
            ["left\nThe answer is 6.", "right\nThe answer is 7."]
            if not so_far
            else ["The answer is 6."] * (3 if so_far == "left\n" else 1) + ["The answer is 7."] * 2
        )
    )
    engines = Engines(policy, policy, lambda p: policy.tokenizer.encode(p.text + "\n"), Grader())
    config = parse(LabelConfig, problems=str(tmp_path / "problems.jsonl"), out=tmp_path / "out", **settings)
    asyncio.run(label(config, engines=engines))
    return open_dataset(config.out)


def test_an_estimator_that_the_docs_show_labels_a_run_once_its_package_is_there(tmp_path, install):
    settings = {"allocation": "fixed_k", "num_rollouts": 8, "labeler": "half_right", "num_solutions": 4}
    with pytest.raises(ConfigError, match="'half_right' is unknown"):
        labelled(tmp_path, **settings)
    install("half_right_package", shown_in("labeling-benchmark.md", "@register("), "stepward.labelers")
    rows = list(labelled(tmp_path, **settings, uniform_from=0).solutions())
    assert {r.labeler.name for r in rows} == {"half_right"}
    seen = [(r.prefixes[1].counts, r.labels[0].label) for r in rows]
    assert all(label == (2 * c.right >= c.right + c.wrong) for c, label in seen)
    assert {label for _, label in seen} == {0, 1}


def test_a_selection_function_that_the_docs_show_searches_for_a_run_once_its_package_is_there(
    tmp_path, install
):
    settings = {"search": "thompson", "search_options": {"width": 2, "iterations": 4}, "allocation": "none"}
    with pytest.raises(ConfigError, match="search 'thompson' is unknown"):
        labelled(tmp_path, **settings)
    install("thompson_package", shown_in("labeling.md", "@register_tree("), "stepward.searches")
    dataset = labelled(tmp_path, **settings)
    assert dataset.manifest.config["search"] == "thompson"
    assert {r.solution.ids_from for r in dataset.solutions()} == {"searched"}
    with pytest.raises(ConfigError, match="thompson has no 'depth'; it has width, iterations"):
        labelled(tmp_path, search="thompson", search_options={"depth": 2})
