"""The server of the page answers its own page, and nobody else."""

import http.client
import json
import threading
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from explorer_payloads import payload

from headwise.report.explorer.inputs import Source
from headwise.report.explorer.payload import Payload
from headwise.report.explorer.recording import Explorer
from headwise.report.explorer.server import ExplorerServer


@pytest.fixture(scope="module")
def explorer(runs):
    return Explorer([runs("translation", "mae"), runs("translation", "tim")], Source(text="one"))


@pytest.fixture(scope="module")
def server(explorer) -> Iterator[ExplorerServer]:
    with ExplorerServer(explorer.record(served=True), explorer.answer, port=0) as made:
        thread = threading.Thread(target=made.run)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def ask(server, method="POST", path="/api/explore", body=None, **headers):
    """Sends a request; returns status, headers and body."""
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=30)
    content = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
    given = {"Content-Type": "application/json"} if content is not None else {}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    path = path if "?" in path else f"{path}?token={server.token}"
    connection.request(method, path, content, given)
    answer = connection.getresponse()
    return answer.status, answer.headers, answer.read()


def test_the_page_is_served_and_may_ask_its_server_alone(server):
    status, headers, page = ask(server, "GET", "/")
    assert status == 200 and headers["Content-Type"] == "text/html; charset=utf-8"
    assert headers["X-Frame-Options"] == "DENY" and headers["Cache-Control"] == "no-store"
    assert b"connect-src &#39;self&#39;" in page
    assert server.address == f"http://127.0.0.1:{server.server_address[1]}/?token={server.token}"
    assert ask(server, "GET", "/favicon.ico")[0] == 404
    assert ask(server, "POST", "/other", {})[0] == 404


def test_a_text_is_answered(server):
    status, headers, body = ask(server, body={"text": "two three", "target": "deux"})
    assert status == 200 and headers["Content-Type"] == "application/json"
    made = Payload.model_validate_json(body)
    assert made.served and made.text == "two three" and made.target == "deux"
    assert [run.stacks["decoder"].tokens[0] for run in made.runs] == ["<bos>", "<bos>"]
    again = Payload.model_validate_json(ask(server, body={})[2])
    assert again.text == "one" and again.target is None  # that of the page
    item = Payload.model_validate_json(ask(server, body={"item": 2})[2])
    assert item.item.number == 2


def test_an_ablation_changes_the_output_of_its_run_alone(server, explorer):
    before = explorer.record()
    removal = next(each for each in before.runs[0].ablations if each.head == 1)
    question = {
        "target": "un deux",
        "ablations": [
            {"run": 0, "path": removal.path, "name": removal.name, "options": removal.options}
        ],
    }
    after = Payload.model_validate_json(ask(server, body=question)[2])
    whole = Payload.model_validate_json(ask(server, body={**question, "ablations": []})[2])
    assert after.runs[0].output.predictions != whole.runs[0].output.predictions
    assert after.runs[1] == whole.runs[1]
    assert [each.label for each in after.runs[0].ablated] == ["without head 1"]


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8765", "localhost.evil.example", ""]
)
def test_foreign_hosts_are_refused(server, host):
    for method, path in (("GET", "/"), ("POST", "/api/explore")):
        status, _, body = ask(server, method, path, {}, Host=host)
        assert status == 403 and "host" in json.loads(body)["error"]


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:1"])
def test_foreign_origins_are_refused(server, origin):
    status, _, body = ask(server, body={}, Origin=origin)
    assert status == 403 and "origin" in json.loads(body)["error"]
    own = f"http://127.0.0.1:{server.server_address[1]}"
    assert ask(server, body={}, Origin=own)[0] == 200


@pytest.mark.parametrize(
    ("body", "headers", "status", "message"),
    [
        (b"{", {}, 400, "Invalid JSON"),
        ({"texts": "one"}, {}, 400, "texts: Extra inputs"),
        ({"item": -1}, {}, 400, "item: Input should be greater"),
        ({"text": " "}, {}, 400, "text is empty"),
        ({"ablations": [{"run": 5, "path": "", "name": "a"}]}, {}, 400, "run is 5, expected 0 to"),
        ({}, {"Content_Type": "text/plain"}, 415, "text/plain, expected application/json"),
        ({}, {"Content_Length": "1000001"}, 413, "is 1000001, expected 0 to 1,000,000 bytes"),
        ({}, {"Content_Length": "9" * 5_000}, 413, "99… (5,000 characters), expected 0 to"),
        ({}, {"Content_Length": "-1"}, 413, "length"),
    ],
)
def test_bad_questions_are_refused_in_words(server, body, headers, status, message):
    found, _, answer = ask(server, body=body, **headers)
    assert found == status
    assert message in json.loads(answer)["error"]


@pytest.mark.parametrize("query", ["?", "?token=", "?token=a", "?token=\u00e4", "?other=1&token"])
def test_who_has_no_token_reads_nothing(server, query):
    for method, path, body in (("GET", "/", None), ("POST", "/api/explore", {})):
        status, _, said = ask(server, method, path + quote(query, "?=&"), body)
        assert status == 403 and "token is missing or wrong" in json.loads(said)["error"]
        status, _, said = ask(server, method, f"{path}?token={server.token[:-1]}", body)
        assert status == 403


def test_a_failure_of_the_model_is_said_and_the_server_goes_on(capfd):
    def fail(question):
        raise RuntimeError("of the model")

    with ExplorerServer(payload(), fail, port=0) as server:
        threading.Thread(target=server.run).start()
        status, _, body = ask(server, body={})
        assert status == 500 and "failed" in json.loads(body)["error"]
        assert ask(server, "GET", "/")[0] == 200
        server.shutdown()
    assert "of the model" in capfd.readouterr().err


def test_questions_are_answered_one_after_another():
    inside, most = [], []

    def answer(question):
        inside.append(1)
        most.append(len(inside))
        threading.Event().wait(0.05)
        inside.pop()
        return payload()

    with ExplorerServer(payload(), answer, port=0) as server:
        threading.Thread(target=server.run).start()
        askers = [
            threading.Thread(target=ask, args=(server,), kwargs={"body": {}}) for _ in range(4)
        ]
        for asker in askers:
            asker.start()
        for asker in askers:
            asker.join()
        server.shutdown()
    assert most == [1, 1, 1, 1]
