"""What heads decide and weigh can be seen, and heads can be switched off or cut out.

`record`, `ablated`, `head_importance`, `prune_heads` and `load_pruned` against plain computations
on the models' own weights.
"""

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ttest_1samp
from support.architectures import (
    DECODERS,
    EIGHT,
    MODELS,
    PADDING,
    assert_near,
    attentions,
    build,
    called,
    gate,
    labelled,
    padding,
    refused,
    sizes,
    tokens,
    width_of,
    without,
)
from support.reference import gate as gate_by_hand

import headwise as hw
from headwise.models.inspect import systems

# Heads that have norms, sinks or biases of their own, or share their map with others.
WHOLE = ("olmo2", "gpt-oss", "gpt-neox")
CUT = [name for name in MODELS if name not in WHOLE and "t5" not in name]


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_an_ablated_head_gives_zeros_to_the_projection(name):
    model = build(name)
    given, names = called(name, model), list(model.state_dict())
    before = model(**given).logits
    with hw.record(model) as decisions:
        assert torch.equal(model(**given).logits, before)
    assert not decisions
    for path in attentions(model):
        with hw.ablated(model, path, head=1):
            ablated = model(**given).logits
        with without(model, {path: [1]}):
            assert_near(ablated, model(**given).logits)
        assert not torch.equal(ablated, before)
    assert torch.equal(model(**given).logits, before)
    assert list(model.state_dict()) == names


@pytest.mark.parametrize("name", ["gpt2", "llama", "bart"])
@torch.no_grad()
def test_heads_are_ablated_and_recorded_while_a_model_generates(name):
    """From a cache, by beams, with prompts that are padded on the left."""
    model = build(name)
    path = list(attentions(model))[-1]
    mask = padding(2, 5, "left")
    read = {"input_ids": tokens(2, 5).masked_fill(mask, PADDING), "attention_mask": (~mask).long()}
    how = {"max_new_tokens": 4, "do_sample": False, "output_logits": True, "num_beams": 2}

    def made():
        out = model.generate(**read, **how, return_dict_in_generate=True)
        return out.sequences, torch.stack(out.logits)

    before = made()
    with hw.ablated(model, path, head=2):
        texts, logits = made()
    with without(model, {path: [2]}):
        expected = made()
    assert torch.equal(texts, expected[0]) and not torch.allclose(logits, before[1])
    assert_near(logits, expected[1])
    model = gate(name, "gated")
    with hw.record(model) as decisions:
        model.generate(**read, max_new_tokens=4)
    steps = [[each.weights.size(1) for each in made] for made in decisions.values()]
    assert [1] * 4 in steps if name == "bart" else steps == [[5, 1, 1, 1]] * 2
    (first, *_), last = next(iter(decisions.values())), list(decisions)[-1]
    assert torch.equal(first.padding, mask) and first.weights.size(2) == 4
    assert systems(model)[last].layer == 1
    assert decisions.begins[last] == ([0, 1, 2, 3] if name == "bart" else [0, 5, 6, 7])


@pytest.mark.parametrize("name", ["gpt2", "bert", "bart"])
def test_an_error_leaves_the_model_as_it_was(name):
    model = build(name).train().requires_grad_(False)
    given, path = called(name, model), next(iter(attentions(model)))
    before, parts = model(**given).logits, [name for name, _ in model.named_modules()]

    def fails(*_):
        raise KeyError("mine")

    def in_the_middle():
        with hw.ablated(model.eval(), path, head=0), hw.record(model):
            model(**given)
            fails()

    def measure(by):
        hw.head_importance(model, [given], loss=fails, by=by)

    for call in (in_the_middle, lambda: measure("gradient"), lambda: measure("removal")):
        with pytest.raises(KeyError, match="mine"):
            call()
        assert [name for name, _ in model.named_modules()] == parts
        assert not any(parameter.requires_grad for parameter in model.parameters())
        assert torch.equal(model.train()(**given).logits, before)


# Where the values of the heads come from, of one layer.
VALUES = {"bert": "self.value", "gpt2": "c_attn", "llama": "v_proj", "bart": "v_proj"}


