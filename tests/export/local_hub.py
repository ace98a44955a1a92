"""A Hub on this machine: it answers what huggingface_hub's client asks to upload and download a repository."""

from __future__ import annotations

import base64
import hashlib
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "a" * 40


class LocalHub(ThreadingHTTPServer):
    """Keeps the files of one repository; `posted` has the bodies of requests by their paths."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.address = f"http://127.0.0.1:{self.server_port}"
        self.files: dict[str, bytes] = {}
        self.posted: dict[str, bytes] = {}
        self.tokens: set[str | None] = set()


class Answer(BaseHTTPRequestHandler):
    """Answers one request."""

    server: LocalHub

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.posted[self.path] = body
        self.server.tokens.add(self.headers["Authorization"])
        address = f"{self.server.address}/me/cartpole"
        if self.path == "/api/repos/create":
            self.tell({"url": address})
        elif self.path.endswith("/preupload/main"):
            asked = [each["path"] for each in json.loads(body)["files"]]
            self.tell({"files": [{"path": path, "uploadMode": "regular", "shouldIgnore": False} for path in asked]})
        elif self.path.endswith("/commit/main"):
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.server.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            self.tell({"commitUrl": f"{address}/commit/{COMMIT}", "commitOid": COMMIT})
        else:
            self.tell({})

    def do_GET(self) -> None:
        path, files = unquote(urlsplit(self.path).path), self.server.files
        if path.startswith(place := f"/me/cartpole/resolve/{COMMIT}/"):
            data = files[path.removeprefix(place)]
            self.send(data, {"ETag": hashlib.sha1(data).hexdigest(), "X-Repo-Commit": COMMIT})
        elif path.endswith(f"/tree/{COMMIT}"):
            self.tell([{"type": "file", "path": name, "size": len(files[name]), "oid": name} for name in files])
        elif path.endswith("/revision/main"):
            self.tell({"id": "me/cartpole", "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]})
        else:
            self.tell({})

    do_HEAD = do_GET

    def tell(self, value: Any) -> None:
        """Send JSON."""
        self.send(json.dumps(value).encode(), {"Content-Type": "application/json"})

    def send(self, data: bytes, headers: dict[str, str]) -> None:
        """Send bytes; for HEAD their number only."""
        self.send_response(200)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        """Print nothing."""
