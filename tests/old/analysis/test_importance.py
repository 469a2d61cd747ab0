"""The importance of heads is that of a mask over them, one item after the other, by hand."""

import math
import random
from contextlib import ExitStack
from functools import partial

import pytest
import torch
import torch.nn.functional as F
import transformers as tf
from architectures import FIRST, VOCABULARY, inputs, like_bert, tiny, tiny_sizes
from scipy.stats import ttest_1samp
from torch import nn

import headwise as hw
from headwise.analysis.importance import Head
from headwise.models.sites import heads_sites
from headwise.pretrained.layouts import attention_modules

PLAIN = ["gpt2", "bert", "llama", "marian", "roberta", "vit", "vit to gpt2"]
SYSTEMS = {
    "standard": "standard",
    "mae": "mae",
    "moa": {"system": "moa", "size": "2K4E8D", "num_key_value_heads": 2},
    "agreement": "agreement",
    "weighted": "weighted",
    "tim": {"system": "tim", "layers": "all"},
    "moh": "moh",
}


def plain(name):
    """A model in float64, and a batch whose items have labels and padding of other lengths."""
    model = tiny(name).double()
    given = inputs(model, random.Random(1), side="right")
    given = {k: v.double() if v.is_floating_point() else v for k, v in given.items()}
    if name in ("roberta", "vit"):
        return model, {**given, "labels": torch.tensor([0, 1, 1])}
    read = given.get("decoder_input_ids", given.get("input_ids"))
    labels = torch.randint(FIRST, VOCABULARY, read.shape)
    labels[1, 2:] = -100
    return model, {**given, "labels": labels}


def of_headwise(name):
    torch.manual_seed(0)
    sizes = {"vocab_size": 20, "embed_dim": 16, "num_heads": 4, "ffn_dim": 16, "layers": 2}
    model = hw.CausalLM(hw.CausalLMConfig(**sizes, attention=SYSTEMS[name])).double()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) / 4)  # routers too, which start at zero
    labels = torch.randint(20, (3, 7))
    labels[0, 3:] = -100
    return model, {"input_ids": torch.randint(20, (3, 7)), "labels": labels}


def mask_heads(model, name, undo):
    """Puts a mask of ones over the heads of each attention; returns the masks by path."""
    masks = {}
    for place in heads_sites(model):
        mask = ones(8 if name == "moa" else place.module.num_heads)
        masks[place.path] = mask
        # In place of `combine`, which is called with what the heads have read.
        place.module.combine = partial(combine_masked, place.module.combine, mask)
        undo.callback(delattr, place.module, "combine")
    for place in [] if masks else attention_modules(model):
        mask = masks[place.path] = ones(place.sizes()["num_heads"])
        hook = partial(masked, mask, place.sizes()["head_dim"])
        undo.callback(place.projection.register_forward_pre_hook(hook).remove)
    return masks


def ones(heads):
    return torch.ones(heads, dtype=torch.float64, requires_grad=True)


def combine_masked(combine, mask, heads, read, choice):
    if isinstance(getattr(choice, "indices", None), torch.Tensor):  # each query has its own heads
        chosen = torch.cat([choice.indices, choice.indices + 4], -1)  # of both heads of keys
        return combine(heads * mask[chosen].transpose(1, 2).unsqueeze(-1), read, choice)
    return combine(heads * mask.view(-1, 1, 1), read, choice)


def masked(mask, dim, projection, args):
    return args[0] * mask.repeat_interleave(dim), *args[1:]


def own_loss(model, item):
    """The loss of the model itself; where transformers rounds it to float32, by hand."""
    output = model(**item)
    if isinstance(model, (tf.GPT2LMHeadModel, tf.LlamaForCausalLM)):
        return F.cross_entropy(output.logits[0, :-1], item["labels"][0, 1:])
    return getattr(output, "token_loss", output.loss)


