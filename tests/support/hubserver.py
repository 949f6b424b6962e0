"""A Hugging Face hub on loopback: what `huggingface_hub` and `datasets` ask of it, over plain HTTP.

Repositories are folders, a commit is the hash of what a folder held when it was pushed. `cut`
closes the connection in the middle of a file, as a network that breaks. Takes commits, whole and
inline, from who knows `token`. Not a test.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.s3proxy import serving

Files = dict[str, bytes]


class Hub:
    """The content of the server, and the requests that it got."""

    def __init__(self) -> None:
        self.commits: dict[tuple[str, str], dict[str, Files]] = {}  # (kind, id) -> commit -> files
        self.branches: dict[tuple[str, str], dict[str, str]] = {}
        self.requests: list[str] = []
        self.authorizations: set[str] = set()  # that came with them
        self.ranges: list[str] = []  # names of files that were asked for from the middle on
        self.cut: Counter[str] = Counter()  # file name -> times that it breaks off half-way
        self.url = ""
        self.token = ""  # of who may write; "": nobody
        self.role = "write"  # of the token
        self.private: dict[str, bool] = {}  # of the repositories that were made here

    def push(self, kind: str, repo_id: str, content: Path | Files, branch: str = "main") -> str:
        """Makes the content of a folder the newest commit of a branch."""
        files = content if isinstance(content, dict) else _read(content)
        told = json.dumps({name: _sha(data) for name, data in sorted(files.items())})
        commit = hashlib.sha1(f"{repo_id} {told}".encode()).hexdigest()
        self.commits.setdefault((kind, repo_id), {})[commit] = files
        self.branches.setdefault((kind, repo_id), {})[branch] = commit
        return commit

    def resolve(self, kind: str, repo_id: str, revision: str) -> str | None:
        known = self.commits.get((kind, repo_id), {})
        commit = self.branches.get((kind, repo_id), {}).get(revision, revision)
        return commit if commit in known else None

    def downloads(self) -> list[str]:
        """Names of the files whose content was sent, whole or in part."""
        return [line.rpartition("/")[2] for line in self.requests if line.startswith("GET file")]


def _read(folder: Path) -> Files:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _is_large(name: str) -> bool:
    return name.endswith((".safetensors", ".parquet", ".bin"))


@contextmanager
def serve(hub: Hub) -> Iterator[Hub]:
    """The hub answers at `hub.url` while inside."""
    with serving(type("Handler", (_Handler,), {"hub": hub})) as host:
        hub.url = f"http://{host}"
        yield hub


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None: ...

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        if not {"repos", "validate-yaml", "preupload", "commit"} & set(parts):
            self.body = parse_qs(content)
            return self._answer(body=True)
        self.hub.requests.append(f"{self.command} {self.path}")
        if not self.hub.token or self.headers.get("Authorization") != f"Bearer {self.hub.token}":
            return self._error(401, "Unauthorized")
        return self._upload(parts[1:], content)

    def _upload(self, parts: list[str], content: str) -> None:
        """/api/repos/create, /api/validate-yaml, /api/<kind>/<id>/preupload|commit/<rev>."""
        if parts == ["repos", "create"]:
            asked = json.loads(content)
            repo_id = "/".join(filter(None, (asked.get("organization"), asked["name"])))
            self.hub.private[repo_id] = asked.get("visibility") == "private"
            below = "datasets/" if asked.get("type") == "dataset" else ""
            return self._json({"url": f"{self.hub.url}/{below}{repo_id}", "name": repo_id})
        if parts == ["validate-yaml"]:
            return self._json({"warnings": [], "errors": []})
        repo_id, verb = "/".join(parts[1:-2]), parts[-2]
        if verb == "preupload":
            files = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False, "oid": None}
                for file in json.loads(content)["files"]
            ]
            return self._json({"files": files})
        lines = [json.loads(line) for line in content.splitlines()]
        files = {
            line["value"]["path"]: base64.b64decode(line["value"]["content"])
            for line in lines
            if line["key"] == "file"
        }
        kind = "dataset" if parts[0] == "datasets" else "model"
        commit = self.hub.push(kind, repo_id, files, parts[-1])
        url = f"{self.hub.url}/{repo_id}/commit/{commit}"
        return self._json({"commitUrl": url, "commitOid": commit, "success": True})

    def _answer(self, body: bool) -> None:
        parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        self.hub.requests.append(f"{self.command} {self.path}")
        if told := self.headers.get("Authorization"):
            self.hub.authorizations.add(told)
        if parts == ["api", "whoami-v2"]:
            if self.headers.get("Authorization") != f"Bearer {self.hub.token}":
                return self._error(401, "Unauthorized")
            return self._json({"name": "me", "auth": {"accessToken": {"role": self.hub.role}}})
        if parts[0] == "api":
            self._api(parts[1:])
        elif "resolve" in parts:
            self._file(parts, body)
        else:
            self._error(404, "EntryNotFound")

    def _api(self, parts: list[str]) -> None:
        """/api/models/<id>[/revision/<rev>], .../tree/<rev>[/<path>], .../paths-info/<rev>."""
        kind = {"models": "model", "datasets": "dataset"}.get(parts[0])
        verbs = [i for i, part in enumerate(parts) if part in ("revision", "tree", "paths-info")]
        at = verbs[0] if verbs else len(parts)
        repo_id, revision = "/".join(parts[1:at]), parts[at + 1] if verbs else "main"
        if kind is None or (kind, repo_id) not in self.hub.commits:
            return self._error(404, "RepoNotFound")
        commit = self.hub.resolve(kind, repo_id, revision)
        if commit is None:
            return self._error(404, "RevisionNotFound")
        files = self.hub.commits[kind, repo_id][commit]
        verb = parts[at] if verbs else "revision"
        if verb == "revision":
            return self._json(
                {"id": repo_id, "sha": commit, "siblings": [_sibling(*f) for f in files.items()]}
            )
        wanted = self.body.get("paths", []) if verb == "paths-info" else ["/".join(parts[at + 2 :])]
        found = _entries(files, wanted, children=verb == "tree", deep="recursive=True" in self.path)
        if verb == "tree" and wanted != [""] and not found:
            return self._error(404, "EntryNotFound")
        return self._json(found)

    def _file(self, parts: list[str], body: bool) -> None:
        at = parts.index("resolve")
        kind = "dataset" if parts[0] == "datasets" else "model"
        repo_id = "/".join(parts[1 if kind == "dataset" else 0 : at])
        name = "/".join(parts[at + 2 :])
        if (kind, repo_id) not in self.hub.commits:
            return self._error(404, "RepoNotFound")
        commit = self.hub.resolve(kind, repo_id, parts[at + 1])
        if commit is None:
            return self._error(404, "RevisionNotFound")
        data = self.hub.commits[kind, repo_id][commit].get(name)
        if data is None:
            return self._error(404, "EntryNotFound", commit)
        if body:
            self.hub.requests.append(f"GET file /{name}")
        return self._send(data, name, commit, body)

    def _send(self, data: bytes, name: str, commit: str, body: bool) -> None:
        span = self.headers.get("Range", "").removeprefix("bytes=").partition("-")
        start = int(span[0]) if span[0] else 0
        self.hub.ranges += [name] if start else []
        stop = int(span[2]) + 1 if span[2] else len(data)
        self.send_response(206 if self.headers.get("Range") else 200)
        if self.headers.get("Range"):
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(data)}")
        self.send_header("Content-Length", str(stop - start))
        self.send_header("ETag", f'"{_etag(name, data)}"')
        self.send_header("X-Repo-Commit", commit)
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()
        if not body:
            return
        if self.hub.cut[name] > 0:
            self.hub.cut[name] -= 1
            self.wfile.write(data[start : start + (stop - start) // 2])
            self.wfile.flush()
            self.close_connection = True
            self.connection.shutdown(2)
            return
        self.wfile.write(data[start:stop])

    def _json(self, content: object) -> None:
        data = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _error(self, status: int, code: str, commit: str | None = None) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", code)
        if commit:
            self.send_header("X-Repo-Commit", commit)
        self.send_header("Content-Length", "0")
        self.end_headers()


def _etag(name: str, data: bytes) -> str:
    blob = b"blob %d\0" % len(data) + data
    return _sha(data) if _is_large(name) else hashlib.sha1(blob).hexdigest()


def _sibling(name: str, data: bytes) -> dict[str, object]:
    told = {"rfilename": name, "size": len(data), "blobId": _etag(name, data)}
    return told | _lfs("sha256", name, data)


def _entry(name: str, data: bytes) -> dict[str, object]:
    told = {"type": "file", "path": name, "size": len(data), "oid": _etag(name, data)}
    return told | _lfs("oid", name, data)


def _lfs(key: str, name: str, data: bytes) -> dict[str, object]:
    told = {key: _sha(data), "size": len(data), "pointerSize": 100}
    return {"lfs": told} if _is_large(name) else {}


def _folder(path: str) -> dict[str, object]:
    return {"type": "directory", "path": path, "oid": "0" * 40, "size": 0}


def _entries(files: Files, wanted: list[str], *, children: bool, deep: bool) -> list[object]:
    """Files and folders, as the tree API tells them."""
    found: dict[str, object] = {}
    for path in wanted:
        prefix = f"{path}/" if path else ""
        for name, data in files.items():
            below = name.removeprefix(prefix)
            if name == path and not children:
                found[name] = _entry(name, data)
            elif name.startswith(prefix) and not children:
                found[path] = _folder(path)
            elif name.startswith(prefix):
                if "/" in below:
                    folder = prefix + below.partition("/")[0]
                    found[folder] = _folder(folder)
                if deep or "/" not in below:
                    found[name] = _entry(name, data)
    return list(found.values())
