"""A stronger completer than the embedded policy, and the training problems labelled with it.

What continues a prefix need not be what wrote it: Math-Shepherd's completer is another, better model than the one whose
solutions are labelled. Here it is the embedded policy after rejection sampling (RFT): fine-tuned on its own solutions
and rollouts whose answer is right, of problems that no reward model of the benchmark trains on. It reads wording that
the policy takes for a toss-up rightly more often, so that the value of a right prefix seldom lies below one half.
"""

import asyncio
import shutil
from pathlib import Path

from stepward.flows.build import checkpoint_folder, prompt_template
from stepward.flows.config import LabelConfig
from stepward.flows.label import label
from stepward.flows.machine_checked import split_by_problem
from stepward.prm.dataset.store import open_dataset
from stepward.prm.models.hub import local_folder
from stepward.prm.types import Outcome
from stepward.training.generative import Critique, train_generative
from stepward.training.loop import Schedule

RIGHT_PER_PROBLEM = 8
SCHEDULE = Schedule(
    epochs=4, batch_size=32, learning_rate=1e-3, weight_decay=0.05, row_tokens=512, micro_batch_tokens=16384
)


def make_completer(dataset: Path, first_problems: int, out: Path) -> None:
    """Fine-tune the policy on right solutions of the problems after the first ones.

    Args:
        dataset: Labelled with the embedded policy.
        first_problems: So many problems are left out: reward models train on them.
        out: Folder of the completer.
    """
    if out.exists():
        return
    policy = local_folder(checkpoint_folder("embedded"))
    opened = open_dataset(dataset)
    _, rows = split_by_problem(list(opened.solutions()), first_problems)
    by_id = {row.solution.id: row for row in rows}
    found: dict[str, dict[str, Critique]] = {}
    for solution_id, rollout in opened.rollouts():
        row = by_id.get(solution_id)
        if row is None or rollout.outcome is not Outcome.RIGHT:
            continue
        before = "".join(s.text + "\n" for s in row.solution.steps[: rollout.num_steps])
        text = before + rollout.text
        found.setdefault(row.problem.id, {}).setdefault(
            text, Critique(solution_id, row.problem.id, row.problem.text, text)
        )
    examples = [c for texts in found.values() for c in list(texts.values())[:RIGHT_PER_PROBLEM]]
    train_generative(examples, base=policy, out=out, prompt=prompt_template(None, policy), schedule=SCHEDULE)
    # A critic's folder is a policy's with its prompt.
    shutil.copyfile(policy / "prompt.jinja", out / "prompt.jinja")


def label_with(completer: Path, config: LabelConfig, out: Path) -> None:
    """The same solutions as ``config``'s, with rollouts of the completer."""
    job = config.model_copy(update={"completer": str(completer), "out": out})
    if not (out / "manifest.json").exists():
        asyncio.run(label(job, resume=(out / "manifest.partial.json").exists()))
