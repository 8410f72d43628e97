"""The replay engine: rollouts from a log, drawn without replacement, so that labellers are compared on one log.

A log is a JSON-lines file, one rollout a line::

    {"problem_id": "...", "prefix": "text of the solution so far", "text": "the continuation"}

``prefix`` may be left out: then the text is a whole solution, a rollout of the bare problem. Optional fields:
``finish_reason`` (stop or length), ``token_ids`` and ``logprobs`` of the continuation.
"""

import gzip
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from stepward.labeling.policies.completion import completed
from stepward.prm.errors import EngineError, ProblemFileError, ReplayExhausted
from stepward.prm.policy import SampleRequest, Tokenizer
from stepward.prm.seeds import derive_seed
from stepward.prm.tokenizer import ByteTokenizer
from stepward.prm.types import FinishReason, PolicyInfo, Prefix, Rollout, TokenIds


@dataclass(frozen=True, slots=True)
class LoggedRollout:
    """One rollout of a log.

    Attributes:
        problem_id: The problem.
        prefix: Text of the solution so far; empty for the bare problem.
        text: The continuation.
        finish_reason: Why the engine that logged it stopped.
        token_ids: Of the continuation, where the log has them and they are the policy's tokenizer's.
        logprobs: Of each id, where the log has them.
    """

    problem_id: str
    prefix: str
    text: str
    finish_reason: FinishReason = FinishReason.STOP
    token_ids: TokenIds = ()
    logprobs: tuple[float, ...] | None = None


@dataclass(slots=True)
class _Pool:
    """The rollouts at one prefix in the order in which they are drawn, and which seed drew which."""

    rollouts: list[LoggedRollout]
    drawn: dict[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class ReplayPolicy:
    """Draws logged rollouts. Made by ``replay_policy`` or ``load_replay``.

    The order at a prefix is a permutation fixed by the replay seed; each new request seed takes the next one, a
    request seed seen before gets the same again. ``max_tokens`` does not apply: a log is replayed as it ended.

    Attributes:
        info: Name, revision and engine.
        tokenizer: Bytes, unless another is given.
        context_length: No limit of its own.
        deterministic: True: it reads only the order of requests at one prefix.
    """

    info: PolicyInfo
    tokenizer: Tokenizer
    context_length: int
    deterministic: bool
    _pools: dict[tuple[str, str], _Pool]

    async def sample(self, request: SampleRequest) -> Rollout:
        """The next undrawn rollout at the prefix.

        Raises:
            ReplayExhausted: All rollouts at the prefix are drawn, or the log has none there.
        """
        prefix = request.prefix
        so_far = self.tokenizer.decode(prefix.solution_ids)
        pool = self._pools.get((prefix.problem_id, so_far))
        if pool is None:
            raise ReplayExhausted(
                f"replaying problem {prefix.problem_id}: the log has no rollout at prefix {prefix.num_steps} "
                f"(solution so far: ...{so_far[-60:]!r}); log rollouts there, or allocate only to logged prefixes"
            )
        place = pool.drawn.setdefault(request.seed, len(pool.drawn))
        if place >= len(pool.rollouts):
            del pool.drawn[request.seed]
            raise ReplayExhausted(
                f"replaying problem {prefix.problem_id}: all {len(pool.rollouts)} logged rollouts at prefix "
                f"{prefix.num_steps} are drawn; lower the number of rollouts or log more"
            )
        logged = pool.rollouts[place]
        ids = logged.token_ids or self.tokenizer.encode(logged.text)
        sampler = replace(request.sampler, max_tokens=max(request.sampler.max_tokens, len(ids)))
        unlimited = replace(request, sampler=sampler)
        logprobs = logged.logprobs if request.want_logprobs else None
        return completed(unlimited, self.tokenizer, ids, logged.finish_reason, logprobs=logprobs)

    def remaining(self, problem_id: str, prefix: str = "") -> int:
        """How many logged rollouts are still undrawn at a prefix, given as text."""
        pool = self._pools.get((problem_id, prefix))
        return 0 if pool is None else len(pool.rollouts) - len(pool.drawn)

    async def loglikelihood(self, prefix: Prefix, continuation: TokenIds) -> tuple[float, ...]:
        """Always refused: a log cannot score."""
        raise EngineError(
            f"scoring a continuation of problem {prefix.problem_id}: a log of rollouts cannot score; use an engine"
        )

    async def close(self) -> None:
        """Nothing to free."""


def replay_policy(
    rollouts: Iterable[LoggedRollout],
    *,
    tokenizer: Tokenizer | None = None,
    seed: int = 0,
    name: str = "replay",
    revision: str = "",
) -> ReplayPolicy:
    """A policy that replays rollouts.

    Args:
        rollouts: The log.
        tokenizer: Bytes where None.
        seed: Chooses the order at every prefix; give several for several replays.
        name: Name in rows.
        revision: Content hash of the log.
    """
    pools: dict[tuple[str, str], _Pool] = {}
    for rollout in rollouts:
        pools.setdefault((rollout.problem_id, rollout.prefix), _Pool([], {})).rollouts.append(rollout)
    for (problem_id, prefix), pool in pools.items():
        keyed = [(derive_seed(seed, problem_id, prefix, i), r) for i, r in enumerate(pool.rollouts)]
        pool.rollouts = [r for _, r in sorted(keyed, key=lambda pair: pair[0])]
    info = PolicyInfo(name=name, revision=revision, engine="replay")
    return ReplayPolicy(info, tokenizer or ByteTokenizer(), 1 << 30, True, pools)


def load_replay(path: str | Path, *, tokenizer: Tokenizer | None = None, seed: int = 0) -> ReplayPolicy:
    """Read a log of rollouts, JSON lines, also compressed as ``.gz``.

    Raises:
        ProblemFileError: The file or a line of it cannot be read.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    except (OSError, UnicodeDecodeError, EOFError) as fault:
        raise ProblemFileError(path, None, f"the log of rollouts cannot be read: {fault}") from fault
    rollouts = [_logged(path, n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not rollouts:
        raise ProblemFileError(path, None, "the log holds no rollout; write one JSON object a line")
    revision = hashlib.sha256(text.encode()).hexdigest()[:16]
    return replay_policy(rollouts, tokenizer=tokenizer, seed=seed, name=path.name, revision=revision)


def _logged(path: Path, line_number: int, line: str) -> LoggedRollout:
    try:
        row = json.loads(line)
    except ValueError as fault:
        raise ProblemFileError(path, line_number, f"not JSON: {fault}") from fault
    if not isinstance(row, dict):
        raise ProblemFileError(path, line_number, "a line is one JSON object with problem_id and text")
    fields = cast(dict[str, Any], row)
    for key, required in (("problem_id", True), ("text", True), ("prefix", False)):
        if not isinstance(fields.get(key, None if required else ""), str):
            raise ProblemFileError(path, line_number, f"{key} is {fields.get(key)!r}; a text is expected")
    reason = fields.get("finish_reason", "stop")
    if reason not in (FinishReason.STOP, FinishReason.LENGTH):
        raise ProblemFileError(path, line_number, f"finish_reason is {reason!r}; stop or length is expected")
    logprobs = fields.get("logprobs")
    return LoggedRollout(
        problem_id=fields["problem_id"],
        prefix=fields.get("prefix", ""),
        text=fields["text"],
        finish_reason=FinishReason(reason),
        token_ids=tuple(fields.get("token_ids") or ()),
        logprobs=None if logprobs is None else tuple(logprobs),
    )
