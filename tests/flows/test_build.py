"""Which prompt a policy gets: its checkpoint's own, by whatever name the checkpoint was loaded."""

import json

import pytest

from stepward.flows.build import folder_of, load_policy_for, prompt_template
from stepward.prm.errors import ModelError


def test_a_checkpoint_brings_its_own_prompt_and_a_base_model_gets_the_plain_one(tmp_path):
    assert prompt_template(None, tmp_path).name == "plain"
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": "{{ messages[0].content }}"})
    )
    assert prompt_template(None, tmp_path).chat is True
    assert prompt_template("plain", tmp_path).chat is False
    (tmp_path / "prompt.jinja").write_text("Q: {{ problem }}")
    assert prompt_template(None, tmp_path).name == "prompt.jinja"


def test_a_policy_without_a_folder_gets_the_plain_prompt_and_chat_is_refused():
    assert prompt_template(None, None).name == "plain"
    with pytest.raises(ModelError, match="no checkpoint folder"):
        prompt_template("chat", None)


def test_the_embedded_policy_is_prompted_as_it_was_trained():
    folder = folder_of(load_policy_for("embedded"))
    assert folder is not None
    assert prompt_template(None, folder).name == "prompt.jinja"
