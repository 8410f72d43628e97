"""A configuration names every fault at once, and hashes only what shapes rows."""

from pathlib import Path

import pytest

from stepward.flows.config import EvaluateConfig, LabelConfig, parse
from stepward.prm.dataset.manifest import config_hash
from stepward.prm.errors import ConfigError


def test_all_faults_of_a_configuration_are_named_at_once():
    with pytest.raises(ConfigError) as caught:
        parse(LabelConfig, problems="generator:5", num_solutions=0, temprature=1.0, sampler={"top_p": 2.0})
    text = str(caught.value)
    assert "out: Field required" in text
    assert "num_solutions: Input should be greater than or equal to 1 (got 0)" in text
    assert "temprature: unknown key; known keys: allocation" in text
    assert "sampler.top_p: Input should be less than or equal to 1 (got 2.0)" in text


def test_what_is_given_goes_over_the_recipe_and_none_means_not_given(tmp_path):
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("problems: generator:5\nnum_rollouts: 7\nsampler: {temperature: 0.5, max_tokens: 9}\n")
    config = parse(
        LabelConfig, recipe, out=tmp_path, num_rollouts=None, sampler={"temperature": 0.25, "top_p": None}
    )
    assert (config.num_rollouts, config.sampler.temperature, config.sampler.max_tokens) == (7, 0.25, 9)


def test_a_recipe_that_is_not_there_or_not_yaml_is_named(tmp_path):
    with pytest.raises(ConfigError, match="one of pipeline, quickstart"):
        parse(LabelConfig, "nonesuch")
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [1")
    with pytest.raises(ConfigError, match="not YAML"):
        parse(LabelConfig, broken)


def test_workers_budgets_and_folders_do_not_change_the_hash_of_the_rows(tmp_path):
    base = LabelConfig(problems="generator:5", out=tmp_path)
    same = base.model_copy(
        update={
            "out": Path("elsewhere"),
            "workers": 2,
            "batch_size": 7,
            "budget_tokens": 10,
            "budget_hours": 1.0,
        }
    )
    other = base.model_copy(update={"seed": 1})
    assert config_hash(base.row_settings()) == config_hash(same.row_settings())
    assert config_hash(base.row_settings()) != config_hash(other.row_settings())


def test_a_file_in_another_folder_is_the_same_source(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "p.jsonl").write_text("{}")
    settings = [
        LabelConfig(problems=str(tmp_path / f / "p.jsonl"), out=tmp_path).row_settings() for f in ("a", "b")
    ]
    assert settings[0] == settings[1]
    assert str(tmp_path) not in str(settings)


def test_a_reported_score_needs_a_threshold_that_was_not_chosen_on_it():
    with pytest.raises(ConfigError, match="threshold that was not chosen on it"):
        parse(EvaluateConfig, prm="x", out="y", processbench=["a.jsonl"])
