"""The page: as a file it runs its own script alone, and `hw.explore` shows any model on it."""

import base64
import hashlib
import re
import time
from html import unescape

import pytest
import torch
from explorer_payloads import payload
from torch import nn
from transformers import PreTrainedTokenizerFast

import headwise as hw
from headwise.data.tokenizers.settings import TextTokenizerSettings, TokenizerSettings
from headwise.data.tokenizers.tokenization import TextTokenizer, TranslationTokenizer
from headwise.report.explorer.inputs import Input
from headwise.report.explorer.page import page_html
from headwise.report.explorer.payload import Output, Stack
from headwise.report.explorer.recording import recorded_run


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


# From here on the page of a model of one's own.

LINES = 2 * ["open the file", "close the file again"]
SIZES = {"embed_dim": 16, "num_heads": 4, "ffn_dim": 16}


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    return TextTokenizer.train(LINES, TextTokenizerSettings(vocab_size=300))


def run_of(page: hw.Explored):
    (run,) = page.payload.runs
    return run


def test_the_decoder_reads_a_target_or_what_it_writes(tokenizer):
    pair = TranslationTokenizer.train([("open the file", "ouvrir")] * 2, TokenizerSettings())
    config = hw.Seq2SeqLMConfig(
        vocab_size=pair.source.vocab_size,
        encoder_layers=1,
        decoder_layers=1,
        attention="mae",
        **SIZES,
    )
    model = hw.Seq2SeqLM(config)
    run = run_of(hw.explore(model, pair, "open the file"))
    assert run.stacks["encoder"].tokens == [" open", " the", " file", "<eos>"]
    assert run.stacks["decoder"].given == 1
    given = run_of(hw.explore(model, pair, "open the file", target="ouvrir"))
    assert given.stacks["decoder"].tokens == ["<bos>", " ouvrir"]
    assert [place.site for place in given.places] == [
        "encoder_self",
        "decoder_self",
        "decoder_cross",
    ]
    plain = run_of(hw.explore(model, pair.source.tokenizer, "open the file", target="ouvrir"))
    assert plain.stacks == given.stacks


def test_a_continuation_is_what_the_model_takes_for_probable(tokenizer):
    config = hw.CausalLMConfig(vocab_size=tokenizer.vocab_size, layers=1, attention="moa", **SIZES)
    run = run_of(hw.explore(hw.CausalLM(config), tokenizer, "open the"))
    stack = run.stacks["decoder"]
    assert stack.tokens[: stack.given] == ["<eos>", " open", " the"]
    best = {each.position: each.best[0].text for each in run.output.predictions}
    assert [best[i] for i in range(stack.given, len(stack.tokens))] == stack.tokens[stack.given :]


class Own(nn.Module):
    """A model of somebody else's, with a system in it."""

    def __init__(self, words: int, cross: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, 16)
        self.layer = nn.TransformerEncoderLayer(16, 4, 16, batch_first=True)
        self.layer.self_attn = hw.AgreementAttention(16, 4)
        self.memory = hw.MultiHeadAttention(16, 4) if cross else None

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.layer(self.embedding(tokens))
        return x if self.memory is None else self.memory(x, x[:, :2]).output


def test_a_system_with_other_positions_is_refused(tokenizer):
    model = Own(tokenizer.vocab_size, cross=True)
    forward = model.forward
    model.forward = lambda tokens: forward(tokens[:, 1:])
    with pytest.raises(ValueError, match=r"'layer.self_attn' reads 4 positions, expected 5"):
        hw.explore(model, tokenizer, "open the file")


def test_it_is_shown_in_a_frame_of_its_own(tokenizer, tmp_path):
    model = Own(tokenizer.vocab_size)
    page = hw.explore(model, tokenizer, "open </script> the file")
    shown = page._repr_html_()
    assert shown.startswith("<iframe") and 'sandbox="allow-scripts allow-downloads"' in shown
    inside = shown.split('srcdoc="')[1].split('"')[0]
    assert unescape(inside) == page_html(page.payload)
    assert page.save(tmp_path / "page.html").read_text(encoding="utf-8") == page_html(page.payload)


@pytest.mark.parametrize(
    ("text", "target", "message"),
    [
        ("", None, "text is empty"),
        (["open", "save"], None, "expected a single text"),
        ("open", "ouvrir", "target is given, but a Own reads none"),
        ("open " * 3000, None, "expected at most 2,048"),
    ],
)
def test_bad_input_is_refused(tokenizer, text, target, message):
    with pytest.raises(ValueError, match=message):
        hw.explore(Own(tokenizer.vocab_size), tokenizer, text, target=target)


def test_a_model_without_systems_is_refused(tokenizer):
    assert isinstance(tokenizer.tokenizer, PreTrainedTokenizerFast)
    with pytest.raises(ValueError, match="without any"):
        hw.explore(nn.Embedding(tokenizer.vocab_size, 4), tokenizer, "open")