def naive(name, model, batch, by):
    """By path `(items, heads)`: each item by itself, under a mask over the heads."""
    found = {}
    with ExitStack() as undo:
        masks = mask_heads(model.eval(), name, undo)
        for i in range(len(batch["labels"])):
            loss = partial(own_loss, model, {k: v[i : i + 1] for k, v in batch.items()})
            for path, values in of_item(loss, masks, by).items():
                found.setdefault(path, []).append(values)
    return {path: torch.stack(each) for path, each in found.items()}


def of_item(loss, masks, by):
    if by == "gradient":
        gradients = torch.autograd.grad(loss(), masks.values())
        return {path: each.abs() for path, each in zip(masks, gradients, strict=True)}
    with torch.no_grad():
        before = loss()
        return {
            path: torch.stack([without(loss, mask, h) - before for h in range(len(mask))])
            for path, mask in masks.items()
        }


def without(loss, mask, head):
    mask[head] = 0
    found = loss()
    mask[head] = 1
    return found


def assert_same(importance, expected):
    assert len(importance) == sum(each.size(1) for each in expected.values())
    for head in importance:
        values = expected[head.path][:, head.head].numpy()
        assert head.importance == pytest.approx(values.mean(), rel=1e-9, abs=1e-12)
        interval = ttest_1samp(values, 0).confidence_interval(0.95)
        assert (head.low, head.high) == pytest.approx(tuple(interval), rel=1e-7, abs=1e-10)


@pytest.mark.parametrize("by", ["gradient", "removal"])
@pytest.mark.parametrize("name", PLAIN)
def test_of_plain_models(name, by):
    model, batch = plain(name)
    places = {place.path: (place.site, place.layer) for place in attention_modules(model)}
    found = hw.head_importance(model, [batch], by=by)
    assert_same(found, naive(name, model, batch, by))
    assert {head.path: (head.site, head.layer) for head in found} == places
    ranked = [head.importance for head in found]
    assert ranked == sorted(ranked, reverse=True)
    assert ranked[0] > 1e-4


@pytest.mark.parametrize("name", SYSTEMS)
def test_of_models_of_headwise_by_gradient(name):
    model, batch = of_headwise(name)
    found = hw.head_importance(model, [batch])
    assert_same(found, naive(name, model, batch, "gradient"))
    assert {(head.site, head.layer) for head in found} == {("decoder_self", 0), ("decoder_self", 1)}


@pytest.mark.parametrize("name", ["standard", "mae", "moh"])
def test_of_models_of_headwise_by_removal(name):
    model, batch = of_headwise(name)
    found = hw.head_importance(model, [batch], by="removal")
    assert_same(found, naive(name, model, batch, "removal"))


@pytest.mark.parametrize("by", ["gradient", "removal"])
@pytest.mark.parametrize("name", ["gpt2", "marian", "headwise"])
def test_items_without_labels_are_left_out(name, by):
    model, batch = of_headwise("standard") if name == "headwise" else plain(name)
    batch["labels"][2, 1:] = -100
    if name == "marian":  # its first label is predicted
        batch["labels"][2] = -100
    expected = hw.head_importance(model, [{k: v[:2] for k, v in batch.items()}], by=by)
    ones = [{k: v[i : i + 1] for k, v in batch.items()} for i in range(3)]
    for data in ([batch], ones):
        found = {head[:4]: head[4:] for head in hw.head_importance(model, data, by=by)}
        assert found == {head[:4]: pytest.approx(head[4:]) for head in expected}


def test_sequences_of_one_label():
    model, batch = plain("marian")
    batch["labels"] = batch["labels"][:, :1]
    batch = {k: v for k, v in batch.items() if not k.startswith("decoder")}
    assert_same(hw.head_importance(model, [batch]), naive("marian", model, batch, "gradient"))
    model, batch = plain("gpt2")
    texts = [{k: v[:, :1] for k, v in batch.items()}, batch]
    assert hw.head_importance(model, texts) == hw.head_importance(model, [batch])


