"""Publishing to the Hugging Face Hub so that a reader of main or of a tag never sees half.

Files go to a branch named by the fingerprint, commit by commit; calling again uploads only what is missing there.
Once the branch holds exactly what is here (checksums of every file), one commit brings all of it to main and a tag
is set. The data is not sent twice: the second commit names blobs that the Hub has.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import yaml

from stepward.prm.dataset.manifest import scrub_text
from stepward.prm.dataset.store import open_dataset, verify
from stepward.prm.errors import PublishError, StepwardError
from stepward.prm.locks import LOCK_NAME

Kind = Literal["dataset", "model"]
CHECKS = ("verification", "contamination", "licence", "card", "weights")
"""Names of the checks that may forbid publishing; each can be allowed by name."""
_PER_COMMIT = 100
_UNSAFE = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".py")
_PRIVATE = ("run_metrics.parquet", LOCK_NAME)


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A file to publish: path in the repository, size, SHA-256, and git's id of it as a plain blob."""

    path: str
    num_bytes: int
    sha256: str
    git_id: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What publishing would do; ``--dry-run`` shows it.

    Attributes:
        repo: Hub id.
        kind: dataset or model.
        fingerprint: Of the dataset, or over the files of a model.
        files: What goes up.
        refusals: Check -> why it forbids publishing.
        card: Text of README.md; empty where there is none.
    """

    repo: str
    kind: Kind
    fingerprint: str
    files: Sequence[PlannedFile]
    refusals: Mapping[str, str]
    card: str

    @property
    def branch(self) -> str:
        """Where files go first."""
        return f"upload-{self.fingerprint[:12]}"

    @property
    def tag(self) -> str:
        """Name of the finished version."""
        return f"v-{self.fingerprint[:12]}"


@dataclass(frozen=True, slots=True)
class Published:
    """What publishing did.

    Attributes:
        url: Of the repository.
        commit: The commit on main.
        tag: The tag on it.
        uploaded: Files that were sent now.
        found: Files that an earlier call had sent.
    """

    url: str
    commit: str
    tag: str
    uploaded: int
    found: int


def plan_publication(folder: str | Path, repo: str, *, kind: Kind = "dataset") -> Plan:
    """What would be published, and which checks forbid it. Reads every file once and sends nothing.

    Raises:
        StoreError: There is no dataset in the folder, or it is not finished.
        PublishError: The folder is empty.
    """
    path = Path(folder)
    refusals = _dataset_refusals(path) if kind == "dataset" else _model_refusals(path)
    files = [_planned(path, p) for p in _to_publish(path, kind)]
    if not files:
        raise PublishError(f"publishing {path}: the folder holds no files")
    card = path / "README.md"
    text = card.read_text(encoding="utf-8") if card.is_file() else ""
    if not text:
        refusals["card"] = "there is no README.md; make one with stepward.prm.publishing.cards.write_card"
    fingerprint = open_dataset(path).manifest.fingerprint if kind == "dataset" else None
    return Plan(repo, kind, fingerprint or _fingerprint(files), files, refusals, text)


def _to_publish(folder: Path, kind: Kind) -> list[Path]:
    found = sorted(p for p in folder.rglob("*") if p.is_file())
    hidden = [p for p in found if any(part.startswith(".") for part in p.relative_to(folder).parts)]
    kept = [p for p in found if p not in hidden and p.name not in _PRIVATE]
    if kind == "model":
        return kept
    own = {"manifest.json", "README.md", "solutions", "rollouts", "receipts", "plots"}
    return [p for p in kept if p.relative_to(folder).parts[0] in own]


def _planned(folder: Path, path: Path) -> PlannedFile:
    size = path.stat().st_size
    sha256, git = hashlib.sha256(), hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            sha256.update(block)
            git.update(block)
    return PlannedFile(path.relative_to(folder).as_posix(), size, sha256.hexdigest(), git.hexdigest())


def _fingerprint(files: Iterable[PlannedFile]) -> str:
    return hashlib.sha256("\n".join(f"{f.path} {f.sha256}" for f in files).encode()).hexdigest()


def _dataset_refusals(folder: Path) -> dict[str, str]:
    refusals: dict[str, str] = {}
    manifest = open_dataset(folder).manifest
    found = verify(folder)
    if not found.ok:
        refusals["verification"] = "; ".join(found.faults[:5])
    note = manifest.contamination
    if "by_construction" in note:
        refusals["contamination"] = f"contaminated by construction: {note['by_construction']}"
    elif not note:
        refusals["contamination"] = "it was not checked against any benchmark (stepward audit contamination)"
    elif matches := sum(note.get("exact", {}).values()) + sum(note.get("near", {}).values()):
        refusals["contamination"] = f"{matches} of its problems stand in benchmarks; the manifest names them"
    unknown = manifest.totals.licences.get("", 0) if manifest.totals else 0
    if unknown:
        refusals["licence"] = f"the licence of the problems of {unknown:,} solutions is unknown"
    return refusals


def _model_refusals(folder: Path) -> dict[str, str]:
    refusals: dict[str, str] = {}
    unsafe = sorted(p.name for p in folder.rglob("*") if p.suffix in _UNSAFE)
    if unsafe:
        refusals["weights"] = f"{', '.join(unsafe[:5])}: weights are published as safetensors, and no code"
    if not any(folder.glob("*.safetensors")):
        refusals["verification"] = "there is no *.safetensors file"
    if not _front_matter(folder / "README.md").get("license"):
        refusals["licence"] = "the front matter of README.md names no license"
    return refusals


def _front_matter(card: Path) -> dict[str, Any]:
    text = card.read_text(encoding="utf-8") if card.is_file() else ""
    parts = text.split("---\n")
    try:
        front = yaml.safe_load(parts[1]) if text.startswith("---\n") and len(parts) > 2 else None
    except yaml.YAMLError:
        return {}
    return cast(dict[str, Any], front) if isinstance(front, dict) else {}


def publish(
    folder: str | Path,
    repo: str,
    *,
    kind: Kind = "dataset",
    private: bool = True,
    allow: Collection[str] = (),
    token: str | None = None,
    endpoint: str | None = None,
) -> Published:
    """Publish a dataset or a model. Calling again after a broken upload goes on; when all is there, it says so.

    Args:
        folder: A finished dataset, or a model folder.
        repo: Hub id; made where it is not there.
        kind: dataset or model.
        private: Whether a repository that is made is private.
        allow: Checks that shall not forbid it, by name (``CHECKS``).
        token: Hub token; the saved one where None. Never written anywhere.
        endpoint: The Hub's address; ``HF_ENDPOINT``, else the public Hub, where None.

    Raises:
        PublishError: A check forbids it, the Hub refused (token, quota, someone else's commit), or the upload broke.
    """
    plan = plan_publication(folder, repo, kind=kind)
    unknown = sorted(set(allow) - set(CHECKS))
    if unknown:
        raise PublishError(
            f"publishing {repo}: no check is called {unknown[0]!r}; there are {', '.join(CHECKS)}"
        )
    forbidden = {check: why for check, why in plan.refusals.items() if check not in allow}
    if forbidden:
        listed = "\n".join(f"  - {check}: {why}" for check, why in forbidden.items())
        raise PublishError(
            f"publishing {folder} as {repo} is refused:\n{listed}\nMend it, or allow a check by name "
            f"(--allow {' --allow '.join(forbidden)})"
        )
    from huggingface_hub import HfApi  # not loaded where nothing is published
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return _Upload(HfApi(endpoint=endpoint, token=token), plan, Path(folder)).run(private)
    except StepwardError:
        raise
    except HfHubHTTPError as fault:
        response: Any = fault.response  # absent in some versions of huggingface_hub
        status = response.status_code if response is not None else 0
        raise PublishError(
            _explained(repo, fault), retryable=status in (0, 409, 412, 429) or status >= 500
        ) from None
    except Exception as fault:  # a broken connection has many types, of several libraries
        raise PublishError(
            f"publishing {repo}: the upload broke ({type(fault).__name__}: {scrub_text(str(fault))[:300]}); main was "
            "not changed. Call again: what is there already is not sent again",
            retryable=True,
        ) from None


def _explained(repo: str, fault: Any) -> str:
    response: Any = fault.response  # absent in some versions of huggingface_hub
    status = response.status_code if response is not None else 0
    said = scrub_text(str(fault.server_message or fault))[:300]
    remedy = {
        401: "the token is missing or wrong: log in with `hf auth login`, or set HF_TOKEN",
        403: "the token may not write here, or the account's storage is full",
        404: "there is no such repository, or the token may not see it",
        409: "someone else changed the repository at the same time: call again",
        412: "someone else committed to main in between: call again, which compares with the new main",
        413: "the account's storage is full, or a file is too large",
        429: "the Hub asks to wait: call again later",
    }.get(status, "call again: what is there already is not sent again")
    return f"publishing {repo}: the Hub answered {status} ({said}); {remedy}"


class _Upload:
    """One publication under way."""

    def __init__(self, api: Any, plan: Plan, folder: Path) -> None:
        self.api, self.plan, self.folder = api, plan, folder
        self.where: dict[str, Any] = {"repo_id": plan.repo, "repo_type": plan.kind}

    def run(self, private: bool) -> Published:
        url = str(self.api.create_repo(**self.where, private=private, exist_ok=True))
        refs = self.api.list_repo_refs(**self.where)
        done = next((t.target_commit for t in refs.tags if t.name == self.plan.tag), None)
        main = self.api.repo_info(**self.where, revision="main").sha
        if done is not None and done == main and not self._missing(self._tree("main")):
            return Published(url, done, self.plan.tag, 0, len(self.plan.files))
        self.api.create_branch(**self.where, branch=self.plan.branch, exist_ok=True)
        missing = self._missing(self._tree(self.plan.branch))
        for start in range(0, len(missing), _PER_COMMIT):
            part = missing[start : start + _PER_COMMIT]
            self.api.create_commit(
                **self.where,
                operations=self._additions(part),
                commit_message=f"Upload {len(part)} files",
                revision=self.plan.branch,
            )
        if broken := self._missing(self._tree(self.plan.branch)):
            raise PublishError(
                f"publishing {self.plan.repo}: after the upload {len(broken)} files on branch {self.plan.branch} are "
                f"not those here ({', '.join(f.path for f in broken[:3])}); main was not changed. Call again"
            )
        commit = self._bring_to_main(main)
        self.api.create_tag(**self.where, tag=self.plan.tag, revision=commit, exist_ok=True)
        self.api.delete_branch(**self.where, branch=self.plan.branch)
        return Published(url, commit, self.plan.tag, len(missing), len(self.plan.files) - len(missing))

    def _bring_to_main(self, main: str) -> str:
        """One commit: all files, and nothing of an older version left behind."""
        from huggingface_hub import CommitOperationDelete

        wanted = {f.path for f in self.plan.files}
        stale = [p for p in self._tree("main") if p not in wanted and p != ".gitattributes"]
        self.api.create_commit(
            **self.where,
            operations=[*self._additions(self.plan.files), *(CommitOperationDelete(path) for path in stale)],
            commit_message=f"{self.plan.kind} {self.plan.fingerprint[:12]}",
            revision="main",
            parent_commit=main,
        )
        head = self.api.repo_info(**self.where, revision="main").sha
        if broken := self._missing(self._tree(head)):
            raise PublishError(
                f"publishing {self.plan.repo}: main holds {len(broken)} files that are not those here; no tag was "
                "set. Call again"
            )
        return head

    def _additions(self, files: Iterable[PlannedFile]) -> list[Any]:
        from huggingface_hub import CommitOperationAdd

        return [CommitOperationAdd(f.path, str(self.folder / f.path)) for f in files]

    def _tree(self, revision: str) -> dict[str, Any]:
        entries = self.api.list_repo_tree(**self.where, revision=revision, recursive=True)
        return {entry.path: entry for entry in entries if hasattr(entry, "blob_id")}

    def _missing(self, tree: Mapping[str, Any]) -> list[PlannedFile]:
        return [f for f in self.plan.files if not _same(f, tree.get(f.path))]


def _same(file: PlannedFile, entry: Any) -> bool:
    if entry is None or entry.size != file.num_bytes:
        return False
    return entry.lfs.sha256 == file.sha256 if entry.lfs is not None else entry.blob_id == file.git_id
