"""Runs the cells of a solution in one confined process, statement by statement, and says what each printed.

Standard library only; imported inside the sandbox, see ``sandbox_job``.
"""

import ast
import json
import os
import random
import sys
from typing import Any

from stepward.verifiers import sandbox_job
from stepward.verifiers.sandbox_job import OUT_OF_MEMORY, PROGRAM, fresh_module, fresh_streams
from stepward.verifiers.sandbox_transfer import write_all

_REPORT = 3
_TEXT_CHARS = 300


def run_cells(sources: list[str]) -> int:
    """Run cells as one ``__main__``; the first that fails ends it. Reports a line of JSON for each event."""
    random.seed(0)
    fresh_streams()
    sys.argv = ["program.py"]
    space = fresh_module("__main__", "\n".join(sources)).__dict__
    for number, source in enumerate(sources):
        try:
            for statement in ast.parse(source, PROGRAM).body:
                _run_statement(number, statement, space)
        except MemoryError:
            return OUT_OF_MEMORY
        except BaseException as error:
            text = f"{error}"[:_TEXT_CHARS]
            lineage = [cls.__name__ for cls in type(error).__mro__[:-1]]
            _report({"cell": number, "end": "error", "types": lineage, "text": text, "at": _printed()})
            return 1
        _report({"cell": number, "end": "ok", "at": _printed()})
    return 0


def _run_statement(number: int, statement: ast.stmt, space: dict[str, Any]) -> None:
    before = _printed()
    if isinstance(statement, ast.Expr):
        expression = ast.Expression(statement.value)
        value = eval(compile(expression, PROGRAM, "eval", dont_inherit=True), space)
        echo = "" if value is None else repr(value)[:_TEXT_CHARS]
    else:
        module = ast.Module([statement], type_ignores=[])
        exec(compile(module, PROGRAM, "exec", dont_inherit=True), space)
        echo = ""
    line = statement.end_lineno or statement.lineno
    _report({"cell": number, "line": line, "from": before, "to": _printed(), "echo": echo})


def _printed() -> int:
    """Bytes printed so far."""
    sys.stdout.flush()
    return os.lseek(1, 0, os.SEEK_CUR)


def _report(event: dict[str, Any]) -> None:
    write_all(_REPORT, json.dumps(event).encode("ascii") + b"\n")


def execute_cells(job: dict[str, Any]) -> dict[str, Any]:
    """Run cells to their end or the deadline.

    Args:
        job: As ``sandbox_job.execute``, with ``cells`` (a list of sources) in place of ``program``.

    Returns:
        As ``sandbox_job.execute``, and ``cells``: for each the ``end`` (ok, error, or empty where it was not
        reached or not finished), ``types`` and ``text`` of the exception, ``output``, and ``prints``: line,
        output and echo of each statement.
    """
    report = os.memfd_create("report")
    try:
        found = sandbox_job.execute(job, lambda: run_cells(job["cells"]), extra=(report,))
        events = os.pread(report, job["output_bytes"], 0)
    finally:
        os.close(report)
    raw = found["stdout"].encode("utf-8", "replace")
    empty: dict[str, Any] = {"end": "", "types": [], "text": "", "output": ""}
    cells: list[dict[str, Any]] = [{**empty, "prints": []} for _ in job["cells"]]
    start = 0
    for line in events.splitlines():
        try:
            event: dict[str, Any] = json.loads(line)
            cell: dict[str, Any] = cells[int(event["cell"])]
            if "line" in event:
                printed = raw[event["from"] : event["to"]].decode("utf-8", "replace")
                cell["prints"].append([int(event["line"]), printed, str(event["echo"])])
                continue
            cell["output"] = raw[start : event["at"]].decode("utf-8", "replace")
            start = event["at"]
            cell["end"] = str(event["end"])
            cell["types"] = [str(name) for name in event.get("types", ())]
            cell["text"] = str(event.get("text", ""))
        except (ValueError, KeyError, IndexError, TypeError, AttributeError):
            continue  # the program wrote here
    return {**found, "cells": cells}
