"""Gates over a pretrained model see what its attention masks let them see, whatever these are."""

import copy
import random

import pytest
import torch
import transformers as tf
from architectures import FIRST, VOCABULARY, inputs, tiny
from gated import train_at_random
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask

import headwise as hw
from headwise.models.sites import attention_sites
from headwise.pretrained.masks import cached_positions, later_texts, query_padding

# Two texts of five positions, of which the last three are the queries.
ATTENDED = torch.tensor([[0, 0, 0, 1, 1], [1, 1, 1, 1, 0]])
EXPECTED = [[True, False, False], [False, False, True]]
PAST = torch.ones(5, 5).tril().bool()[2:]
BOOLEAN = ATTENDED[:, None, None].bool() & PAST
ROOM = torch.zeros(2, 1, 3, 3, dtype=torch.bool)  # of a cache for eight positions

KINDS = {
    "boolean": BOOLEAN,
    "float": torch.zeros(BOOLEAN.shape).masked_fill(~BOOLEAN, torch.finfo(torch.float32).min),
    "half": torch.zeros(BOOLEAN.shape).half().masked_fill(~BOOLEAN, torch.finfo(torch.half).min),
    "of keys alone": ATTENDED,
    "for all queries alike": ATTENDED[:, None, None].bool(),
    "for each head": BOOLEAN.expand(2, 4, 3, 5),
    "with room behind": torch.cat([BOOLEAN, ROOM], dim=3),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cached", [2, torch.tensor(2)])
def test_padding_in_a_mask_of_each_kind(kind, cached):
    assert query_padding(KINDS[kind], queries=3, cached=cached).tolist() == EXPECTED


def test_pages_are_no_cache_for_gates():
    with pytest.raises(NotImplementedError, match="the model has no continuous batching"):
        cached_positions(object(), 0)


TIME = 6
ROW = torch.arange(TIME)
CAUSAL = ROW.unsqueeze(1) < ROW
MASKS = {
    "prefix": CAUSAL & (ROW >= 3),
    "chunked": ROW.unsqueeze(1) // 2 < ROW // 2,
    "block-diagonal": (ROW.unsqueeze(1) < 2) != (ROW < 2),
    "block-diagonal, causal": ((ROW.unsqueeze(1) < 2) != (ROW < 2)) | CAUSAL,
}


def outputs(model, tokens, blocked, form):
    model.config.use_cache = False  # beside a cache packed texts are an error
    mask = (~blocked)[None, None]
    if form == "float":
        mask = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
    elif form == "float of -1e4":
        mask = ~mask * -1e4
    return model(input_ids=tokens, attention_mask=mask.expand(len(tokens), -1, -1, -1)).logits


FORMS = [("bert", "float"), ("bert", "float of -1e4"), ("llama", "boolean"), ("mistral", "float")]


@pytest.mark.parametrize(
    ("mask", "name", "form"),
    [(m, *f) for m in MASKS for f in FORMS if (m, f[0]) != ("block-diagonal, causal", "bert")],
)
@torch.no_grad()
def test_what_a_mask_hides_changes_no_output(name, mask, form):
    """In one layer: further ones would see what it lets through to others."""
    layers = tiny(name).config.num_hidden_layers
    model = train_at_random(hw.gate_heads(tiny(name), layers=[layers - 1]))
    for site in attention_sites(model):
        site.module.gate.output.weight.mul_(0.05)  # no gate is so sure that it moves with nothing
    plain, blocked = tiny(name), MASKS[mask]
    plain.load_state_dict({k: v for k, v in model.state_dict().items() if "head_gates" not in k})
    tokens = inputs(model, random.Random(0), batch=1, time=TIME, side="right")["input_ids"]
    tokens = tokens.clamp(min=5)
    before = outputs(model, tokens, blocked, form)
    many = tokens.repeat(TIME, 1)
    many[ROW, ROW] = (many[ROW, ROW] - 4) % 30 + 5
    changed = (outputs(model, many, blocked, form) - before).abs().amax(-1) > 1e-4
    expected = (outputs(plain, many, blocked, form) - outputs(plain, tokens, blocked, form)).abs()
    assert torch.equal(changed, expected.amax(-1) > 1e-4)


@torch.no_grad()
def test_gates_over_a_window_that_slides():
    """The model sees the last eight positions; so do gates with such a window, others say so."""
    tokens = torch.randint(5, 30, (1, 12))
    changed = tokens.clone()
    changed[:, 0] = (changed[:, 0] - 4) % 30 + 5

    def both(**options):
        model = train_at_random(hw.gate_heads(tiny("mistral"), layers=[0], **options)).eval()
        gates = []
        with hw.record(model) as decisions:
            for given in (tokens, changed):
                model(given)
            (routings,) = decisions.values()
            gates = [routing.weights for routing in routings]
        return gates[0], gates[1]

    with pytest.warns(UserWarning, match="pass gate_window=8, or less, to gate_heads"):
        before, after = both()
    assert not torch.equal(before[:, -1], after[:, -1])
    before, after = both(gate_window=8)
    assert torch.equal(before[:, 8:], after[:, 8:])
    assert not torch.equal(before[:, 7], after[:, 7])


LENGTHS = (4, 1, 6, 3)
SYSTEMS = {
    "mae": {},
    "mae window": {"gate_window": 2},
    "gated": {},
    "moh": {"shared_heads": 1, "top_k": 1, "neutral": False},
}
DECODERS = ["gpt2", "llama", "mistral", "qwen3"]


def gated(name, system="mae"):
    made = hw.gate_heads(tiny(name).double(), system.split()[0], **SYSTEMS[system])
    return train_at_random(made)


def texts():
    return [torch.randint(FIRST, VOCABULARY, (length,)) for length in LENGTHS]


def packed(each):
    given = tf.DataCollatorWithFlattening()([{"input_ids": text} for text in each])
    return {**given, "use_cache": False}


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("name", DECODERS)
def test_each_text_is_computed_by_itself(name, system, implementation):
    model, each = gated(name, system), texts()
    model.set_attn_implementation(implementation)
    expected = torch.cat([model(text[None], use_cache=False).logits for text in each], dim=1)
    found = model(**packed(each)).logits
    # transformers' own softmax has float32.
    close = {"rtol": 1e-5, "atol": 1e-5} if implementation == "eager" else {}
    torch.testing.assert_close(found, expected, **close)
    weight = torch.randn_like(found)
    gates = list(hw.gate_parameters(model))
    slopes = [torch.autograd.grad((out * weight).sum(), gates, allow_unused=True)
              for out in (found, expected)]  # fmt: skip
    torch.testing.assert_close(*slopes, **close)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_packed_texts_are_trained_on_as_padded_ones(checkpointing):
    model, each = gated("llama").train(), texts()
    for module in model.modules():
        if isinstance(module, hw.MixtureOfAttentiveExperts):
            module.gate.dropout = 0.0
    other = copy.deepcopy(model)
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS).unsqueeze(1)
    ids = nn.utils.rnn.pad_sequence(each, batch_first=True, padding_value=1)
    labels = ids.masked_fill(~mask, -100).index_fill(1, torch.tensor([0]), -100)
    padded = {"input_ids": ids, "attention_mask": mask.long(), "labels": labels}
    for one, given in ((model, packed(each)), (other, padded)):
        one(**given).loss.backward()
    for expected, found in zip(other.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad)
    torch.testing.assert_close(list(model.buffers()), list(other.buffers()))


