"""The laws over all models with all systems: padding, the future, steps, copies, precision."""

import copy
import pickle
import tempfile

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.strategies import SIDES, paddings
from support.tiny_models import PLANS, QUICK, ModelSubject, blocks, inputs, model

from headwise.testing import laws

_EXAMPLES = settings().max_examples  # of the profile; a law is some ten passes of a model
FEW = settings(max_examples=max(1, _EXAMPLES // 5))
IS_QUICK = _EXAMPLES < 10
SYSTEMS = QUICK if IS_QUICK else tuple(PLANS)
# Models that are like others but for what stands in front of their layers or behind them.
RELATED = ("adaptive", "images", "masked", "regression", "speech")
seeds = st.integers(0, 1000)


def every_model(*kinds, also=RELATED):
    """Cases of these kinds of models with all systems, and of those that are like them."""
    cases = [(kind, system) for kind in kinds for system in SYSTEMS]
    more = [(kind, system) for kind in also for system in ("standard", "moa")]
    return pytest.mark.parametrize(("kind", "system"), cases if IS_QUICK else cases + more)


def subject(kind, system, **options):
    return ModelSubject(kind, model(kind, system, **options))


@pytest.mark.quick
@every_model("causal", "classifier", "seq2seq")
@FEW
@given(data=st.data(), seed=seeds)
def test_padding(kind, system, data, seed):
    net = subject(kind, system, **data.draw(blocks(kind)))
    padding = data.draw(paddings(3, 5, ("right",) if kind == "speech" else SIDES))
    source = data.draw(paddings(3, 4)) if kind == "seq2seq" else None
    if source is not None:  # each row has a source and a target
        source[:, -1] = padding[:, -1] = False
    laws.padding_changes_nothing(net, padding, memory_padding=source, seed=seed)


@pytest.mark.parametrize("pooling", ["first", "mean"])
@pytest.mark.parametrize("kind", ["classifier", "regression"])
def test_what_is_pooled_is_real(kind, pooling):
    padding = torch.tensor([[True, True, False, False, False], [False, False, False, True, True]])
    laws.padding_changes_nothing(subject(kind, "standard", pooling=pooling), padding)


@pytest.mark.quick
@every_model("causal", "seq2seq", also=("adaptive", "images", "speech"))
@FEW
@given(data=st.data(), seed=seeds)
def test_future(kind, system, data, seed):
    options = data.draw(blocks(kind)) | ({"lookahead": 0} if kind == "speech" else {})
    laws.hidden_changes_nothing(subject(kind, system, **options), rows=2, time=5, seed=seed)


@pytest.mark.quick
@every_model("causal", "seq2seq", also=("adaptive", "images"))
@FEW
@given(data=st.data(), seed=seeds, left=st.booleans())
def test_steps(kind, system, data, seed, left):
    """Read in steps, whose rows a beam search reorders, a text is what it is at once."""
    net = subject(kind, system, **data.draw(blocks(kind)))
    padding = torch.tensor([[1, 1, 0], [0, 0, 0], [1, 0, 0]]).bool() if left else None
    laws.steps_equal_one_pass(net, padding=padding, seed=seed)


@pytest.mark.parametrize("kind", ["causal", "seq2seq"])
@pytest.mark.parametrize("system", SYSTEMS)
def test_asking_for_attention_weights_shows_no_future(kind, system):
    net, kwargs = model(kind, system), inputs(kind)
    out = net(**kwargs, output_attentions=True)
    torch.testing.assert_close(out.logits, net(**kwargs).logits)
    assert len(out.attentions) == 2 and not any(w.triu(1).any() for w in out.attentions)


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_source_of_padding_alone_is_read_as_nothing(system):
    net, kwargs = model("seq2seq", system), inputs("seq2seq")
    kwargs["attention_mask"] = torch.tensor([[1], [0], [1]]).expand_as(kwargs["input_ids"])
    out = net(**kwargs, labels=kwargs["decoder_input_ids"])
    out.loss.backward()
    assert out.logits.isfinite().all()
    assert all(p.grad.isfinite().all() for p in net.parameters() if p.grad is not None)
    kwargs["input_ids"][1] = 7
    torch.testing.assert_close(net(**kwargs).logits, out.logits)
    alone = {name: each[:1] for name, each in kwargs.items()}
    torch.testing.assert_close(net(**alone).logits, out.logits[:1])


def loaded(net):
    """A model that reads the weights of another."""
    copied = type(net)(net.config).to(next(net.parameters()).dtype)
    copied.load_state_dict(net.state_dict())
    return copied


def saved(net):
    """A model that was saved, and read from its folder."""
    with tempfile.TemporaryDirectory() as folder:
        net.save_pretrained(folder)
        return type(net).from_pretrained(folder)


def pickled(net):
    return pickle.loads(pickle.dumps(net))


@every_model("causal", "classifier", "seq2seq")
@FEW
@given(data=st.data(), copying=st.sampled_from([saved, copy.deepcopy, pickled, loaded]))
def test_copies_learning_and_nothing(kind, system, data, copying):
    net = subject(kind, system, **data.draw(blocks(kind)))
    laws.copies_are_their_own(net, copying)
    laws.every_weight_learns(net)
    laws.empty_is_empty(net)


@every_model("causal", "classifier", "seq2seq")
def test_evaluation_and_half_precision(kind, system):
    rates = {"dropout": 0.1, "attention_dropout": 0.1, "ffn_dropout": 0.1}
    laws.evaluation_draws_nothing(subject(kind, system, **rates))
    # EM tells clusters apart more sharply with each iteration, and so enlarges what is rounded:
    # in float32 too, to sixty times its precision after six layers.
    if kind != "adaptive":
        near = 1.0 if system == "agreement" else 0.1
        laws.half_precision_is_near(subject(kind, system), near=near)


@pytest.mark.quick
@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary"])
def test_the_first_layer_reads_tokens_and_their_positions(positions, scaled):
    """Padding takes no position; the scale is the root of the width, as published."""
    net = model("causal", positions=positions, scale_embeddings=scaled)
    ids, mask = torch.tensor([[3, 4, 5, 6]]), torch.tensor([[0, 1, 1, 1]])
    words, scale = net.get_input_embeddings()(ids)[0, 1:], 4.0 if scaled else 1.0
    kwargs = {"input_ids": ids, "attention_mask": mask, "output_hidden_states": True}
    found = net(**kwargs).hidden_states[0][0, 1:] - scale * words
    if positions == "learned":
        (table,) = (p for p in net.parameters() if p.shape == (net.config.max_positions, 16))
        expected = scale * table[:3]
    elif positions == "rotary":
        expected = torch.zeros(3, 16)
    else:
        angles = torch.arange(3).unsqueeze(1) / 10_000 ** (torch.arange(0, 16, 2) / 16)
        expected = torch.stack([angles.sin(), angles.cos()], -1).flatten(1)
    torch.testing.assert_close(found, expected.double(), rtol=1e-5, atol=1e-6)
