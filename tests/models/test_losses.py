"""The losses of all models, label by label: what is predicted, what is left out, what is added."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from support.tiny_models import END, KINDS, PAD, START, inputs, labels, model, systems_of, tokens

import headwise as hw
from headwise.models.text import shift_right

WITH_LABEL_SMOOTHING = ("causal", "images", "masked", "seq2seq")
BALANCED = ("moa", "moh")  # the systems that add a loss of their own
seeds = st.integers(0, 1000)


def by_hand(kind, logits, targets, smoothing=0.0):
    """The loss of each label that is not -100, `(labels,)`, in plain loops."""
    if kind in ("causal", "adaptive", "images"):  # each token is predicted from those before it
        logits, targets = logits[:, :-1], targets[:, 1:]
    losses = []
    if kind in ("regression", "speech"):
        for predicted, target in zip(logits.flatten(), targets.flatten(), strict=True):
            if target != -100:
                losses.append((predicted - target) ** 2)
        return torch.stack(losses)
    for row, target in zip(logits.flatten(0, -2), targets.flatten().tolist(), strict=True):
        if target != -100:
            log_p = row - row.exp().sum().log()
            losses.append(-(1 - smoothing) * log_p[target] - smoothing * log_p.mean())
    return torch.stack(losses)


def shifted(targets, start=START):
    """What a decoder reads: the start token, then all labels but the last."""
    rows = [[start, *row[:-1]] for row in targets.tolist()]
    return torch.tensor([[PAD if token == -100 else token for token in row] for row in rows])


def batch(kind, seed, rows=3, time=6):
    """Inputs and labels; of a translation only the source is given."""
    kwargs = {**inputs(kind, rows, time, seed), "labels": labels(kind, rows, time, seed)}
    kwargs.pop("decoder_input_ids", None)
    return kwargs


def compute_logits(kind, net, kwargs):
    """The logits of a pass without labels."""
    inputs_alone = {name: value for name, value in kwargs.items() if name != "labels"}
    if kind == "seq2seq":
        inputs_alone["decoder_input_ids"] = shifted(kwargs["labels"])
    return net(**inputs_alone).logits


@pytest.mark.parametrize("system", ["standard", "mae"])
@pytest.mark.parametrize("kind", KINDS)
@given(seed=seeds)
def test_the_loss_is_the_mean_over_the_labels(kind, system, seed):
    """A label of -100 is not predicted; in a target its position is seen all the same."""
    smoothing = {"label_smoothing": 0.3} if kind in WITH_LABEL_SMOOTHING else {}
    net, kwargs = model(kind, system, **smoothing), batch(kind, seed)
    expected = by_hand(kind, compute_logits(kind, net, kwargs), kwargs["labels"])
    torch.testing.assert_close(net(**kwargs).loss, expected.mean())


@pytest.mark.parametrize("kind", WITH_LABEL_SMOOTHING)
@given(seed=seeds, smoothing=st.sampled_from([0.0, 0.1, 0.6]))
def test_labels_are_smoothed_in_training_alone(kind, seed, smoothing):
    net, kwargs = model(kind, label_smoothing=smoothing), batch(kind, seed)
    logits = compute_logits(kind, net, kwargs)
    for smooth in (0.0, smoothing):
        expected = by_hand(kind, logits, kwargs["labels"], smooth).mean()
        torch.testing.assert_close(net(**kwargs).loss, expected)
        net.train()


def test_nothing_is_predicted_from_padding():
    net, ids, mask = model("causal"), tokens(2, 5), torch.ones(2, 5, dtype=torch.long)
    mask[0, :2] = 0
    targets = ids.masked_fill(mask == 0, -100)
    found = net(ids, attention_mask=mask, labels=targets).loss
    targets[0, 2] = -100
    torch.testing.assert_close(found, net(ids, attention_mask=mask, labels=targets).loss)


@pytest.mark.parametrize("kind", KINDS)
@given(seed=seeds, as_tensor=st.booleans())
def test_accumulated_batches_have_the_loss_of_one(kind, seed, as_tensor):
    """Batches with other numbers of labels, each divided by the number of all of them."""
    net, whole = model(kind).train(), batch(kind, seed, rows=4)
    expected = net(**whole).loss
    targets = (
        whole["labels"][:, 1:] if kind in ("causal", "adaptive", "images") else whole["labels"]
    )
    count = (targets != -100).sum()
    parts = [{name: value[rows] for name, value in whole.items()} for rows in ([0], [1, 2, 3])]
    count = count if as_tensor else count.item()
    total = sum(net(**part, num_items_in_batch=count).loss for part in parts)
    torch.testing.assert_close(total, expected)


@pytest.mark.parametrize("system", BALANCED)
@pytest.mark.parametrize("kind", ["causal", "masked", "classifier", "seq2seq", "speech"])
def test_training_adds_what_the_systems_add(kind, system):
    """Once, whatever the number of accumulated batches, and not to what is predicted."""
    net, kwargs, added = model(kind, system).train(), batch(kind, seed=5), []
    for module in systems_of(net).values():
        module.register_forward_hook(lambda _, args, out: added.append(out.routing.loss))
    loss = net(**kwargs).loss
    assert len(added) == len(systems_of(net)) and all(each > 0 for each in added)
    task_losses = by_hand(kind, compute_logits(kind, model(kind, system), kwargs), kwargs["labels"])
    torch.testing.assert_close(loss, task_losses.mean() + sum(added[: len(systems_of(net))]))
    # The same batch three times: a step of accumulated batches has the loss of each of them.
    three_times = net(**kwargs, num_items_in_batch=3 * len(task_losses)).loss * 3
    torch.testing.assert_close(three_times, loss)
    gates = torch.autograd.grad(loss, hw.gate_parameters(net))
    assert all(gradient.abs().sum() > 0 for gradient in gates)
    torch.testing.assert_close(net.eval()(**kwargs).loss, task_losses.mean())


@pytest.mark.parametrize("system", ["standard", "moa"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_without_labels_to_predict_has_a_loss_of_zero(kind, system):
    """But what systems add."""
    net, kwargs = model(kind, system).train(), batch(kind, seed=3)
    kwargs["labels"] = torch.full_like(kwargs["labels"], -100)
    out = net(**kwargs)
    out.loss.backward()
    gradients = [p.grad for p in net.parameters() if p.grad is not None]
    assert all(gradient.isfinite().all() for gradient in gradients)
    if system == "standard":
        assert out.loss == 0
    else:
        assert out.loss > 0
        torch.testing.assert_close(out.loss, out.auxiliary_loss)


@given(
    rows=st.lists(st.lists(st.sampled_from([7, 8, END, -100]), min_size=5, max_size=5), min_size=1)
)
@example(rows=[[7, -100, 8, END, -100]])
def test_a_decoder_reads_the_labels_behind_the_start_token(rows):
    targets = torch.tensor(rows)
    assert torch.equal(shift_right(targets, START, None), shift_right(targets, START, START))
    with pytest.raises(ValueError, match="decoder_start_token_id"):
        model("seq2seq", bos_token_id=None)
    for start in (START, 11):
        net = model("seq2seq", decoder_start_token_id=start)
        expected = shifted(targets, start)
        assert torch.equal(net.prepare_decoder_input_ids_from_labels(targets), expected)


@given(seed=seeds)
def test_adaptive_logits_are_log_probabilities(seed):
    """Within a band of rarer words they differ as the products with the words' embeddings do."""
    net, ids = model("adaptive"), inputs("adaptive", seed=seed)["input_ids"]
    log_p = net(ids).logits
    torch.testing.assert_close(log_p.exp().sum(-1), torch.ones(3, 6, dtype=torch.float64))
    words = net.get_input_embeddings()(torch.arange(log_p.size(-1)))
    products = net.base_model(ids).last_hidden_state @ words.T
    for first, last in ((6, 12), (12, log_p.size(-1))):
        band, band_products = log_p[..., first:last], products[..., first:last]
        torch.testing.assert_close(band - band[..., :1], band_products - band_products[..., :1])


