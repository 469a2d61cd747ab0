"""Every page is under a policy, fetches nothing and runs its own script alone."""

import re
from collections.abc import Callable
from html import unescape
from html.parser import HTMLParser
from typing import Any, TypeVar

import pytest
import torch
from explorer_payloads import payload
from pydantic import BaseModel
from synthetic import comparison
from torch import nn

import headwise as hw
from headwise.analysis.decisions.record import AnalysisRecord
from headwise.analysis.results import Benchmark
from headwise.models.plan import SYSTEMS
from headwise.report.analysis_page.page import render_analysis
from headwise.report.comparison import render_benchmark, render_report
from headwise.report.explorer.page import page_html
from headwise.report.policy import source_of

ADDRESS = "https://evil.example/x"
# Ends what it may stand in (an attribute, a title, a style, a script, a comment), and begins anew.
ATTACK = (
    f"'\"--></title></style></script><script src={ADDRESS}></script><base href={ADDRESS}>"
    f"<img src={ADDRESS} onerror=alert(1)><form action={ADDRESS}>{{{{ 7 * 191 }}}}"
)
# What the code knows by name, so that with anything else there is no such page.
KNOWN = {
    *SYSTEMS,
    *("step", "loss", "eval_loss", "seconds", "epoch", "measured", "recorded"),
    "encoder_self",
    "decoder_self",
    "decoder_cross",
    "encoder",
    "decoder",
}
_Record = TypeVar("_Record", bound=BaseModel)


def attacked(record: _Record, kept: set[str] = frozenset()) -> _Record:
    """A record with an attack behind every string in it, of keys too."""

    def change(value: Any) -> Any:
        if isinstance(value, str) and value not in KNOWN | kept and not is_number(value):
            return value + ATTACK
        if isinstance(value, dict):
            return {change(key): change(inner) for key, inner in value.items()}
        return [change(inner) for inner in value] if isinstance(value, list | tuple) else value

    def fields(made: Any) -> Any:
        """The names of fields stay as they are."""
        if isinstance(made, BaseModel):
            own = {name: fields(getattr(made, name)) for name in type(made).model_fields}
            return made.model_copy(update=own)
        if isinstance(made, dict):
            return {change(key): fields(inner) for key, inner in made.items()}
        if isinstance(made, list):
            return [fields(inner) for inner in made]
        return change(made)

    return fields(record)


def is_number(text: str) -> bool:
    return re.fullmatch(r"[\d.]+", text) is not None


class Elements(HTMLParser):
    """The elements of a page and what it loads or runs."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.handlers: list[str] = []
        self.addresses: list[str] = []
        self.policies: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        loading = ("src", "href", "xlink:href", "action", "formaction", "srcset", "data", "poster")
        found = [value or "" for name, value in attrs if name in loading]
        self.addresses += [value for value in found if not value.startswith(("#", "data:image/"))]
        if dict(attrs).get("http-equiv") == "Content-Security-Policy":
            self.policies.append(dict(attrs)["content"] or "")

    handle_startendtag = handle_starttag


def report() -> str:
    return render_report(attacked(comparison(seeds=3), {"translation"}))


def benchmark() -> str:
    made = attacked(comparison(), {"translation"})
    return render_benchmark(Benchmark(title=ATTACK, comparisons={f"a{ATTACK}": made}))


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 8)
        self.attention = hw.MixtureOfAttentionHeads(8, 4, 2, 4)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.attention(self.embedding(input_ids)).output


def analysis() -> str:
    model = Own().eval()
    batch = {"input_ids": torch.randint(9, (8, 6))}

    def quality() -> torch.Tensor:
        with torch.no_grad():
            return model(**batch).square().mean((1, 2))

    made = hw.Analysis(model, [batch], tokens="input_ids", quality=quality).record
    record = AnalysisRecord(title="t", command="c", part="p", runs=[made], findings=["f"])
    return render_analysis(attacked(record))


def explorer() -> str:
    return page_html(payload().model_copy(update={"title": ATTACK, "text": ATTACK}))


def served_explorer() -> str:
    return page_html(payload(served=True).model_copy(update={"title": ATTACK, "text": ATTACK}))


@pytest.mark.parametrize("page", [report, benchmark, analysis, explorer, served_explorer])
def test_what_an_attack_says_is_text(page: Callable[[], str]) -> None:
    html = page()
    assert "7 * 191" in html and "1337" not in html  # the attack is there, and no template
    found = Elements(html)
    # Its own script, and before it what the explorer shows, as JSON.
    scripts = re.findall("<script>(.*?)</script>", html, re.DOTALL)
    assert len(scripts) == 1
    assert found.names.count("script") == 1 + (page in (explorer, served_explorer))
    assert not {"base", "form", "link", "iframe", "object", "embed"} & set(found.names)
    assert found.handlers == [] and found.addresses == []
    assert not re.search(r"@import|url\((?!#)", "".join(re.findall("<style.*?</style>", html)))
    (policy,) = found.policies
    rules = dict(rule.split(" ", 1) for rule in unescape(policy).split("; "))
    assert {rules[name] for name in ("default-src", "base-uri", "form-action")} == {"'none'"}
    assert rules.get("connect-src") == ("'self'" if page is served_explorer else None)
    assert rules["script-src"] == source_of(scripts[0])
    assert "http" not in policy
    # Nothing that the policy holds stands before it.
    assert html.index("Content-Security-Policy") < min(html.index("<title"), html.index("<style"))
