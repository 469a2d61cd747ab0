"""The page as a file: it runs its own script alone, and long texts keep it small."""

import base64
import hashlib
import re
import time
from html import unescape

import pytest
import torch
from explorer_payloads import payload

import headwise as hw
from headwise.report.explorer.inputs import Input, Source
from headwise.report.explorer.page import SCRIPTS, WEB, page_html, write_page
from headwise.report.explorer.payload import Output, Payload, Stack
from headwise.report.explorer.recording import Explorer, recorded_run

ATTACK = "</script><script>alert(1)</script><!--<img src=x onerror=alert(1)>"


def policy(page):
    (content,) = re.findall(r'Content-Security-Policy" content="(.*?)"', page)
    return dict(rule.split(" ", 1) for rule in unescape(content).split("; "))


def hashed(text):
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_the_page_may_run_its_own_script_and_style_alone():
    page = page_html(payload())
    rules = policy(page)
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == hashed(script)
    assert rules["style-src"] == hashed(style)
    assert "connect-src" not in rules
    assert policy(page_html(payload(served=True)))["connect-src"] == "'self'"
    assert not re.search(r"unsafe|https?:", str(rules))


def test_a_text_of_scripts_is_text(runs):
    made = Explorer([runs("translation", "mae")], Source(text=ATTACK)).record()
    page = page_html(made.model_copy(update={"title": ATTACK}))
    assert page.count("<script") == 2 and "<img" not in page and "<!--" not in page
    (inside,) = re.findall(r'<script type="application/json" id="payload">(.*?)</script>', page)
    assert Payload.model_validate_json(inside).text == ATTACK


def test_all_scripts_are_in_the_page():
    assert sorted(SCRIPTS) == sorted(path.stem for path in WEB.glob("*.js"))


def test_the_page_is_written_whole(tmp_path):
    path = tmp_path / "new" / "page.html"
    write_page(payload(), path)
    assert path.read_text(encoding="utf-8") == page_html(payload())


def test_512_tokens_through_12_layers_of_12_heads_weigh_less_than_10_mb():
    config = hw.MaskedLMConfig(
        vocab_size=100, embed_dim=48, num_heads=12, ffn_dim=16, layers=12, attention="mae"
    )
    model = hw.MaskedLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "q_proj.weight" in name:
                parameter *= 4  # attention that neither is even nor picks single tokens
    ids = torch.randint(5, 100, (1, 512))
    stack = Stack(kind="text", tokens=["token"] * 512)
    given = Input({"input_ids": ids}, {"encoder": stack}, lambda out: Output())
    start = time.perf_counter()
    run = recorded_run("large", "", model, given)
    page = page_html(payload(run))
    assert time.perf_counter() - start < 30
    assert len(page.encode()) < 10_000_000
    heads = [head for place in run.places for each in place.attentions for head in each.heads]
    assert len(heads) == 144
    sums = torch.tensor([head.numbers().sum(-1).mean() for head in heads])
    assert sums.mean() == pytest.approx(1, abs=0.15)