def test_removal_is_what_ablated_removes():
    model, batch = of_headwise("agreement")  # where a head that is removed has no vote
    batch["labels"] = batch["labels"].clamp(min=0)
    found = hw.head_importance(model, [batch], by="removal")
    before = own_loss(model.eval(), batch).item()
    for path, _, _, head, cost, *_ in found:
        with hw.ablated(model, path, head=head):
            assert cost == pytest.approx(own_loss(model, batch).item() - before, abs=1e-12)


def test_gated_models_and_several_batches():
    model, batch = plain("bert")
    expected = hw.head_importance(model, [batch])
    hw.gate_heads(model)
    items = ({k: v[i : i + 1] for k, v in batch.items()} for i in range(3))
    found = hw.head_importance(model, items)
    assert [head[:4] for head in found] == [head[:4] for head in expected]
    for head, same in zip(found, expected, strict=True):
        assert head[4:] == pytest.approx(same[4:], rel=1e-6)


@pytest.mark.parametrize("by", ["gradient", "removal"])
def test_the_model_is_afterwards_as_it_was(by):
    model, batch = plain("gpt2")
    expected = hw.head_importance(model, [batch], by=by)
    names = list(model.state_dict())
    model.requires_grad_(False).train()
    model.transformer.h[0].eval()
    model.lm_head.requires_grad_(True)
    before = {name: p.requires_grad for name, p in model.named_parameters()}
    modes = [module.training for module in model.modules()]
    with torch.no_grad():
        assert hw.head_importance(model, [batch], by=by) == expected
    assert {name: p.requires_grad for name, p in model.named_parameters()} == before
    assert [module.training for module in model.modules()] == modes
    assert all(p.grad is None for p in model.parameters())
    assert list(model.state_dict()) == names


def test_a_loss_of_ones_own_and_modules_that_are_no_models():
    layer = nn.ModuleDict({"attention": hw.MultiHeadAttention(16, 4), "norm": nn.LayerNorm(16)})
    layer.double()

    def loss(module, x):
        return module["norm"](module["attention"](x).output).pow(3).sum((1, 2))

    x = torch.randn(5, 6, 16, dtype=torch.float64)
    found = hw.head_importance(layer, x.split(2), loss=loss)
    ones = hw.head_importance(layer, x.split(1), loss=loss)
    assert [head[:4] for head in found] == [head[:4] for head in ones]
    assert [h.importance for h in found] == pytest.approx([h.importance for h in ones])
    assert {head.path for head in found} == {"attention"}


def test_normalized_by_attention():
    model, batch = plain("bert")
    plainly = hw.head_importance(model, [batch])
    normalized = hw.head_importance(model, [batch], normalized=True)
    for path in {head.path for head in plainly}:
        norm = sum(head.importance**2 for head in plainly if head.path == path) ** 0.5
        expected = {
            head.head: [x / norm for x in head[4:]] for head in plainly if head.path == path
        }
        found = {head.head: list(head[4:]) for head in normalized if head.path == path}
        assert found == {number: pytest.approx(each) for number, each in expected.items()}


def test_the_least_important():
    rows = [("a", 0, 5.0), ("a", 1, 0.1), ("b", 0, 0.2), ("a", 2, 0.05), ("b", 1, 0.3)]
    ranked = sorted(rows, key=lambda row: -row[-1])
    heads = hw.HeadImportance(Head(path, "", 0, head, each, 0, 1) for path, head, each in ranked)
    assert [heads.least(n) for n in range(4)] == [
        {},
        {"a": [2]},
        {"a": [1, 2]},
        {"a": [1, 2], "b": [0]},
    ]
    with pytest.raises(ValueError, match="expected 0 to 3: of 5 heads each of 2 attentions keeps"):
        heads.least(4)