@pytest.mark.parametrize("system", ["mae", "gated", "moh"])
@pytest.mark.parametrize("name", VALUES)
@torch.no_grad()
def test_decisions_scale_what_each_head_reads(name, system):
    """By the model's own eager attention: Σ_h a_h (A_h V_h) W_h, a being what is recorded."""
    side, seen = "left" if name in DECODERS else "right", {}
    model = gate(name, system)
    model.set_attn_implementation("eager")
    path, projection = list(attentions(model).items())[1]
    attention = model.get_submodule(path)

    def note_call(_, args, kwargs, output):
        seen.update(hidden=[*args, kwargs.get("hidden_states")][0], weights=output[1])

    attention.register_forward_hook(note_call, with_kwargs=True)
    values = attention.get_submodule(VALUES[name])
    values.register_forward_hook(lambda *call: seen.update(values=call[-1]))
    projection.register_forward_hook(lambda *call: seen.update(made=call[-1]))
    given = called(name, model, side)
    with hw.record(model) as decisions:
        model(**given, **({"output_attentions": True} if name == "bert" else {}))
    ((place, (routing,)),) = [each for each in decisions.items() if each[0].startswith(path)]
    real = torch.ones(3, 5).bool() if name == "bart" else given["attention_mask"].bool()
    scales = 4 / 3 * (1 - routing.weights) if system == "mae" else routing.weights
    scales = scales if scales.dim() == 3 else scales.unsqueeze(1)
    heads = seen["values"].chunk(3, -1)[-1] if name == "gpt2" else seen["values"]
    heads = heads.unflatten(-1, (2 if name == "llama" else 4, -1)).transpose(1, 2)
    heads = seen["weights"] @ heads.repeat_interleave(4 // heads.size(1), dim=1)
    read = (heads.transpose(1, 2) * scales.unsqueeze(-1)).flatten(2)
    matrix = projection.weight if name == "gpt2" else projection.weight.T
    expected = read @ matrix + (0 if projection.bias is None else projection.bias)
    # Eager attention has its softmax in float32.
    assert_near(seen["made"][real].float(), expected[real].float())
    if system == "mae":  # decides by the mean of what is real, of a decoder up to each position
        p = {k: v.double() for k, v in model.get_submodule(place).state_dict().items()}
        for row, position in real.nonzero().tolist():
            last = position + 1 if name in DECODERS else 5
            sights = seen["hidden"][row, :last][real[row, :last]].double()
            expected = torch.stack(gate_by_hand(p, list(sights), 16)).float()
            found = routing.weights[row, position] if name in DECODERS else routing.weights[row]
            assert_near(found.float(), expected)


def losses(model, batch):
    """The mean loss of each item's labels, by hand."""
    labels = batch["labels"]
    logits = model(**{key: value for key, value in batch.items() if key != "labels"}).logits
    if "CausalLM" in type(model).__name__ or "LMHead" in type(model).__name__:
        logits, labels = logits[:, :-1], labels[:, 1:]
    logits = logits.unsqueeze(1) if labels.dim() == 1 else logits
    rows = zip(logits.double(), labels.reshape(len(labels), -1), strict=True)
    return torch.stack([F.cross_entropy(*row) for row in rows])


@torch.no_grad()
def by_hand(model, batch, path, by):
    """`(items, 4 heads)`: how losses change without a head, or with a little more or less of it."""

    def loss(head, left):
        with without(model, {path: [head]}, left=left):
            return losses(model, batch)

    if by == "removal":
        return torch.stack([loss(head, 0.0) - loss(head, 1.0) for head in range(4)], 1)
    each = [loss(head, 1 + 1e-4) - loss(head, 1 - 1e-4) for head in range(4)]
    return torch.stack(each, 1).abs() / 2e-4


@pytest.mark.parametrize("by", ["gradient", "removal"])
@pytest.mark.parametrize("name", ["gpt2", "bert", "bart", "roberta"])
def test_importance(name, by):
    """Means and intervals over items of finite differences, or of losses without each head."""
    model = build(name)
    batch, paths = labelled(name, model), list(attentions(model))
    batch.pop("use_cache", None)  # all that is left are tensors of items
    model.train().requires_grad_(False)
    found = hw.head_importance(model, [batch], by=by)
    assert len(found) == 4 * len(paths)
    for path in paths[-2:]:
        expected = by_hand(model, batch, path, by).numpy()
        for head in (each for each in found if each.path == path):
            values = expected[:, head.head]
            assert head.importance == pytest.approx(values.mean(), rel=1e-5, abs=1e-7)
            interval = tuple(ttest_1samp(values, 0).confidence_interval(0.95))
            assert (head.low, head.high) == pytest.approx(interval, rel=1e-4, abs=1e-6)
    ranked = [head.importance for head in found]
    assert ranked == sorted(ranked, reverse=True) and ranked[0] > 1e-4
    assert model.training and not any(p.requires_grad for p in model.parameters())
    items = [{key: value[i : i + 1] for key, value in batch.items()} for i in range(3)]
    again = {head[:4]: head.importance for head in hw.head_importance(model, items, by=by)}
    assert again == pytest.approx({head[:4]: head.importance for head in found}, rel=1e-6)


def test_importance_within_attentions_and_the_least_important_heads():
    """Each attention keeps its most important head."""
    model = build("bert")
    batch = labelled("bert", model)
    plain = hw.head_importance(model, [batch])
    shares = {head[:4]: head[4] for head in hw.head_importance(model, [batch], normalized=True)}
    best = {}
    for head in plain:
        best.setdefault(head.path, head)
        norm = sum(other.importance**2 for other in plain if other.path == head.path) ** 0.5
        assert shares[head[:4]] == pytest.approx(head.importance / norm)
    free = [(head.path, head.head) for head in reversed(plain) if head is not best[head.path]]
    for number in range(7):
        cut = plain.least(number)
        assert sorted((path, head) for path in cut for head in cut[path]) == sorted(free[:number])
    (cut,) = plain.least(1, group=2).values()
    assert sorted(cut) in ([0, 1], [2, 3])
    refused({"7"}, plain.least, 7)


@pytest.mark.parametrize("name", CUT)
@torch.no_grad()
def test_pruned_heads_are_ablated_ones(name):
    """One of each group that shares keys in one attention, a whole group in another."""
    model = build(name)
    given, paths = called(name, model), list(attentions(model))
    chosen = {paths[-1]: [1, 2]} if name == "albert" else {paths[-1]: [1, 2], paths[0]: [2, 3]}
    pruned = copy.deepcopy(model)
    assert hw.prune_heads(pruned, chosen) is pruned
    with without(model, chosen):
        assert_near(pruned(**given).logits, model(**given).logits)
    for path in chosen:
        assert width_of(attentions(pruned)[path]) * 2 == width_of(attentions(model)[path])


@pytest.mark.parametrize("name", [name for name in EIGHT if name != "t5"])
@settings(max_examples=3)
@given(data=st.data())
@torch.no_grad()
def test_heads_are_pruned_at_once_or_one_after_another(name, data):
    size = data.draw(sizes())
    keys = size["key_heads"] if name in ("llama", "qwen3") else size["heads"]
    group = size["heads"] // keys
    model = build(name, size)
    path = data.draw(st.sampled_from(list(attentions(model))))
    # So many of each group; of groups of one, some groups.
    less = data.draw(st.integers(1, group - 1)) if group > 1 else 0
    gone = [key * group + each for key in range(keys) for each in range(less)]
    gone = gone or list(range(data.draw(st.integers(1, keys - 1))))
    once = hw.prune_heads(copy.deepcopy(model), {path: gone})
    with without(model, {path: gone}, of=size["heads"]):
        given = called(name, model)
        assert_near(once(**given).logits, model(**given).logits)
    for number, head in enumerate(gone if group == 1 else []):
        hw.prune_heads(model, {path: head - number})  # its number has become smaller
    for one, other in zip(once.parameters(), model.parameters(), strict=True):
        assert group > 1 or torch.equal(one, other)


@pytest.mark.parametrize("name", ["gpt2", "bert", "llama", "phi3", "bart", "bert to bert"])
@torch.no_grad()
def test_pruned_models_are_saved_loaded_gated_and_generate(name, tmp_path):
    model = build(name)
    paths = list(attentions(model))
    hw.prune_heads(model, {paths[-1]: [0, 1]})
    hw.prune_heads(model, {paths[-1]: 1, paths[0]: [0, 3]})  # 1 was 3 before
    with pytest.warns(UserWarning, match="load_pruned"):
        model.save_pretrained(tmp_path)
    loaded = hw.load_pruned(type(model), tmp_path).eval()
    given = called(name, model)
    expected = model(**given).logits
    state = loaded.state_dict()
    assert all(torch.equal(state[key], value) for key, value in model.state_dict().items())
    if name != "bert":
        read = {"input_ids": tokens(2, 5), "max_new_tokens": 4}
        one, other = (model.generate(**read, use_cache=cache) for cache in (True, False))
        assert torch.equal(one, other)
    assert_near(hw.gate_heads(loaded, "gated")(**given).logits, expected)
    refused({type(model).__name__}, hw.load_pruned, type(build("mistral")), tmp_path)


REFUSED = [
    ("gpt2", {0: [4]}, {"h.0.attn", "4", "3"}),
    ("gpt2", {0: [1], "transformer.h.1.attn": [0, 1, 2, 3]}, {"h.1.attn", "4"}),
    ("gpt2", {0: [1], "lm_head": [0]}, {"lm_head", "h.0.attn"}),
    ("llama", {0: [1]}, {"layers.0.self_attn", "[1, 2]", "2 groups"}),
    ("bart", {0: [1]}, {"0", "encoder.layers.0.self_attn", "decoder.layers.0.encoder_attn"}),
    *((name, None, {"ttention"}) for name in WHOLE),
]


@pytest.mark.parametrize(("name", "heads", "must_name"), REFUSED)
def test_what_cannot_be_pruned_is_refused_and_stays(name, heads, must_name):
    model = build(name)
    before = copy.deepcopy(model.state_dict())
    heads = {next(iter(attentions(model))): [2, 3]} if heads is None else heads
    refused(must_name, hw.prune_heads, model, heads)
    after = model.state_dict()
    assert all(torch.equal(after[key], tensor) for key, tensor in before.items())
