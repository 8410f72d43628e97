"""Publishing, against a loopback server that speaks the Hub's protocol to the real huggingface_hub client."""

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import huggingface_hub.constants
import pytest

from stepward.prm.dataset.store import Manifest, ShardStore
from stepward.prm.errors import PublishError
from stepward.prm.publishing.cards import write_card
from stepward.prm.publishing.hub import plan_publication, publish
from stepward.prm.types import (
    Allocation,
    Estimate,
    FinishReason,
    LabeledSolution,
    LabelerInfo,
    Outcome,
    PolicyInfo,
    Problem,
    Rollout,
    Solution,
    Step,
    StepLabel,
)

TOKEN = "hf_" + "secretsecretsecret1234"
CHECKED = {
    "checked": 4, "benchmarks": {"gsm8k_test": 1319}, "ngram": 8, "min_overlap": 0.5, "exact": {}, "near": {},
    "matches": [],
}  # fmt: skip


@dataclass
class Repo:
    """Branches and tags name commits; a commit is the whole tree: path -> (git id, size, LFS oid or None)."""

    commits: dict[str, dict[str, tuple[str, int, str | None]]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    private: bool = False

    def commit(self, branch: str, tree: dict[str, tuple[str, int, str | None]]) -> str:
        name = hashlib.sha1(f"{branch}{len(self.commits)}".encode(), usedforsecurity=False).hexdigest()
        self.commits[name] = tree
        self.branches[branch] = name
        return name

    def find(self, revision: str) -> str | None:
        found = self.branches.get(revision) or self.tags.get(revision)
        return found or (revision if revision in self.commits else None)


class Hub(ThreadingHTTPServer):
    """What the client asks of the Hub when it makes, fills, tags and reads a repository."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.repos: dict[str, Repo] = {}
        self.blobs: dict[str, bytes] = {}
        self.asked: Counter[str] = Counter()
        self.uploads: list[str] = []
        self.break_after_uploads: int | None = None
        self.corrupt_uploads = False
        self.answers: dict[str, tuple[int, str]] = {}
        self.before_commit_to_main = lambda: None
        self.seen_on_main: list[frozenset[str]] = []


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, format: str, *args: object) -> None:
        return

    def reply(self, status: int, value: object = None, headers: dict[str, str] | None = None) -> None:
        data = b"" if value is None else value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, text in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def refuse(self, status: int, message: str) -> None:
        self.reply(status, {"error": message}, {"X-Error-Message": message})

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path, query = urlsplit(self.path).path, parse_qs(urlsplit(self.path).query)
        if path.startswith("/lfs/"):
            self.lfs(path.removeprefix("/lfs/"), body)
            return
        if self.headers.get("Authorization") not in (None, f"Bearer {TOKEN}"):
            self.refuse(401, "Invalid credentials in Authorization header")
            return
        for part, (status, message) in self.server.answers.items():
            if part in path:
                self.refuse(status, message)
                return
        self.route(path, query, body)

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = handle_any  # noqa: N815 - http.server's names

    def lfs(self, oid: str, body: bytes) -> None:
        limit = self.server.break_after_uploads
        if limit is not None and len(self.server.uploads) >= limit:
            self.refuse(400, "connection broken on purpose")
            return
        self.server.uploads.append(oid)
        self.server.blobs[oid] = body + b"!" if self.server.corrupt_uploads else body
        self.reply(200)

    def route(self, path: str, query: dict[str, list[str]], body: bytes) -> None:
        if path == "/api/repos/create":
            self.create(json.loads(body))
        elif path == "/api/validate-yaml":
            self.reply(200, {"errors": [], "warnings": []})
        elif match := re.fullmatch(r"/(?:datasets/)?([^/]+/[^/]+)\.git/info/lfs/objects/batch", path):
            self.lfs_batch(json.loads(body))
        elif match := re.fullmatch(r"/(?:datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self.resolve(match[1], unquote(match[2]), unquote(match[3]))
        elif match := re.fullmatch(r"/api/(?:datasets|models)/([^/]+/[^/]+)(?:/([a-z-]+)(?:/(.*))?)?", path):
            self.server.asked[match[2] or "info"] += 1
            repo = self.server.repos.get(match[1])
            if repo is None:
                self.reply(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
            else:
                self.api(match[1], repo, match[2] or "revision", unquote(match[3] or "main"), query, body)
        else:
            self.refuse(404, f"the loopback Hub does not know {self.command} {path}")

    def create(self, asked: dict) -> None:
        name = f"{asked['organization']}/{asked['name']}"
        if name in self.server.repos:
            # The Hub names the repository in this answer too; the client reads it with exist_ok.
            url = f"{self.server.url}/datasets/{name}"
            self.reply(409, {"error": "You already created this dataset repo", "url": url})
            return
        repo = Repo(private=asked.get("visibility") == "private" or bool(asked.get("private")))
        repo.commit("main", {})
        self.server.repos[name] = repo
        self.reply(200, {"url": f"{self.server.url}/datasets/{name}"})

    def lfs_batch(self, asked: dict) -> None:
        objects = []
        for o in asked["objects"]:
            known = len(self.server.blobs.get(o["oid"], b"")) == o["size"]
            href = f"{self.server.url}/lfs/{o['oid']}"
            objects.append({**o, **({} if known else {"actions": {"upload": {"href": href}}})})
        self.reply(200, {"transfer": "basic", "objects": objects})

    def api(self, name: str, repo: Repo, what: str, rest: str, query: dict, body: bytes) -> None:
        if what == "refs":
            kinds = {"branches": repo.branches, "tags": repo.tags}
            rows = {
                k: [{"name": n, "ref": f"refs/{n}", "targetCommit": c} for n, c in refs.items()]
                for k, refs in kinds.items()
            }
            self.reply(200, {**rows, "converts": []})
        elif what == "branch" and self.command == "DELETE":
            repo.branches.pop(rest)
            self.reply(200, {})
        elif what == "branch":
            if rest in repo.branches:
                self.refuse(409, "Reference already exists")
                return
            repo.branches[rest] = repo.branches["main"]
            self.reply(200, {})
        elif what == "tag":
            tag = json.loads(body)["tag"]
            if tag in repo.tags:
                self.refuse(409, "Tag already exists")
                return
            repo.tags[tag] = repo.find(rest) or ""
            self.reply(200, {})
        elif what == "commit":
            self.commit(name, repo, rest, body)
        elif (commit := repo.find(rest.split("/")[0])) is None:
            self.reply(404, {"error": "Invalid rev id"}, {"X-Error-Code": "RevisionNotFound"})
        else:
            self.look(name, repo, what, commit, rest, query, body)

    def look(
        self, name: str, repo: Repo, what: str, commit: str, rest: str, query: dict, body: bytes
    ) -> None:
        tree = repo.commits[commit]
        if what == "revision":
            siblings = [{"rfilename": p} for p in tree]
            self.reply(
                200, {"id": name, "sha": commit, "private": repo.private, "siblings": siblings, "tags": []}
            )
        elif what == "tree":
            prefix = rest.partition("/")[2]
            self.reply(200, entries(tree, prefix, "true" in str(query.get("recursive")).lower()))
        elif what == "paths-info":
            form = parse_qs(body.decode())
            paths = form["paths"] if form else json.loads(body)["paths"]
            found = [e for p in paths for e in entries(tree, "", True) if e["path"] == p.strip("/")]
            self.reply(200, found)
        elif what == "preupload":
            files = json.loads(body)["files"]
            self.reply(200, {"files": [self.mode(f, tree) for f in files]})
        else:
            self.refuse(404, f"the loopback Hub does not know {what}")

    @staticmethod
    def mode(asked: dict, tree: dict) -> dict:
        path = asked["path"]
        mode = "lfs" if path.endswith((".parquet", ".safetensors")) else "regular"
        oid = tree[path][2] or tree[path][0] if path in tree else None
        return {"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": oid}

    def commit(self, name: str, repo: Repo, branch: str, body: bytes) -> None:
        if branch == "main":
            self.server.before_commit_to_main()
        lines = [json.loads(line) for line in body.decode().splitlines()]
        header, parts = lines[0]["value"], lines[1:]
        if header.get("parentCommit") not in (None, repo.branches[branch]):
            self.refuse(412, "A commit has happened since. Please refresh and try again.")
            return
        tree = dict(repo.commits[repo.branches[branch]])
        for part in parts:
            value = part["value"]
            if part["key"] == "lfsFile":
                blob = self.server.blobs[value["oid"]]
                pointer = hashlib.sha1(value["oid"].encode(), usedforsecurity=False).hexdigest()
                tree[value["path"]] = (pointer, len(blob), value["oid"])
            elif part["key"] == "file":
                data = base64.b64decode(value["content"])
                git = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
                self.server.blobs[git] = data
                tree[value["path"]] = (git, len(data), None)
            elif part["key"] == "deletedFile":
                del tree[value["path"]]
        if branch == "main":
            self.server.seen_on_main.append(frozenset(tree))
        oid = repo.commit(branch, tree)
        self.reply(
            200, {"success": True, "commitOid": oid, "commitUrl": f"{self.server.url}/{name}/commit/{oid}"}
        )

    def resolve(self, name: str, revision: str, path: str) -> None:
        repo = self.server.repos.get(name)
        commit = repo.find(revision) if repo else None
        if repo is None or commit is None or path not in repo.commits[commit]:
            self.reply(404, {"error": "Entry not found"}, {"X-Error-Code": "EntryNotFound"})
            return
        git, size, lfs = repo.commits[commit][path]
        data = self.server.blobs[lfs or git]
        headers = {"X-Repo-Commit": commit, "ETag": f'"{lfs or git}"', "X-Linked-Size": str(size)}
        if found := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or ""):
            end = int(found[2] or size - 1)
            part = data[int(found[1]) : end + 1]
            self.reply(206, part, {**headers, "Content-Range": f"bytes {found[1]}-{end}/{size}"})
        elif self.command == "HEAD":
            self.send_response(200)
            for key, text in {**headers, "Content-Length": str(size)}.items():
                self.send_header(key, text)
            self.end_headers()
        else:
            self.reply(200, data, headers)


def entries(tree: dict, prefix: str, recursive: bool) -> list[dict]:
    inside = {p: e for p, e in tree.items() if not prefix or p.startswith(prefix + "/")}
    start = len(prefix) + 1 if prefix else 0
    folders = {p[: p.index("/", start)] for p in inside if "/" in p[start:]}
    rows: list[dict] = [{"type": "directory", "path": f, "oid": "0" * 40, "size": 0} for f in sorted(folders)]
    for path, (git, size, lfs) in inside.items():
        if recursive or "/" not in path[start:]:
            row = {"type": "file", "path": path, "oid": git, "size": size}
            rows.append({**row, "lfs": {"oid": lfs, "size": size, "pointerSize": 130}} if lfs else row)
    return rows


@pytest.fixture
def hub(monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def row(number: int, text: str = "step") -> LabeledSolution:
    nobody = PolicyInfo("policy", "1", "scripted")
    return LabeledSolution(
        Problem(f"p{number}", f"What is {number}?", ("1",), source="made", licence="MIT"),
        Solution(f"p{number}-0", f"p{number}", (Step(text),), outcome=Outcome.RIGHT),
        (Estimate(), Estimate()), (StepLabel(1),), None, nobody, nobody, "t", 7, Allocation.FIXED_K, 5, 10,
        LabelerInfo("x", "1", "c"),
    )  # fmt: skip


def make(
    folder: Path, text: str = "step", note: dict | None = CHECKED, shards: int = 4, licence: str = "MIT"
) -> Path:
    manifest = Manifest({"text": text}, "1", Allocation.FIXED_K, LabelerInfo("x", "1", "c"))
    with ShardStore.create_or_resume(folder, manifest) as store:
        for i in range(shards):
            solution = row(i, text)
            solution = replace(solution, problem=replace(solution.problem, licence=licence))
            rollout = Rollout(f"p{i}", 0, 0, 1, (1,), "so 1", FinishReason.STOP, None, Outcome.RIGHT, "1")
            store.write_shard(i, [solution], [(f"p{i}-0", rollout)], {"seconds": 1.0})
        store.seal(contamination=note)
    (folder / "README.md").write_text("---\nlicense: mit\n---\n# Steps\n")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make(tmp_path / "d")


def send(hub: Hub, folder: Path, **kwargs):
    return publish(folder, "me/steps", token=kwargs.pop("token", TOKEN), endpoint=hub.url, **kwargs)


def main_tree(hub: Hub) -> dict:
    repo = hub.repos["me/steps"]
    return repo.commits[repo.branches["main"]]


def test_a_dataset_reaches_main_and_a_tag_in_one_commit(hub, folder):
    plan = plan_publication(folder, "me/steps")
    done = send(hub, folder)
    repo = hub.repos["me/steps"]
    assert set(main_tree(hub)) == {f.path for f in plan.files}
    assert len(hub.seen_on_main) == 1
    assert repo.tags == {plan.tag: done.commit} == {plan.tag: repo.branches["main"]}
    assert list(repo.branches) == ["main"]
    assert repo.private
    assert done.uploaded == len(plan.files)
    assert len(hub.uploads) == len(set(hub.uploads)) == 8  # no parquet file was sent twice


def test_what_depends_on_time_or_machine_is_not_published(hub, folder):
    send(hub, folder)
    assert not any(p.startswith((".", "run_metrics")) for p in main_tree(hub))
    assert {p.split("/")[0] for p in main_tree(hub)} == {
        "README.md", "manifest.json", "receipts", "rollouts", "solutions",
    }  # fmt: skip


def test_an_upload_that_broke_left_main_as_it_was_and_goes_on_when_called_again(hub, folder, tmp_path):
    # huggingface/datasets#5045: an interrupted push left old and new shards mixed
    first = send(hub, make(tmp_path / "old", "old"))
    before = dict(main_tree(hub))
    hub.break_after_uploads = len(hub.uploads) + 2
    with pytest.raises(PublishError, match=r"(?s)again"):
        send(hub, folder)
    assert main_tree(hub) == before
    assert set(hub.repos["me/steps"].tags.values()) == {first.commit}
    hub.break_after_uploads = None
    sent = len(hub.uploads)
    send(hub, folder)
    # four solutions shards are new, two of them had arrived; the rollouts are the same blobs as before
    assert len(hub.uploads) == sent + 2
    assert len(hub.repos["me/steps"].tags) == 2
    assert [len(tree) for tree in hub.seen_on_main] == [len(before)] * 2


def test_calling_again_after_all_is_there_changes_nothing(hub, folder):
    first = send(hub, folder)
    again = send(hub, folder)
    assert (again.commit, again.uploaded) == (first.commit, 0)
    assert len(hub.seen_on_main) == 1


def test_files_of_an_older_version_do_not_stay_on_main(hub, tmp_path):
    send(hub, make(tmp_path / "old", shards=3))
    send(hub, make(tmp_path / "new", "other", shards=2))
    assert len([p for p in main_tree(hub) if p.startswith("solutions/")]) == 2


def test_a_file_that_arrived_damaged_keeps_main_as_it_was(hub, folder):
    hub.corrupt_uploads = True
    with pytest.raises(PublishError, match="are not those here"):
        send(hub, folder)
    assert main_tree(hub) == {}
    assert hub.repos["me/steps"].tags == {}


def test_someone_elses_commit_in_between_is_not_overwritten(hub, folder):
    def meddle() -> None:
        hub.before_commit_to_main = lambda: None
        hub.repos["me/steps"].commit("main", {"theirs.txt": ("0" * 40, 1, None)})

    hub.before_commit_to_main = meddle
    with pytest.raises(PublishError, match="someone else committed to main"):
        send(hub, folder)
    assert set(main_tree(hub)) == {"theirs.txt"}
    send(hub, folder)
    assert "manifest.json" in main_tree(hub)


def test_a_wrong_token_is_said_and_never_shown(hub, folder):
    wrong = "hf_" + "wrongwrongwrongwrong99"
    with pytest.raises(PublishError, match="token is missing or wrong") as fault:
        send(hub, folder, token=wrong)
    assert wrong not in str(fault.value)
    assert fault.value.__cause__ is None


@pytest.mark.parametrize(
    ("part", "status", "message", "remedy"),
    [
        ("lfs/objects/batch", 403, "Private repository storage limit reached", "storage is full"),
        ("/commit/", 413, "Payload too large", "storage is full"),
        ("/api/repos/create", 403, f"No rights; you sent {TOKEN}", "may not write"),
    ],
)
def test_what_the_hub_refuses_is_said_with_what_to_do(hub, folder, part, status, message, remedy):
    hub.answers[part] = (status, message)
    with pytest.raises(PublishError, match=remedy) as fault:
        send(hub, folder)
    assert str(status) in str(fault.value)
    assert TOKEN not in str(fault.value)


def test_a_hub_that_is_not_there_is_said(folder):
    with pytest.raises(PublishError, match="the upload broke"):
        publish(folder, "me/steps", token=TOKEN, endpoint="http://127.0.0.1:9")


REFUSED = {
    "contamination": {"note": {**CHECKED, "exact": {"gsm8k_test": 2}}},
    "licence": {"licence": ""},
}


@pytest.mark.parametrize("check", REFUSED)
def test_a_check_forbids_publishing_until_it_is_allowed_by_name(hub, tmp_path, check):
    folder = make(tmp_path / "d", **REFUSED[check])
    with pytest.raises(PublishError, match=f"{check}: .*"):
        send(hub, folder)
    assert hub.repos == {}
    send(hub, folder, allow=[check])
    assert "manifest.json" in main_tree(hub)


def test_a_dataset_that_nobody_checked_against_benchmarks_is_refused(hub, tmp_path):
    with pytest.raises(PublishError, match="not checked against any benchmark"):
        send(hub, make(tmp_path / "d", note=None))


def test_a_damaged_dataset_is_refused(hub, folder):
    shard = folder / "solutions" / "shard-00001.parquet"
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")
    with pytest.raises(PublishError, match=r"verification: .*shard-00001"):
        send(hub, folder)


def test_a_dataset_without_a_card_is_refused_and_an_unknown_check_is_named(hub, folder):
    (folder / "README.md").unlink()
    with pytest.raises(PublishError, match=r"no README\.md"):
        send(hub, folder)
    with pytest.raises(PublishError, match="'cards'"):
        send(hub, folder, allow=["cards"])


def test_a_dry_run_lists_files_and_card_and_sends_nothing(hub, folder):
    plan = plan_publication(folder, "me/steps")
    assert plan.refusals == {}
    assert "solutions/shard-00000.parquet" in {f.path for f in plan.files}
    assert plan.card.startswith("---\n")
    assert hub.repos == {}


def model(folder: Path, licence: str = "mit") -> Path:
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"\0" * 3000)
    (folder / "config.json").write_text("{}")
    (folder / "README.md").write_text(
        f"---\nlicense: {licence}\n---\n# A model\n" if licence else "# A model\n"
    )
    return folder


def test_a_model_is_published_the_same_way(hub, tmp_path):
    done = send(hub, model(tmp_path / "m"), kind="model", private=False)
    assert set(main_tree(hub)) == {"README.md", "config.json", "model.safetensors"}
    assert hub.repos["me/steps"].tags == {done.tag: done.commit}
    assert not hub.repos["me/steps"].private


def test_a_model_with_pickled_weights_or_no_licence_is_refused(hub, tmp_path):
    folder = model(tmp_path / "m", licence="")
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(PublishError, match=r"(?s)weights: pytorch_model\.bin.*licence:"):
        send(hub, folder, kind="model")


@pytest.mark.slow
def test_with_xet_a_write_token_is_asked_for_and_its_refusal_is_said(hub, folder, monkeypatch):
    # As far as the token request: the chunks that xet sends after it go to a storage server that is not played here.
    pytest.importorskip("hf_xet")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", False)
    hub.answers["xet-write-token"] = (403, "no rights to write")
    with pytest.raises(PublishError, match=r"the upload broke .*xet-write-token") as fault:
        send(hub, folder)
    assert TOKEN not in str(fault.value)
    assert main_tree(hub) == {}


@pytest.mark.slow
def test_datasets_reads_back_from_the_hub_what_was_published_through_hf_endpoint(hub, folder, tmp_path):
    write_card(folder, repo="me/steps")
    program = """
import sys
from stepward.prm.publishing.hub import publish
import datasets
done = publish(sys.argv[1], "me/steps")
for revision in ("main", done.tag):
    rows = datasets.load_dataset("me/steps", "solutions", split="train", revision=revision)
    assert rows["problem_id"] == ["p0", "p1", "p2", "p3"], rows["problem_id"]
    assert rows[0]["steps"][0]["label"] == 1
    rollouts = datasets.load_dataset("me/steps", "rollouts", split="train", revision=revision)
    assert rollouts["text"] == ["so 1"] * 4
print("read back")
"""
    environment = {
        **os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": TOKEN,
        "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_TELEMETRY": "1",
    }  # fmt: skip
    ran = subprocess.run(
        [sys.executable, "-c", program, str(folder)], env=environment, capture_output=True, text=True
    )
    assert ran.stdout.strip().endswith("read back"), ran.stderr[-3000:]
    assert TOKEN not in ran.stdout + ran.stderr
    for file in (tmp_path / "home").rglob("*"):
        assert not file.is_file() or TOKEN.encode() not in file.read_bytes()