def blocks_of(rows):
    """Boolean `(batch, time, time)`, `True` where two positions are of the same text."""
    rows = torch.tensor(rows)
    return rows.unsqueeze(1) == rows.unsqueeze(2)


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_masks_of_ones_own_may_separate_texts(name):
    """Also in an encoder, whose gates see a whole text."""
    model = gated(name)
    ids = torch.randint(FIRST, VOCABULARY, (2, 5))
    seen = blocks_of([[0, 0, 0, 1, 1], [0, 0, 0, 0, 0]])
    if name == "llama":
        seen = seen & torch.ones(5, 5).tril().bool()
    positions = torch.tensor([[0, 1, 2, 0, 1], [0, 1, 2, 3, 4]])
    options = {} if name == "bert" else {"use_cache": False}
    found = model(ids, attention_mask=seen[:, None], position_ids=positions, **options).logits
    for row, first, end in ((0, 0, 3), (0, 3, 5), (1, 0, 5)):
        alone = model(ids[row : row + 1, first:end], **options).logits
        torch.testing.assert_close(found[row : row + 1, first:end], alone)


def test_a_cache_with_packed_texts_is_refused():
    model = gated("llama")
    ids = torch.randint(FIRST, VOCABULARY, (1, 5))
    seen = blocks_of([[0, 0, 0, 1, 1]]) & torch.ones(5, 5).tril().bool()
    with pytest.raises(ValueError, match="pass use_cache=False"):
        model(ids, attention_mask=seen[:, None], use_cache=True)


