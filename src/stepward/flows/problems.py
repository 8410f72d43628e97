"""The problems of a labelling run: its source, the fold of it that was asked for, and no more than its limit."""

from itertools import islice

from stepward.flows.config import LabelConfig
from stepward.prm.errors import ConfigError
from stepward.prm.problems import read_problems
from stepward.prm.seeds import derive_seed
from stepward.prm.types import Problem


def problems_of(config: LabelConfig) -> list[Problem]:
    """All problems of a run, in order.

    Raises:
        ConfigError: There is none.
        ProblemFileError: A row that cannot be read.
    """
    problems = read_problems(config.problems)
    if config.fold is not None:
        number, of = map(int, config.fold.split("/"))
        problems = (p for p in problems if fold_of(p.id, of) == number)
    found = list(islice(problems, config.limit))
    if not found:
        where = f" in fold {config.fold}" if config.fold is not None else ""
        raise ConfigError([f"problems: {config.problems} holds no problem{where}"])
    return found


def fold_of(problem_id: str, of: int) -> int:
    """Which of ``of`` folds a problem is in, from 1: a hash of its id, so that folds of one source share nothing."""
    return 1 + derive_seed(0, "fold", problem_id) % of
