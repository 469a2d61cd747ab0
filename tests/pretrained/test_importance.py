"""The importance of heads against losses that are computed by hand, item by item."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
import transformers as tf
from scipy.stats import ttest_1samp
from support.architectures import attentions, build, labelled, refused, tokens, without
from torch import nn

import headwise as hw
from headwise.models.inspect import find_attentions as attentions_of


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
def by_hand(model, batch, path):
    """`(items, 4 heads)`: how losses change with a little more or less of a head."""

    def loss(head, left):
        with without(model, {path: [head]}, left=left):
            return losses(model, batch)

    differences = [loss(head, 1 + 1e-4) - loss(head, 1 - 1e-4) for head in range(4)]
    return torch.stack(differences, 1).abs() / 2e-4


@pytest.mark.parametrize("name", ["gpt2", "bert", "bart", "roberta"])
def test_importance(name):
    """Means and intervals over items of finite differences."""
    model = build(name)
    batch, paths = labelled(name, model), list(attentions(model))
    batch.pop("use_cache", None)  # all that is left are tensors of items
    model.train().requires_grad_(False)
    heads = hw.head_importance(model, [batch])
    assert len(heads) == 4 * len(paths)
    for path in paths[-2:]:
        expected = by_hand(model, batch, path).numpy()
        for head in (head for head in heads if head.path == path):
            values = expected[:, head.head]
            assert head.importance == pytest.approx(values.mean(), rel=1e-5, abs=1e-7)
            interval = tuple(ttest_1samp(values, 0).confidence_interval(0.95))
            assert (head.low, head.high) == pytest.approx(interval, rel=1e-4, abs=1e-6)
    ranked = [head.importance for head in heads]
    assert ranked == sorted(ranked, reverse=True) and ranked[0] > 1e-4
    assert model.training and not any(p.requires_grad for p in model.parameters())
    items = [{key: value[i : i + 1] for key, value in batch.items()} for i in range(3)]
    by_item = {head[:4]: head.importance for head in hw.head_importance(model, items)}
    assert by_item == pytest.approx({head[:4]: head.importance for head in heads}, rel=1e-6)


def test_the_least_important_heads():
    """Each attention keeps its most important head."""
    model = build("bert")
    batch = labelled("bert", model)
    ranking = hw.head_importance(model, batch)
    best = {}
    for head in ranking:
        best.setdefault(head.path, head)
    free = [(head.path, head.head) for head in reversed(ranking) if head is not best[head.path]]
    for number in range(7):
        least = ranking.least(number)
        pairs = sorted((path, head) for path, heads in least.items() for head in heads)
        assert pairs == sorted(free[:number])
    (group,) = ranking.least(1, group=2).values()
    assert sorted(group) in ([0, 1], [2, 3])
    refused({"7"}, ranking.least, 7)
    columns = ["path", "site", "layer", "head", "importance", "low", "high"]
    assert list(ranking.frame().columns) == columns and len(ranking.frame()) == 8
    of_one_item = hw.head_importance(model, {key: value[:1] for key, value in batch.items()})
    assert all(math.isnan(head.low) and math.isnan(head.high) for head in of_one_item)


@pytest.mark.parametrize("name", ["gpt2", "bart"])
def test_items_without_labels_are_left_out(name):
    model = build(name)
    batch = labelled(name, model)
    batch.pop("use_cache")
    batch["labels"][2, 1 if name == "gpt2" else 0 :] = -100  # a causal model predicts no first one
    expected = hw.head_importance(model, {key: value[:2] for key, value in batch.items()})
    items = [{key: value[i : i + 1] for key, value in batch.items()} for i in range(3)]
    for data in (batch, items):
        actual = {head[:4]: head[4:] for head in hw.head_importance(model, data)}
        assert actual == {head[:4]: pytest.approx(head[4:]) for head in expected}


PLANS = ["standard", "agreement", "weighted", "moh", "mae", {"system": "tim", "layers": "all"}]
PLANS += [{"system": "moa", "size": "2K4E8D", "num_key_value_heads": 2}]


def masked(combine, mask, heads, inputs, choice):
    """What an attention makes of its heads under a mask; of MoA each token has its own heads."""
    if hasattr(choice, "indices"):  # of 4 experts, each for 2 heads of keys
        chosen = torch.cat([choice.indices, choice.indices + 4], -1)
        return combine(heads * mask[chosen].transpose(1, 2).unsqueeze(-1), inputs, choice)
    return combine(heads * mask.view(-1, 1, 1), inputs, choice)


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_importance_of_models_of_headwise(plan):
    """By the derivative of the loss by a mask over the heads."""
    sizes = {"vocab_size": 20, "embed_dim": 16, "num_heads": 4, "ffn_dim": 16, "layers": 2}
    model = hw.CausalLM(hw.CausalLMConfig(**sizes, attention=plan)).double().eval()
    for parameter in model.parameters():  # routers too, which start at zero
        parameter.data.add_(torch.randn_like(parameter) / 4)
    ids = torch.randint(20, (1, 7))
    batch = {"input_ids": ids, "labels": ids}
    actual = {(h.path, h.head): h.importance for h in hw.head_importance(model, batch)}
    masks = {}
    for path, module in attentions_of(model).items():
        heads = 8 if "moa" in str(plan) else module.num_heads
        masks[path] = torch.ones(heads, dtype=torch.float64, requires_grad=True)
        module.combine = partial(masked, module.combine, masks[path])
    grads = torch.autograd.grad(model(**batch).token_loss, masks.values())
    expected = {
        (p, h): x for p, g in zip(masks, grads, strict=True) for h, x in enumerate(g.abs().tolist())
    }
    assert actual == pytest.approx(expected, rel=1e-9, abs=1e-12) and max(actual.values()) > 1e-4


def test_importance_for_several_classes_of_an_item():
    """By the mean binary cross entropy, which is the loss of such a model."""
    config = build("roberta").config
    config.num_labels, config.problem_type = 3, "multi_label_classification"
    model = tf.RobertaForSequenceClassification(config).eval()
    batch = {"input_ids": tokens(4, 5), "labels": torch.rand(4, 3).round()}

    def loss(model, batch):
        logits = model(batch["input_ids"]).logits
        labels = batch["labels"]
        return -(labels * logits + F.logsigmoid(-logits)).mean(1)

    actual, expected = (hw.head_importance(model, batch, loss=each) for each in (None, loss))
    assert [h[:4] for h in actual] == [h[:4] for h in expected]
    assert [h.importance for h in actual] == pytest.approx([h.importance for h in expected])


def test_a_module_of_ones_own_with_a_loss_of_ones_own():
    layer = nn.ModuleDict({"attention": hw.MultiHeadAttention(16, 4), "norm": nn.LayerNorm(16)})

    def loss(module, x):
        return module["norm"](module["attention"](x).output).pow(3).sum((1, 2))

    x = torch.randn(5, 6, 16)
    pairs, ones = (hw.head_importance(layer, x.split(size), loss=loss) for size in (2, 1))
    assert [h.importance for h in pairs] == pytest.approx([h.importance for h in ones], rel=1e-4)
    assert {head.path for head in pairs} == {"attention"}
    refused({"shape", "(items,)"}, hw.head_importance, layer, [x], loss=lambda *a: loss(*a).sum())


def _broken():
    model = build("gpt2")
    model.lm_head.weight.data[0] = math.nan
    return model


IDS = tokens(2, 6)
REFUSED = [
    (lambda: build("gpt2"), [], {"data", "label"}),
    (lambda: build("gpt2"), {"input_ids": IDS}, {"labels", "mapping"}),
    (lambda: build("gpt2"), [IDS], {"Tensor", "labels"}),
    (lambda: build("gpt2"), {"input_ids": IDS, "labels": IDS * 0 - 100}, {"label", "-100"}),
    (_broken, {"input_ids": IDS, "labels": IDS}, {"loss", "nan", "finite"}),
    (lambda: nn.Linear(2, 2), [], {"Linear", "attention"}),
]


@pytest.mark.parametrize(("make", "data", "must_name"), REFUSED)
def test_what_cannot_be_measured_is_refused(make, data, must_name):
    refused(must_name, hw.head_importance, make(), data)
