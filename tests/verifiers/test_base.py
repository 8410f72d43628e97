"""The protocol of verifiers: registry, plugins by entry point, combinations of verdicts."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from stepward.prm.errors import InputError
from stepward.prm.types import Problem, Reason, Verdict, VerdictKind
from stepward.verifiers import base
from stepward.verifiers.base import (
    Combined,
    Verifier,
    first_decisive,
    make_verifier,
    register_verifier,
    unanimous,
    unknown,
    verifier_names,
    weighted,
)

pytestmark = pytest.mark.usefixtures("own_registry")

PLUGIN = Path(__file__).parents[1] / "plugin_package"


@pytest.fixture
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that a test registers are gone after it."""
    monkeypatch.setattr(base, "_registry", dict(base._registry))


def said(kind: str, name: str = "a", *, reason: Reason = Reason.NONE) -> Verdict:
    reason = Reason.TIMEOUT if kind == "unknown" and reason is Reason.NONE else reason
    return Verdict(VerdictKind(kind), name, "1", reason, seconds=0.5)


@dataclass(frozen=True, slots=True)
class Says:
    """A verifier that says the same of every step."""

    name: str
    kind: str
    version: str = "1"

    async def verify(self, problem: Problem, steps: Sequence[str]) -> list[tuple[Verdict, ...]]:
        return [(said(self.kind, self.name),) for _ in steps]


def test_a_registered_verifier_is_built_by_its_name() -> None:
    register_verifier("says_supported")(lambda: Says("says_supported", "supported"))
    assert "says_supported" in verifier_names()
    assert isinstance(make_verifier("says_supported"), Verifier)


def test_two_factories_cannot_share_a_name() -> None:
    register_verifier("twice")(lambda: Says("twice", "supported"))
    with pytest.raises(InputError, match=r"twice.*already has that name"):
        register_verifier("twice")(lambda: Says("twice", "refuted"))


def test_an_unknown_name_lists_what_there_is() -> None:
    register_verifier("present")(lambda: Says("present", "supported"))
    with pytest.raises(InputError, match=r"no verifier is called 'absent'; there are: .*present"):
        make_verifier("absent")


def test_a_factory_that_returns_something_else_is_refused() -> None:
    register_verifier("broken")(lambda: object())
    with pytest.raises(InputError, match="object, which lacks name, version or verify"):
        make_verifier("broken")


def test_the_first_decisive_verdict_wins_over_later_ones() -> None:
    verdicts = [said("unknown"), said("refuted", "b"), said("supported", "c")]
    assert first_decisive(verdicts) == said("refuted", "b")


def test_without_a_decisive_verdict_the_last_unknown_stays() -> None:
    verdicts = [said("unknown", "a"), said("unknown", "b", reason=Reason.PARSE)]
    assert first_decisive(verdicts).reason is Reason.PARSE
    assert unanimous(verdicts).reason is Reason.PARSE


def test_unanimity_leaves_a_disagreement_undecided() -> None:
    verdict = unanimous([said("supported", "a"), said("refuted", "b"), said("unknown", "c")])
    assert (verdict.kind, verdict.reason) == (VerdictKind.UNKNOWN, Reason.AMBIGUOUS)
    assert verdict.verifier == "a+b+c"
    assert verdict.seconds == pytest.approx(1.5)


def test_unanimity_needs_no_voice_of_those_that_do_not_know() -> None:
    assert unanimous([said("unknown", "a"), said("refuted", "b")]).kind is VerdictKind.REFUTED


def test_weights_are_the_log_odds_of_measured_precision() -> None:
    # 0.95 supports, 0.8 refutes: odds 19 / 4 = 4.75, probability 4.75 / 5.75 = 0.826.
    verdicts = [said("supported", "good"), said("refuted", "fair")]
    precision = {"good": 0.95, "fair": 0.8}
    assert weighted(verdicts, precision=precision, threshold=0.82).kind is VerdictKind.SUPPORTED
    assert weighted(verdicts, precision=precision, threshold=0.83).reason is Reason.AMBIGUOUS


def test_a_verifier_of_unmeasured_precision_has_no_voice() -> None:
    verdict = weighted([said("refuted", "new")], precision={"old": 0.9})
    assert (verdict.kind, verdict.reason) == (VerdictKind.UNKNOWN, Reason.UNSUPPORTED)


def test_a_precision_of_one_is_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"\(right \+ 1\) / \(n \+ 2\)"):
        weighted([said("supported")], precision={"a": 1.0})


@pytest.mark.parametrize("combine", [first_decisive, unanimous, partial(weighted, precision={})])
def test_no_verdict_at_all_is_an_error_and_not_a_verdict(combine) -> None:
    with pytest.raises(ValueError, match="at least one"):
        combine([])


def test_an_unknown_verdict_needs_a_reason() -> None:
    with pytest.raises(ValueError, match="without a reason"):
        unknown("a", "1", Reason.NONE)


async def test_members_combine_step_by_step() -> None:
    both = Combined("both", (Says("a", "unknown"), Says("b", "refuted")))
    found = await both.verify(Problem("p", ""), ["one", "two"])
    assert [[v.verifier for v in step] for step in found] == [["b"], ["b"]]
    assert both.version == "a-1+b-1"


def installed(folder: Path) -> dict[str, str]:
    """Environment in which the packages in ``folder`` are installed beside this one's."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}


@pytest.mark.slow
def test_an_installed_plugin_is_found_by_its_entry_point_and_runs(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "site"
    shutil.copytree(PLUGIN, source)
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "-q",
    ]
    subprocess.run([*install, "--target", str(target), str(source)], check=True, timeout=120)
    script = (
        "import asyncio, json\n"
        "from stepward.prm.types import Problem\n"
        "from stepward.verifiers.base import make_verifier, verifier_names\n"
        "found = asyncio.run(make_verifier('parity').verify(Problem('p', ''), ['12 is odd', 'so 7 is odd', '']))\n"
        "print(json.dumps(['parity' in verifier_names(), [[v.kind, v.span] for s in found for v in s]]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=installed(target), capture_output=True, check=True, timeout=120
    )
    assert json.loads(done.stdout) == [True, [["refuted", [0, 9]], ["supported", [3, 11]]]]


def test_a_plugin_that_does_not_import_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "bad_plugin-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bad-plugin\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[stepward.verifiers]\nbad = no_such_module:make\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "bad" in verifier_names()
    with pytest.raises(InputError, match="loading verifier 'bad' from no_such_module:make"):
        make_verifier("bad")


def test_the_plugin_source_is_a_verifier() -> None:
    sys.path.insert(0, str(PLUGIN / "src"))
    try:
        from stepward_parity import Parity
    finally:
        sys.path.remove(str(PLUGIN / "src"))
    assert isinstance(Parity(), Verifier)
    [verdicts] = asyncio.run(Parity().verify(Problem("p", ""), ["8 is even and 3 is even"]))
    assert [v.kind for v in verdicts] == [VerdictKind.SUPPORTED, VerdictKind.REFUTED]