def test_the_least_important_groups_of_heads_that_share_keys():
    llama = tiny("llama", 0, {**tiny_sizes(), "heads": 6, "key_heads": 3})
    tokens = torch.randint(5, 20, (4, 6))
    ranked = hw.head_importance(llama, [{"input_ids": tokens, "labels": tokens}])
    sums = {}
    for head in ranked:
        unit = head.path, head.head // 2
        sums[unit] = sums.get(unit, 0) + head.importance
    path, unit = min(sums, key=sums.get)
    assert ranked.least(1, group=2) == {path: [2 * unit, 2 * unit + 1]}
    hw.prune_heads(llama, ranked.least(4, group=2))
    assert [layer.self_attn.k_proj.out_features for layer in llama.model.layers] == [4, 4]
    with pytest.raises(ValueError, match="expected 0 to 4: of 6 groups each of 2 attentions"):
        ranked.least(5, group=2)
    with pytest.raises(ValueError, match="group is 0, expected how many heads share"):
        ranked.least(1, group=0)


def test_a_table(monkeypatch):
    model, batch = plain("bert")
    found = hw.head_importance(model, [{k: v[:1] for k, v in batch.items()}])
    columns = ["path", "site", "layer", "head", "importance", "low", "high"]
    assert list(found.frame().columns) == columns
    assert all(math.isnan(head.low) and math.isnan(head.high) for head in found)
    monkeypatch.setattr("headwise.analysis.importance.find_spec", lambda name: None)
    assert [list(row) for row in found.frame()] == [columns] * 6


def test_a_model_with_a_quantised_layer():
    quantization = pytest.importorskip("torch.ao.quantization")  # deprecated
    quantised = quantization.quantize_dynamic(tiny("llama"), {"model.layers.1.mlp.up_proj"})
    tokens = torch.randint(FIRST, VOCABULARY, (4, 6))
    data = [{"input_ids": tokens, "labels": tokens}]
    with pytest.raises(ValueError, match=r"'model.layers.1.mlp.up_proj' is quant.*'removal'"):
        hw.head_importance(quantised, data)
    assert any(head.importance for head in hw.head_importance(quantised, data, by="removal"))


def test_errors():
    model, batch = plain("gpt2")
    with pytest.raises(ValueError, match="by is 'gradients', expected 'gradient' or 'removal'"):
        hw.head_importance(model, [batch], by="gradients")
    with pytest.raises(ValueError, match="a dict without a tensor of labels, expected"):
        hw.head_importance(model, [{"input_ids": batch["input_ids"]}])
    with pytest.raises(ValueError, match="a dict without a tensor of labels, expected"):
        hw.head_importance(model, [{**batch, "labels": batch["labels"].tolist()}])
    with pytest.raises(ValueError, match="data has no batches"):
        hw.head_importance(model, [])
    with pytest.raises(ValueError, match=r"loss returns the shape \(\), expected \(items,\)"):
        hw.head_importance(model, [batch], loss=own_loss)
    with pytest.raises(ValueError, match="without any attention of headwise"):
        hw.head_importance(nn.Linear(2, 2), [batch])
    with pytest.raises(ValueError, match="has no item with a label to predict"):
        hw.head_importance(model, [{**batch, "labels": torch.full_like(batch["labels"], -100)}])
    diverged, _ = plain("gpt2")
    diverged.lm_head.weight.data[0] = math.nan
    with pytest.raises(
        ValueError, match="loss of the model is nan, expected a number: its weights"
    ):
        hw.head_importance(diverged, [batch])
    several = {"input_ids": batch["input_ids"], "labels": torch.rand(3, 2).round()}
    classes = tf.BertConfig(**like_bert(tiny_sizes()), problem_type="multi_label_classification")
    with pytest.raises(ValueError, match=r"but the mean loss of its labels .*; expected loss"):
        hw.head_importance(tf.BertForSequenceClassification(classes), [several])
    choices = tf.BertForMultipleChoice(tf.BertConfig(**like_bert(tiny_sizes())))
    several = {"input_ids": torch.ones(3, 2, 7, dtype=torch.long), "labels": torch.zeros(3).long()}
    with pytest.raises(ValueError, match="reads 6 rows, where loss returns 3 items"):
        hw.head_importance(choices, [several])
    for name in ("moa", "weighted", "tim"):
        model, batch = of_headwise(name)
        with pytest.raises(ValueError, match=r"removes no head, but .*; expected 'gradient'"):
            hw.head_importance(model, [batch], by="removal")