def test_kernels_that_get_no_mask_are_told_by_positions(monkeypatch):
    """As flash attention: the heads here read as if there were one text; the gates know better."""
    model, each = gated("llama"), texts()
    given = packed(each)
    layer = model.model.layers[0].self_attn
    monkeypatch.setattr(layer.config, "_attn_implementation", "flash_attention_2")
    listener = layer.head_gates.around.padding
    positions = given["position_ids"]
    hidden = torch.zeros(1, sum(LENGTHS), 12)
    listener.listen(layer, (hidden,), {"attention_mask": None, "position_ids": positions})
    assert (~listener.now.texts.padding).sum(1).tolist() == list(LENGTHS)
    listener.listen(layer, (hidden,), {"attention_mask": None, "position_ids": positions * 0 + 1})
    assert len(listener.now.texts.padding) == sum(LENGTHS)
    one = torch.arange(sum(LENGTHS)).unsqueeze(0)
    listener.listen(layer, (hidden,), {"attention_mask": None, "position_ids": one})
    assert listener.now.texts is None


TEXTS = blocks_of([[0, 0, 1, 1, 1], [0, 1, 1, 1, 1]]) & torch.ones(5, 5).tril().bool()
STARTS = [[False, True, False, False], [True, False, False, False]]


@pytest.mark.parametrize("kind", ["boolean", "float", "heads", "room", "blocks"])
def test_masks(kind):
    mask = TEXTS[:, None]
    if kind == "float":
        mask = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
    elif kind == "heads":
        mask = mask.expand(2, 4, 5, 5)
    elif kind == "room":
        mask = torch.cat([mask, torch.zeros(2, 1, 5, 3, dtype=torch.bool)], dim=3)
    elif kind == "blocks":
        mask = create_block_mask(lambda b, h, q, k: TEXTS[b, q, k], 2, None, 5, 5, device="cpu")
    assert later_texts(mask, None, queries=5).tolist() == STARTS


@pytest.mark.slow
def test_a_compiled_model_refuses_packed_texts():
    model = gated("gpt2")
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    given = {name: value for name, value in packed(texts()).items() if name != "labels"}
    one = {"input_ids": given["input_ids"], "use_cache": False}
    torch.testing.assert_close(compiled(**one).logits, model(**one).logits)
    with pytest.raises(RuntimeError, match="packed into a row, which gates over the heads of a"):
        compiled(**given)


@torch.no_grad()
def test_a_mask_may_be_one_for_all_texts():
    model = gated("gpt2")
    ids, mask = torch.randint(FIRST, VOCABULARY, (2, 4)), torch.ones(1, 1, 4, 4).tril().bool()
    with hw.record(model) as decisions:
        torch.testing.assert_close(model(ids, attention_mask=mask).logits, model(ids).logits)
    assert len(decisions.frame()) == 2 * 2 * 2 * 4 * model.config.n_head


@pytest.mark.parametrize("real", [slice(0, 5), slice(0, 3), slice(2, 5)])
@torch.no_grad()
def test_a_mask_of_what_is_hidden_is_noticed(real):
    """MPT's is True there."""
    model = tf.MptForCausalLM(tf.MptConfig(vocab_size=20, d_model=8, n_layers=1, n_heads=2)).eval()
    layouts = {"MptAttention": hw.HeadLayout("out_proj", "n_heads", ("Wqkv",), is_causal=True)}
    mask = torch.zeros(1, 5, dtype=torch.long)
    mask[:, real] = 1
    given = {"input_ids": torch.randint(20, (1, 5)), "attention_mask": mask}
    before = model(**given).logits
    hw.gate_heads(model, "gated", layouts=layouts)  # decides at each position by itself
    assert torch.equal(model(**given).logits, before)
    hw.gate_heads(hw.remove_gates(model), "mae", layouts=layouts)
    with pytest.raises(ValueError, match="hides positions from themselves and not from others"):
        model(**given)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_mask_may_be_changed_in_place(mode):
    with mode():
        model, ids = gated("gpt2"), torch.randint(FIRST, VOCABULARY, (1, 5))
        mask = torch.ones(1, 1, 5, 5).tril().bool()
        model(ids, attention_mask=mask, use_cache=False)
        mask.copy_(TEXTS[:1, None])
        found = model(ids, attention_mask=mask, use_cache=False).logits
        fresh = model(ids, attention_mask=mask.clone(), use_cache=False).logits
        assert torch.equal(found, fresh)


def test_padding_of_a_block_mask_that_looks_at_no_text():
    """As flex attention without padding has it."""
    for sees in (lambda b, h, q, k: q >= k, lambda b, h, q, k: q.new_ones((), dtype=torch.bool)):
        mask = create_block_mask(sees, None, None, 4, 4, device="cpu")
        padding = query_padding(mask, queries=4)
        assert padding.tolist() == [[False] * 4]
        assert not later_texts(mask, padding, queries=4).any()
