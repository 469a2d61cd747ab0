"""Text from a language model."""

import pytest
import torch
from transformers import set_seed

from headwise.data.tokenizers.settings import TextTokenizerSettings
from headwise.data.tokenizers.tokenization import TextTokenizer
from headwise.models.causal_lm import CausalLM, CausalLMConfig
from headwise.tasks.generating import GenerationSettings, generate_text

LINES = ["open the file", "close the file", "open the window", "close it"]
WORDS = TextTokenizer.train(LINES, TextTokenizerSettings(type="word", min_frequency=1))
BYTES = TextTokenizer.train(LINES, TextTokenizerSettings(vocab_size=270))


def build(tokenizer=WORDS, plan="standard", max_length=16):
    set_seed(5)
    return CausalLM(
        CausalLMConfig(
            vocab_size=tokenizer.vocab_size,
            embed_dim=16,
            num_heads=4,
            ffn_dim=16,
            layers=2,
            attention=plan,
            dropout=0.0,
            max_length=max_length,
        )
    ).eval()


class Cycle(CausalLM):
    """Says: open the window, line end, open the window, ... whatever came before the last word."""

    def forward(self, input_ids=None, **kwargs):
        out = super().forward(input_ids=input_ids, **kwargs)
        order = [2, *WORDS.encode(["open the window"], eos=False)[0]]
        next_of = dict(zip(order, [*order[1:], order[0]], strict=True))
        last = input_ids[:, -out.logits.size(1) :]
        out.logits = torch.full_like(out.logits, -30.0)
        for position in range(last.size(1)):
            out.logits[0, position, next_of.get(int(last[0, position]), 2)] = 30.0
        return out


@pytest.fixture
def cycle():
    return Cycle(build().config).eval()


def test_what_follows_reads_on_from_the_prompt(cycle):
    settings = GenerationSettings(max_new_tokens=6)
    prompts = ["open the", "", "close it\nopen", "the window", "close it\n"]
    assert generate_text(cycle, WORDS, prompts, settings) == [
        " window\nopen the window",
        "open the window\nopen the",
        " the window\nopen the window",
        "\nopen the window\nopen",
        "open the window\nopen the",
    ]


@pytest.mark.parametrize(
    ("lines", "text"),
    [(1, " window"), (2, " window\nopen the window"), (5, " window" + 4 * "\nopen the window")],
)
def test_stops_at_the_end_of_a_line(cycle, lines, text):
    settings = GenerationSettings(max_new_tokens=50, lines=lines)
    assert [t.rstrip("\n") for t in generate_text(cycle, WORDS, ["open the"], settings)] == [text]


def test_prompts_do_not_share_their_random_numbers():
    model = build()
    model.lm_head.weight.data.zero_()  # all words are as probable whatever comes before
    settings = GenerationSettings(max_new_tokens=12, lines=None, top_p=1.0)
    one, other = generate_text(model, WORDS, ["open", "close"], settings)
    assert one != other


def test_goes_on_beyond_the_longest_sequence(cycle):
    seen = []
    forward = cycle.forward

    def watched(input_ids=None, **kwargs):
        seen.append(input_ids.size(1))
        return forward(input_ids=input_ids, **kwargs)

    cycle.forward = watched
    prompt = " ".join(["open the window"] * 10)  # 30 words, and sequences of at most 16
    settings = GenerationSettings(max_new_tokens=41)
    [text] = generate_text(cycle, WORDS, [prompt], settings)
    assert text.split() == (["open", "the", "window"] * 14)[: len(text.split())]
    assert text.count("\n") in (10, 11) and max(seen) <= 16
    # From the last half, and again from the last half when that is full.
    assert [count for count in seen if count > 1] == [8] * 6


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_text_depends_on_its_prompt_and_the_seed_alone(temperature):
    model = build(BYTES)
    settings = GenerationSettings(max_new_tokens=12, temperature=temperature, seed=4)
    [text] = generate_text(model, BYTES, ["open"], settings)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    assert generate_text(model, BYTES, ["close it", "open"], settings)[1] == text
    assert torch.equal(torch.get_rng_state(), before)  # and disturbs nobody else's draws
    again = settings.model_copy(update={"seed": 5})
    assert (generate_text(model, BYTES, ["open"], again) == [text]) == (temperature == 0)


def test_the_nucleus_and_the_temperature_narrow_the_choice():
    model = build(BYTES)
    greedy = generate_text(model, BYTES, ["open"], GenerationSettings(temperature=0))
    for narrow in ({"top_p": 1e-6}, {"temperature": 1e-3, "top_p": 1.0}):
        assert generate_text(model, BYTES, ["open"], GenerationSettings(**narrow)) == greedy
    assert generate_text(model, BYTES, ["open"], GenerationSettings()) != greedy


@pytest.mark.parametrize(
    "plan", ["standard", "mae", "agreement", "weighted", {"system": "tim", "layers": "all"}]
)
def test_the_cache_changes_nothing(plan):
    model = build(BYTES, plan, max_length=64)
    [text] = generate_text(
        model, BYTES, ["open the"], GenerationSettings(max_new_tokens=20, temperature=0)
    )
    ids = [2, *BYTES.encode(["open the"], eos=False)[0]]
    for _ in range(20):
        with torch.no_grad():
            ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    assert f"open the{text}" == BYTES.decode([ids[1:]])[0]
