"""``load(name_or_folder)``: any reward model, own or published, ready to score."""
# pyright: basic

import os
from pathlib import Path
from typing import TYPE_CHECKING

from stepward.prm.errors import ModelError
from stepward.prm.models.hub import TEMPLATE_FILES, local_folder

if TYPE_CHECKING:
    from stepward.prm.models.generative import GenerativeRewardModel
    from stepward.prm.models.genprm import GenPrmRewardModel
    from stepward.prm.models.reward_model import DiscriminativeRewardModel
    from stepward.prm.models.served import ServedRewardModel
    from stepward.prm.policy import Executor, Policy


def load(
    name_or_folder: str | Path,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    revision: str | None = None,
    adapter: str | None = None,
    reference: str | Path | None = None,
) -> "DiscriminativeRewardModel | ServedRewardModel":
    """A reward model by folder or Hub id: ``load(name).score([problem], [steps])``.

    Args:
        name_or_folder: What ``stepward train`` wrote, a published model with an adapter, or the URL of a server that
            ``stepward serve`` started (``vllm:http://...`` or ``http://...``; ``served.load_served`` has its options).
        device: Where it computes.
        dtype: float32, bfloat16 or float16.
        revision: Of a Hub id.
        adapter: Layout of a published model (``published.ADAPTERS``) where its config and name do not tell.
        reference: Reference model of a published implicit reward model.

    Raises:
        ModelError: Not a reward model that can be read, or a weight is missing.
    """
    if str(name_or_folder).startswith(("vllm:", "http://", "https://")):
        from stepward.prm.models.served import load_served

        return load_served(str(name_or_folder), adapter=adapter, api_key=os.environ.get("STEPWARD_PRM_KEY"))
    import torch

    from stepward.prm.models.folder import PRM_FILE, load_prm
    from stepward.prm.models.reward_model import DiscriminativeRewardModel

    kinds = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if dtype not in kinds:
        raise ModelError(f"unknown dtype {dtype!r}; known: {', '.join(kinds)}")
    folder = local_folder(name_or_folder, revision)
    name = str(name_or_folder) if not Path(name_or_folder).is_dir() else folder.resolve().name
    if (folder / PRM_FILE).exists():
        prm = load_prm(folder, dtype=kinds[dtype])
    else:
        from stepward.prm.models.published import load_published

        reference_folder = None if reference is None else local_folder(reference)
        prm = load_published(folder, name, adapter=adapter, reference=reference_folder, dtype=kinds[dtype])
    prm.model.to(device)
    if prm.reference is not None:
        prm.reference.to(device)
    return DiscriminativeRewardModel(f"{name} ({prm.description.head.kind})", prm)


def load_critic(
    name_or_folder: str | Path,
    policy: "Policy",
    *,
    executor: "Executor | None" = None,
    adapter: str | None = None,
    num_samples: int = 1,
    revision: str | None = None,
) -> "GenerativeRewardModel | GenPrmRewardModel":
    """A reward model that writes, own or published: ``load_critic(name, policy).score([problem], [steps])``.

    Args:
        name_or_folder: Hub id or folder; its templates are read, its weights are the engine's business.
        policy: An engine that serves this very model.
        executor: Runs the programs that GenPRM writes; it judges by its analysis alone where None.
        adapter: ``genprm`` or ``thinkprm`` where the name does not tell.
        num_samples: Critiques whose scores are averaged.
        revision: Of a Hub id.

    Raises:
        ModelError: No critic of that layout, or no chat template.
    """
    from stepward.prm.models.generative import trained_critic
    from stepward.prm.models.published import CRITICS, recognise_critic
    from stepward.prm.models.verdicts import CRITIC_FILE

    folder = local_folder(name_or_folder, revision, files=TEMPLATE_FILES)
    if adapter is None and (folder / CRITIC_FILE).exists():
        return trained_critic(folder, policy, executor, num_samples)
    kind = adapter or recognise_critic(str(name_or_folder))
    if kind not in CRITICS:
        raise ModelError(
            f"{name_or_folder} is no critic that an adapter knows; say which layout it has: adapter = "
            f"{', '.join(CRITICS)}"
        )
    return CRITICS[kind](folder, policy, executor, num_samples)
