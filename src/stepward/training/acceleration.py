"""``accelerate`` around a run: several processes, and its own trackers (TensorBoard, Weights & Biases, ...).

What distributes a run is accelerate's own configuration (``accelerate launch``): nothing of it is chosen here.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stepward.prm.errors import InputError


def start_accelerator(
    trackers: Sequence[Any] = (),
    *,
    folder: Path,
    settings: Mapping[str, Any] | None = None,
    on_cpu: bool = False,
    project: str = "stepward",
) -> Any:
    """An ``accelerate.Accelerator`` whose trackers are running.

    Args:
        trackers: Names that accelerate knows (``tensorboard``, ``wandb``, ...), or trackers of its protocol.
        folder: Where trackers that write files put them.
        settings: What the trackers store of the run; nested values are stored as text.
        on_cpu: Stay on the CPU although there is an accelerator.
        project: The trackers' name for the project.

    Raises:
        InputError: accelerate is not installed, or a tracker's library is not; or FSDP's first version is set.
    """
    try:
        from accelerate import Accelerator
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers
    except ImportError as fault:
        raise InputError(
            "trackers and several processes need accelerate: pip install 'stepward[train]'"
        ) from fault
    available = {str(name) for name in get_available_trackers()}
    known = {str(name) for name in LOGGER_TYPE_TO_CLASS}
    for name in (t for t in trackers if isinstance(t, str)):
        if name not in known:
            raise InputError(f"unknown tracker {name!r}; accelerate knows {', '.join(sorted(known))}")
        if name not in available:
            raise InputError(
                f"the tracker {name!r} needs its library, which is not installed: pip install {name}"
            )
    accelerator = Accelerator(cpu=on_cpu, log_with=list(trackers) or None, project_dir=str(folder))
    refuse_flat_shards(accelerator)
    if trackers:
        plain = {
            k: v if isinstance(v, bool | str | int | float) else str(v) for k, v in (settings or {}).items()
        }
        accelerator.init_trackers(project, config=plain)
    return accelerator


def refuse_flat_shards(accelerator: Any) -> None:
    """Refuse FSDP's first version: it joins weights into flat ones, and the head has none of its own then.

    Raises:
        InputError: The configuration says ``fsdp_version: 1``, or leaves accelerate's default of 1.
    """
    plugin = getattr(accelerator.state, "fsdp_plugin", None)
    if plugin is not None and plugin.fsdp_version == 1:
        raise InputError(
            "training under FSDP version 1, which joins the weights of a model into flat ones, so that its head cannot "
            "be run on its own; set fsdp_version: 2 in accelerate's configuration (or FSDP_VERSION=2)"
        )
