"""TRL's PRM trainer on the data and the model of ``training_speed``; runs in TRL's own environment.

python benchmarks/trl_prm.py FOLDER random|by_length
"""

import json
import sys
import time
from pathlib import Path

import torch
from datasets import load_dataset
from transformers import AutoModelForTokenClassification, AutoTokenizer
from trl.experimental.prm import PRMConfig, PRMTrainer


def main() -> None:
    """Train once and print what it took."""
    folder, order = Path(sys.argv[1]), sys.argv[2]
    settings = json.loads((folder / "settings.json").read_text())
    torch.set_num_threads(1)
    before_mib = _peak_mib()
    model = AutoModelForTokenClassification.from_pretrained(folder / "model")
    data = load_dataset("json", data_files=str(folder / "data.jsonl"), split="train")
    began = time.process_time()
    trainer = PRMTrainer(
        model=model,
        args=PRMConfig(
            output_dir=str(folder / "trl"),
            num_train_epochs=settings["epochs"],
            per_device_train_batch_size=settings["batch_size"],
            learning_rate=settings["learning_rate"],
            lr_scheduler_type="cosine",
            max_length=None,
            train_sampling_strategy="group_by_length" if order == "by_length" else "random",
            # The precision and the memory trade of our run: its own defaults are bfloat16 and checkpointing.
            bf16=False,
            gradient_checkpointing=False,
            use_cpu=True,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
        processing_class=AutoTokenizer.from_pretrained(folder / "model"),
        train_dataset=data,
    )
    prepared = time.process_time()
    tokens = sum(len(ids) for ids in trainer.train_dataset["input_ids"]) * settings["epochs"]
    started = time.process_time()
    loss = trainer.train().training_loss
    ended = time.process_time()
    print(
        json.dumps(
            {
                "tokens": tokens,
                "fit_cpu_s": ended - started,
                "whole_cpu_s": ended - started + prepared - began,
                "peak_mib": _peak_mib(),
                "grown_mib": _peak_mib() - before_mib,
                "loss": loss,
            }
        )
    )


def _peak_mib() -> float:
    # Not getrusage: its peak is inherited from the process that started this one.
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


if __name__ == "__main__":
    main()
