"""Asking an ASGI app one question without a server."""

import asyncio
from collections.abc import Sequence
from typing import Any

__all__ = ["Answer", "ask", "echo"]


class Answer:
    """status, headers and body of what an app answered; status 0 where it answered nothing."""

    def __init__(self, sent: list[dict[str, Any]]) -> None:
        self.sent = sent
        starts = [m for m in sent if m["type"] == "http.response.start"]
        self.status = starts[0]["status"] if starts else 0
        self.headers = dict(starts[0]["headers"]) if starts else {}
        self.body = b"".join(m.get("body", b"") for m in sent)


def ask(
    app: Any,
    path: str = "/",
    *,
    certificate: bytes | None = None,
    headers: Sequence[tuple[bytes, bytes]] = (),
    chunks: Sequence[bytes] = (b"",),
    kind: str = "http",
    client: tuple[str, int] | None = ("127.0.0.1", 50000),
) -> Answer:
    sent: list[dict[str, Any]] = []
    left = list(chunks)

    async def receive() -> dict[str, Any]:
        if left:
            return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": kind,
        "path": path,
        "headers": list(headers),
        "client": client,
        "server": ("127.0.0.1", 8472),
        "state": {"splitlearn.certificate": certificate},
    }
    asyncio.run(app(scope, receive, send))
    return Answer(sent)


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """An app that answers with what it was asked."""
    message = await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": scope["path"].encode() + message["body"]})
