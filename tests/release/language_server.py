"""A client of pyright's language server, as an editor is one: it opens a file and asks for completions."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class LanguageServer:
    """Talks to a server over its standard input and output (Language Server Protocol 3.17)."""

    def __init__(self, process: subprocess.Popen[bytes], python: Path) -> None:
        self.process, self.python, self.last_id = process, python, 0

    def send(self, **message: Any) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self.process.stdin.flush()

    def read(self) -> dict[str, Any]:
        length = 0
        while line := self.process.stdout.readline().strip():
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        assert length, "the language server has ended"
        return json.loads(self.process.stdout.read(length))

    def request(self, method: str, **params: Any) -> Any:
        """Return the answer; what the server asks meanwhile (its settings, say) is answered too."""
        self.last_id += 1
        self.send(id=self.last_id, method=method, params=params)
        while True:
            message = self.read()
            if "method" not in message and message.get("id") == self.last_id:
                assert "error" not in message, message
                return message["result"]
            if "method" in message and "id" in message:
                self.send(id=message["id"], result=self.settings(message))

    def settings(self, message: dict[str, Any]) -> Any:
        if message["method"] != "workspace/configuration":
            return None
        return [{"pythonPath": str(self.python)} for _ in message["params"]["items"]]

    def completions(self, file: Path, text: str) -> set[str]:
        """Return what an editor offers at the end of `text`."""
        file.write_text(text)
        document = {"uri": file.as_uri(), "languageId": "python", "version": 1, "text": text}
        self.send(method="textDocument/didOpen", params={"textDocument": document})
        lines = text.split("\n")
        answer = self.request(
            "textDocument/completion",
            textDocument={"uri": file.as_uri()},
            position={"line": len(lines) - 1, "character": len(lines[-1])},
        )
        items = answer["items"] if isinstance(answer, dict) else answer
        return {item["label"] for item in items}


@contextmanager
def language_server(command: Path, python: Path, folder: Path) -> Iterator[LanguageServer]:
    """Start pyright's language server for files in `folder`; imports are those of the interpreter `python`."""
    process = subprocess.Popen([command, "--stdio"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder)
    try:
        server = LanguageServer(process, python)
        workspace = [{"uri": folder.as_uri(), "name": "user"}]
        capabilities = {"workspace": {"configuration": True, "workspaceFolders": True}}
        server.request(
            "initialize",
            processId=None,
            rootUri=folder.as_uri(),
            workspaceFolders=workspace,
            capabilities=capabilities,
        )
        server.send(method="initialized", params={})
        yield server
    finally:
        process.kill()
        process.wait()
