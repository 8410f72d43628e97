"""A run's log and figures, in its folder: what a person watches while it goes and reads when it has gone wrong.

::

    run_metrics.jsonl      one event a line: run, shard and problem ids, when it happened
    run_metrics.json       the figures now; replaced whole, never half written

Both stand outside the dataset: no row, receipt or fingerprint depends on them, and they are never published.
"""

import asyncio
import json
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from stepward.flows.watching.run_metrics import RunMetrics, alarms
from stepward.labeling.annotate import ProblemResult
from stepward.labeling.plan import Engines
from stepward.labeling.policies.metered import Meter, MeteredPolicy
from stepward.prm.dataset.folder import RUN_LOG, RUN_STATE
from stepward.prm.dataset.manifest import scrub, scrub_text
from stepward.prm.durable import write_durably
from stepward.prm.errors import StoreError

EVERY_S = 5.0
_log = logging.getLogger("stepward.run")

Exporter = Callable[[Callable[[], dict[str, Any]]], Callable[[], None]]
"""Starts to serve what the function gives, and gives back what stops it (``flows.watching.prometheus``)."""


def metered(engines: Engines) -> tuple[Engines, Meter]:
    """Engines whose requests are counted, and the meter that counts them."""
    meter = Meter()
    policy = MeteredPolicy.watching(engines.policy, meter)
    same = engines.completer is engines.policy
    completer = policy if same else MeteredPolicy.watching(engines.completer, meter)
    return replace(engines, policy=policy, completer=completer), meter


class RunObserver:
    """Writes the log and the figures of one process of a run; an async context manager.

    Args:
        folder: The dataset folder.
        run_id: ``Manifest.run_id``.
        engines: Made by ``metered``.
        meter: Theirs.
        part: Which part of a run of several processes this one does; names its file of figures.
        every_s: How often the figures are written.
        exporter: Serves them, where they are wanted.
    """

    def __init__(
        self,
        folder: Path,
        run_id: str,
        engines: Engines,
        meter: Meter,
        *,
        part: str | None = None,
        every_s: float = EVERY_S,
        exporter: Exporter | None = None,
    ) -> None:
        policies = {id(p): p for p in (engines.policy, engines.completer) if isinstance(p, MeteredPolicy)}
        self.metrics = RunMetrics(meter, tuple(policies.values()))
        self._folder, self._run_id, self._part = folder, run_id, part
        self._every_s, self._exporter = every_s, exporter
        self._raised: set[str] = set()
        self._latest: dict[str, Any] = {}
        self._handle: int | None = None
        self._ticking: asyncio.Task[None] | None = None
        self._stop_export: Callable[[], None] = _nothing

    async def __aenter__(self) -> "RunObserver":
        self._latest = self.state()
        if self._exporter is not None:
            self._stop_export = self._exporter(lambda: self._latest)
        with suppress(OSError):
            # One write a line, appended: several processes of a run share the log.
            self._handle = os.open(self._folder / RUN_LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._ticking = asyncio.create_task(self._tick())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
            with suppress(asyncio.CancelledError):
                await self._ticking
        how = {"how": "finished"} if fault is None else {"how": type(fault).__name__, "why": str(fault)}
        self.event("stopped", **how)
        self._write(self.state())
        self._stop_export()
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def begin(self, total: int, found: int) -> None:
        """Note what there is to do, and what an earlier run has done of it."""
        self.metrics.total_problems, self.metrics.found = total, found
        names = {p.info.name: p.info.engine for p in self.metrics.policies}
        self.event("started", problems=total, found=found, engines=names)

    def problem(self, shard: int, result: ProblemResult) -> None:
        """Note a finished problem, and warn where a figure has turned bad."""
        self.metrics.add(result, shard)
        outcomes: dict[str, int] = {}
        for _, rollout in result.rollouts:
            name = rollout.outcome.value if rollout.outcome is not None else "not_graded"
            outcomes[name] = outcomes.get(name, 0) + 1
        fields: dict[str, Any] = {
            "shard": shard,
            "problem": result.problem.id,
            "solutions": len(result.solutions),
            "tokens": result.tokens,
            "outcomes": outcomes,
        }
        if result.skipped is not None:
            fields["skipped"] = result.skipped
        faults = [r.error for _, r in result.rollouts if r.error]
        if faults:
            fields["engine_fault"] = faults[0]
        self.event("problem", **fields)
        self._warn()

    def shard(self, shard: int, **fields: Any) -> None:
        """Note a shard that is written."""
        self.metrics.close(shard)
        self._warn()
        self.event("shard", shard=shard, **fields)

    def event(self, name: str, **fields: Any) -> None:
        """Append a line to the log. A full disk stops the log and not the run, whose rows tell of it soon enough."""
        line = {
            "time": _now(),
            "run": self._run_id,
            **({"part": self._part} if self._part is not None else {}),
            "event": name,
            **scrub(fields),
        }
        if self._handle is not None:
            with suppress(OSError):
                os.write(self._handle, (json.dumps(line, ensure_ascii=False) + "\n").encode())

    def state(self) -> dict[str, Any]:
        """The figures now."""
        return {"run": self._run_id, "part": self._part, "time": _now(), **self.metrics.snapshot(),
                "warnings": sorted(self._raised)}  # fmt: skip

    def _warn(self) -> None:
        """Say each alarm once; it can be said again when it has been quiet in between."""
        now = {alarm.name: alarm for alarm in alarms(self.metrics)}
        for name in sorted(now.keys() - self._raised):
            alarm = now[name]
            self.event("warning", warning=name, what=alarm.what, remedy=alarm.remedy)
            _log.warning("%s: %s", scrub_text(alarm.what), alarm.remedy)
        self._raised = set(now)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            # Counted here, where nothing moves meanwhile; what other threads see and write is a finished copy.
            self._latest = self.state()
            await asyncio.to_thread(self._write, self._latest)

    def _write(self, state: dict[str, Any]) -> None:
        name = RUN_STATE if self._part is None else RUN_STATE.replace(".json", f".{self._part}.json")
        data = json.dumps(state, ensure_ascii=False, indent=1) + "\n"
        with suppress(StoreError):
            write_durably(self._folder / name, data.encode(), sync_rename=False)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _nothing() -> None:
    return