@pytest.mark.parametrize("word", [-1, 23, 5000])
@pytest.mark.parametrize("kind", ["causal", "adaptive"])
def test_a_word_outside_the_vocabulary_is_refused(kind, word):
    with pytest.raises(IndexError):
        model(kind)(torch.tensor([[7, word]]))


@pytest.mark.parametrize("kind", ["causal", "adaptive"])
def test_under_autocast_the_sum_over_layers_stays_in_float32(kind):
    net, kwargs = model(kind).float(), batch(kind, seed=4)
    expected = net(**kwargs).loss
    with torch.autocast("cpu", torch.bfloat16):
        out = net(**kwargs)
    assert out.last_hidden_state.dtype == out.loss.dtype == torch.float32
    torch.testing.assert_close(out.loss, expected, rtol=0.1, atol=0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_losses_are_summed_in_float32_at_least(kind):
    net, kwargs = model(kind), batch(kind, seed=4)
    expected = net(**kwargs).loss
    found = net.to(torch.bfloat16)(**kwargs).loss
    assert found.dtype in (torch.float32, torch.float64)
    torch.testing.assert_close(found.double(), expected, rtol=0.1, atol=0.1)


REFUSED_MASKS = [[0.0, 0.0, -1e4, -1e4], [0.0, 0.0, 0.0, -float("inf")], [1.0, 1.0, 0.5, 0.0]]


@pytest.mark.parametrize("mask", REFUSED_MASKS, ids=str)
@pytest.mark.parametrize("kind", ["causal", "classifier", "seq2seq", "speech"])
def test_a_mask_that_is_added_to_scores_is_refused(kind, mask):
    """It would be read the other way round; one of ones and zeros may have any type."""
    net, kwargs = model(kind), inputs(kind, rows=1, time=4)
    with pytest.raises(ValueError, match="1 at tokens and 0 at padding"):
        net(**kwargs, attention_mask=torch.tensor([mask]))
    found = [
        net(**kwargs, attention_mask=torch.tensor([[1, 1, 1, 0]]).to(dtype)).logits
        for dtype in (torch.bool, torch.long, torch.float32)
    ]
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


@pytest.mark.parametrize("kind", ["causal", "masked", "classifier", "seq2seq"])
def test_several_texts_in_a_row_are_refused(kind):
    """Their positions would start anew; no model takes any."""
    with pytest.raises(TypeError, match="position_ids"):
        model(kind)(**inputs(kind), position_ids=torch.tensor([[0, 1, 2, 0, 1, 2]] * 3))
