"""A loopback server that speaks the Hub's protocol to the real huggingface_hub client."""

import base64
import hashlib
import json
import re
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "hf_" + "secretsecretsecret1234"


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
            self.server.asked["create"] += 1
            self.create(json.loads(body))
        elif path == "/api/validate-yaml":
            self.reply(200, {"errors": [], "warnings": []})
        elif match := re.fullmatch(r"/(?:datasets/)?([^/]+/[^/]+)\.git/info/lfs/objects/batch", path):
            self.server.asked["lfs batch"] += 1
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
