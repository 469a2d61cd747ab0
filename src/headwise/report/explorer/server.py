"""Serves the page from running models, to this machine alone."""

import json
import re
import secrets
import sys
import threading
import traceback
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import parse_qs, urlsplit

from pydantic import ValidationError

from headwise.messages import cut
from headwise.report.explorer.page import page_html
from headwise.report.explorer.payload import Payload, Question

HOST = "127.0.0.1"
PATH = "/api/explore"
_NAMES = {"127.0.0.1", "localhost", "::1"}  # of this machine, as a browser asks for it
_LARGEST = 1_000_000  # bytes of a question
_SECONDS = 60  # that a client may take to send it
_MOST_AT_ONCE = 16  # requests that are read

Answer = Callable[[Question], Payload]


class ExplorerServer(ThreadingHTTPServer):
    """Serves the page, and answers its questions one after another.

    Another user of this machine cannot ask: a request must have the token of the address, which is
    random. Nor can a web page of somebody else's that is open in the same browser: requests must be
    for this machine by name (so that a foreign name that leads here is refused), they must not come
    from the page of another server, and their body must say that it is JSON.
    """

    daemon_threads = True

    def __init__(self, payload: Payload, answer: Answer, port: int) -> None:
        self.page = page_html(payload).encode("utf-8")
        self.answer = answer
        self.token = secrets.token_urlsafe(16)
        self.lock = threading.Lock()  # an ablation changes the model
        self.places = threading.BoundedSemaphore(_MOST_AT_ONCE)
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            raise ValueError(
                f"port is {port}, which cannot be opened ({error}); is another `headwise explore` "
                f"running? Choose another port, or 0 for any that is free"
            ) from error

    @property
    def address(self) -> str:
        """The address of the page, with the token that lets its reader in."""
        return f"http://{HOST}:{self.server_address[1]}/?token={self.token}"

    def run(self) -> None:
        """Serves until Ctrl-C."""
        with suppress(KeyboardInterrupt):
            self.serve_forever()

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        with self.places:
            super().process_request_thread(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing where the client has gone away, as a page does that is closed."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


def serve(
    payload: Payload, answer: Answer, port: int, say: Callable[[str], None], *, open_page: bool
) -> None:
    """Serves a page until Ctrl-C; `say` is given its address."""
    with ExplorerServer(payload, answer, port) as server, TemporaryDirectory() as folder:
        say(server.address)
        if open_page:
            # Everybody on the machine can read a browser's arguments: the token is in a file.
            page = Path(folder) / "explore.html"
            redirection = f'<meta http-equiv="refresh" content="0; url={server.address}">'
            page.write_text(redirection, encoding="utf-8")
            webbrowser.open(page.as_uri())
        server.run()


class _Refusal(Exception):
    """A request that is not answered, with what its sender is told."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    server: ExplorerServer
    timeout = _SECONDS
    server_version, sys_version = "headwise", ""

    def do_GET(self) -> None:
        self._reply("/", "text/html; charset=utf-8", lambda: self.server.page)

    def do_POST(self) -> None:
        self._reply(PATH, "application/json", lambda: self._answer(self._body()))

    def _reply(self, path: str, kind: str, content: Callable[[], bytes]) -> None:
        try:
            self._check_who_asks()
            self._check_address(path)
            found = content()
        except _Refusal as refusal:
            self.close_connection = True  # the body may not have been read
            said = json.dumps({"error": str(refusal)}).encode("utf-8")
            self._send(refusal.status, "application/json", said)
        else:
            self._send(HTTPStatus.OK, kind, found)

    def _check_who_asks(self) -> None:
        """Refuses what is not asked by the page itself, or by the reader."""
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        try:
            name = urlsplit(f"//{host}").hostname
        except ValueError:
            name = None
        if name not in _NAMES:
            raise _Refusal(HTTPStatus.FORBIDDEN, f"the host is {host!r}, expected {HOST}")
        if origin is not None and origin != f"http://{host}":
            text = f"the origin is {origin!r}, expected http://{host}"
            raise _Refusal(HTTPStatus.FORBIDDEN, text)

    def _check_address(self, path: str) -> None:
        """Refuses what is not asked at a path with the token of the address."""
        try:
            asked = urlsplit(self.path)
        except ValueError:
            text = f"{cut(self.path)} is no address"
            raise _Refusal(HTTPStatus.BAD_REQUEST, text) from None
        given = parse_qs(asked.query).get("token", [""])[0]
        if asked.path != path:
            text = f"there is no {cut(asked.path)}, expected {path}"
            raise _Refusal(HTTPStatus.NOT_FOUND, text)
        if not secrets.compare_digest(given.encode(), self.server.token.encode()):
            text = "the token is missing or wrong: open the address that headwise has printed"
            raise _Refusal(HTTPStatus.FORBIDDEN, text)

    def _body(self) -> bytes:
        """Reads a question that is not too large."""
        if self.headers.get_content_type() != "application/json":
            kind = self.headers.get("Content-Type")
            text = f"the type of the body is {kind}, expected application/json"
            raise _Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, text)
        length = self.headers.get("Content-Length", "")
        if not re.fullmatch("[0-9]{1,7}", length) or int(length) > _LARGEST:
            text = f"the length of the body is {cut(length)}, expected 0 to {_LARGEST:,} bytes"
            raise _Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text)
        return self.rfile.read(int(length))

    def _answer(self, body: bytes) -> bytes:
        try:
            question = Question.model_validate_json(body)
            with self.server.lock:
                return self.server.answer(question).model_dump_json().encode("utf-8")
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "body"
            raise _Refusal(HTTPStatus.BAD_REQUEST, f"{where}: {first['msg']}") from None
        except (ValueError, OSError) as error:
            raise _Refusal(HTTPStatus.BAD_REQUEST, str(error)) from None
        except Exception:
            traceback.print_exc()
            text = "the model has failed; see where headwise was started"
            raise _Refusal(HTTPStatus.INTERNAL_SERVER_ERROR, text) from None

    def _send(self, status: HTTPStatus, kind: str, content: bytes) -> None:
        self.send_response(status)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(content))),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            ("X-Frame-Options", "DENY"),
            ("Referrer-Policy", "no-referrer"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing: the reader sees what happens on the page."""
