"""What holds for every model and every system that fits it."""

import copy

import pytest
import torch
from tiny import MOA, PAD, VOCABULARY, strengthen, tokens

import headwise as hw
from headwise.analysis.cost import forward_macs, measure_macs, model_cost
from headwise.models.base import HeadwiseModel, model_class
from headwise.models.classifier import SequenceClassifierConfig
from headwise.models.masked_lm import MaskedLMConfig
from headwise.models.plan import SYSTEMS
from headwise.models.sites import attention_sites
from headwise.models.speech import SpeechEnhancerConfig

SIZES = {"embed_dim": 16, "num_heads": 4, "ffn_dim": 24, "layers": 2, "dropout": 0.0}
WORDS = {"vocab_size": VOCABULARY, **SIZES}
PAIRS = {"encoder_layers": 2, "decoder_layers": 2, **WORDS}
del PAIRS["layers"]
LENGTHS, TIME = [6, 2, 4], 6
LEARNED = {"ffn_activation": "gelu", "positions": "learned", "max_positions": 11}

# As Llama and Qwen have them.
MODERN = {
    "positions": "rotary",
    "rope_parameters": {"rope_theta": 50.0},
    "norm": "pre",
    "norm_kind": "rms",
    "norm_eps": 1e-6,
    "ffn_activation": "swiglu",
    "num_key_value_heads": 2,
    "qk_norm": True,
    "bias": False,
    "scale_embeddings": False,
}

CONFIGS = {
    "causal": lambda **plan: hw.CausalLMConfig(**WORDS, **plan),
    "adaptive": lambda **plan: hw.CausalLMConfig(**WORDS, adaptive_cutoffs=[6, 12], **plan),
    "masked": lambda **plan: MaskedLMConfig(**WORDS, **plan),
    "classifier": lambda **plan: SequenceClassifierConfig(**WORDS, classes=["a", "b"], **plan),
    "regression": lambda **plan: SequenceClassifierConfig(**WORDS, problem="regression", **plan),
    "seq2seq": lambda **plan: hw.Seq2SeqLMConfig(**PAIRS, **plan),
    "speech": lambda **plan: SpeechEnhancerConfig(
        sampling_rate=500, front_channels=[8], ffn_activation="leaky-relu", **SIZES, **plan
    ),
    # As minGPT and BERT have them.
    "causal, learned": lambda **plan: hw.CausalLMConfig(**WORDS, **LEARNED, **plan),
    "masked, learned": lambda **plan: MaskedLMConfig(**WORDS, **LEARNED, **plan),
    "causal, modern": lambda **plan: hw.CausalLMConfig(**WORDS, **MODERN, **plan),
    "masked, modern": lambda **plan: MaskedLMConfig(**WORDS, **MODERN, **plan),
    "classifier, modern": lambda **plan: SequenceClassifierConfig(
        **WORDS, **MODERN, classes=["a", "b"], **plan
    ),
    "seq2seq, modern": lambda **plan: hw.Seq2SeqLMConfig(**PAIRS, **MODERN, **plan),
}
PLANS = {
    "standard": "standard",
    "weighted": "weighted",
    "agreement": "agreement",
    "mae": "mae",
    "mae window": {"system": "mae", "gate_window": 2},
    "tim": {"system": "tim", "layers": "all"},
    "moa": MOA,
    "gated": "gated",
    "softplus": {"system": "gated", "gate_activation": "softplus", "gate_inputs": 5},
    "differential": "differential",
    "moh": {"system": "moh", "shared_heads": 1, "top_k": 2},
}
CAUSAL = ("causal", "adaptive", "causal, learned", "causal, modern", "speech")
EVERYTHING = [
    (kind, plan)
    for kind in CONFIGS
    for plan in PLANS
    # Two are others but for what stands behind the layers, two but for feed-forwards and positions.
    if kind not in ("adaptive", "regression") or plan in ("standard", "moa")
    if "learned" not in kind or plan in ("standard", "weighted", "tim")
]
every_model = pytest.mark.parametrize(("kind", "plan"), EVERYTHING)


def build(kind, plan, **options):
    torch.manual_seed(0)
    config = CONFIGS[kind](attention=PLANS[plan], **options)
    made = model_class(config)(config)
    strengthen(made)
    return made.eval()


def batch(kind, lengths=LENGTHS, time=TIME):
    """A padded batch, padding behind, with labels."""
    torch.manual_seed(1)
    real = torch.arange(max(time, TIME)) < torch.tensor(lengths).unsqueeze(1)
    if kind == "speech":
        bins = 9
        frames, clean = torch.rand(2, len(lengths), max(time, TIME), bins)
        given = {
            "inputs": frames.masked_fill(~real.unsqueeze(-1), 0.0),
            "labels": clean.log().masked_fill(~real.unsqueeze(-1), -100.0),
        }
    else:
        ids = tokens(len(lengths), max(time, TIME)).masked_fill(~real, PAD)
        given = {"input_ids": ids, "labels": ids.masked_fill(~real, -100)}
        if kind.startswith(("causal", "adaptive")):
            given["labels"][:, 0] = -100
        elif kind.startswith("masked"):
            given["labels"] = given["labels"].masked_fill(torch.arange(ids.size(1)) % 2 == 0, -100)
        elif kind.startswith("classifier"):
            given["labels"] = torch.arange(len(lengths)) % 2
        elif kind == "regression":
            given["labels"] = torch.arange(len(lengths)) * 0.7
        elif kind.startswith("seq2seq"):  # targets as long as their sources
            given["decoder_input_ids"] = ids.roll(1, 1)
    given["attention_mask"] = real.long()
    of_sequence = ("labels",) if kind.startswith(("classifier", "regression")) else ()
    return {k: v if k in of_sequence else v[:, :time] for k, v in given.items()}


def alone(kind, given, row, length):
    """One sequence without its padding."""
    whole = given["labels"].dim() == 1
    return {
        name: value[row : row + 1] if whole and name == "labels" else value[row : row + 1, :length]
        for name, value in given.items()
        if name != "attention_mask"
    }


def without_labels(given):
    return {name: value for name, value in given.items() if name != "labels"}


def calm(made):
    """Gates without dropout, whose running statistics stay as they are."""
    for site in attention_sites(made):
        if isinstance(site.module, hw.MixtureOfAttentiveExperts):
            site.module.gate.dropout = 0.0
            site.module.gate.norm.momentum = 0.0
    return made


def count(labels):
    return int((labels != -100).sum())


def test_every_system_is_among_the_plans():
    named = {plan if isinstance(plan, str) else plan["system"] for plan in PLANS.values()}
    assert named == set(SYSTEMS)


@every_model
def test_the_plan_stands_in_every_layer(kind, plan):
    made = build(kind, plan)
    assert isinstance(made, HeadwiseModel)
    name = PLANS[plan] if isinstance(PLANS[plan], str) else PLANS[plan]["system"]
    placed = {place for place in attention_sites(made) if type(place.module) is SYSTEMS[name]}
    free = {"weighted": "decoder_self", "tim": "decoder_cross"}.get(name)
    sites = set(made.config.depths()) - ({free} if kind.startswith("seq2seq") else set())
    assert {(p.site, p.layer) for p in placed} == {(s, layer) for s in sites for layer in (0, 1)}


@every_model
def test_padding_changes_no_output_and_no_loss(kind, plan):
    made, given = build(kind, plan), batch(kind)
    together, logits = made(**given), made(**without_labels(given)).logits
    total = 0.0
    for row, length in enumerate(LENGTHS):
        one = alone(kind, given, row, length)
        expected = made(**without_labels(one)).logits[0]
        real = logits[row] if expected.dim() == 1 else logits[row, :length]
        torch.testing.assert_close(real, expected, rtol=1e-4, atol=1e-4)
        total += made(**one).token_loss * count(one["labels"])
    expected = total / count(given["labels"])
    torch.testing.assert_close(together.token_loss, expected, rtol=1e-4, atol=1e-4)


@every_model
def test_more_padding_changes_no_training_loss(kind, plan):
    results = []
    for time in (max(LENGTHS), max(LENGTHS) + 3):
        made = calm(build(kind, plan)).train().double()  # EM's gradients lose many digits
        given = batch(kind, time=time)
        if time > max(LENGTHS):  # the same sequences
            shorter = batch(kind)
            for name, value in shorter.items():
                given[name][tuple(slice(0, n) for n in value.shape)] = value
        out = made(**{n: v.double() if v.is_floating_point() else v for n, v in given.items()})
        out.loss.backward()
        gradients = [p.grad for p in made.parameters() if p.grad is not None]
        results.append([out.loss, *gradients, *made.buffers()])
    assert len(results[0]) == len(results[1]) > 1
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(("kind", "plan"), [(k, p) for k, p in EVERYTHING if k in CAUSAL])
@pytest.mark.parametrize("training", [False, True])
def test_the_future_changes_no_past_output(kind, plan, training):
    made, given = calm(build(kind, plan)), without_labels(batch(kind, [8, 8], 8))
    made.train(training)
    del given["attention_mask"]
    (name, values), ahead = next(iter(given.items())), 2 if kind == "speech" else 0
    with torch.no_grad():
        before = made(**given).logits
        for t in (1, 4, 7):
            changed = values.clone()
            other = torch.rand_like(values[:, t:]) if kind == "speech" else tokens(2, 8 - t)
            changed[:, t:] = other
            after = made(**{name: changed}).logits
            past = max(0, t - ahead)
            torch.testing.assert_close(after[:, :past], before[:, :past], rtol=1e-5, atol=1e-5)
            assert not torch.allclose(after[:, past:], before[:, past:], atol=1e-3)


@every_model
def test_losses_add_up(kind, plan):
    made, given = build(kind, plan), batch(kind)
    out = made(**given)
    assert (out.auxiliary_loss is not None) == (plan in ("moa", "moh"))
    expected = out.token_loss + (0 if out.auxiliary_loss is None else out.auxiliary_loss)
    torch.testing.assert_close(out.loss, expected)
    share = made(**given, num_items_in_batch=torch.tensor(40)).token_loss
    torch.testing.assert_close(share * 40 / count(given["labels"]), out.token_loss)
    given["labels"] = torch.full_like(given["labels"], -100)
    assert made(**given).token_loss == 0


@every_model
def test_saved_and_loaded_it_is_the_same(kind, plan, tmp_path):
    made, given = build(kind, plan), without_labels(batch(kind))
    made.save_pretrained(tmp_path)
    loaded = type(made).from_pretrained(tmp_path)
    configs = [each.config.to_dict() for each in (loaded, made)]
    assert all(config.pop("_name_or_path") is not None for config in configs)
    assert configs[0] == configs[1]
    state = made.state_dict()
    assert loaded.state_dict().keys() == state.keys()
    assert all(torch.equal(value, state[name]) for name, value in loaded.state_dict().items())
    # Elsewhere in memory, a processor may add in another order.
    torch.testing.assert_close(loaded(**given).logits, made(**given).logits)


@every_model
def test_a_copy_is_the_same_and_its_own(kind, plan):
    made, given = build(kind, plan), without_labels(batch(kind))
    twin = copy.deepcopy(made)
    before = made(**given).logits
    torch.testing.assert_close(twin(**given).logits, before)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(0.1)
    assert torch.equal(made(**given).logits, before)
    assert not torch.allclose(twin(**given).logits, before, atol=1e-3)


@every_model
def test_a_sequence_of_one(kind, plan):
    made = build(kind, plan)
    out = made(**without_labels(batch(kind, [1, 1], 1)))
    assert out.logits.isfinite().all()
    assert made(**batch(kind, [1, 1], 1)).loss.isfinite()  # a language model predicts nothing


@every_model
def test_half_precision_learns(kind, plan):
    made, given = calm(build(kind, plan)).train(), batch(kind)
    full = made(**given).token_loss
    with torch.autocast("cpu", torch.bfloat16):
        out = made(**given)
    out.loss.backward()
    assert out.token_loss.dtype == torch.float32
    assert out.token_loss.item() == pytest.approx(full.item(), rel=0.1)
    gradients = [p.grad for p in made.parameters() if p.grad is not None]
    assert gradients and all(grad.isfinite().all() for grad in gradients)


@every_model
def test_every_weight_learns(kind, plan):
    made = build(kind, plan).train()
    made(**batch(kind)).loss.backward()
    assert [name for name, p in made.named_parameters() if p.grad is None] == []


@pytest.mark.parametrize("plan", ["weighted", "tim"])
def test_systems_with_a_feed_forward_inside_take_the_model_s_activation(plan):
    made = build("masked, learned", plan)
    assert [site.module.ffn_activation for site in attention_sites(made)] == ["gelu", "gelu"]


@pytest.mark.parametrize("kind", ["causal, learned", "masked, learned"])
def test_no_more_tokens_than_learned_positions(kind):
    made, limit = build(kind, "standard"), LEARNED["max_positions"]
    ids = tokens(2, limit + 2)
    ids[0, :2] = ids[1, -2:] = PAD  # padding takes no position
    assert made(input_ids=ids, attention_mask=(ids != PAD).long()).logits.isfinite().all()
    ids[0, 1] = 5
    with pytest.raises(ValueError, match=f"a sequence has 12 tokens, expected at most {limit}"):
        made(input_ids=ids, attention_mask=(ids != PAD).long())
    with pytest.raises(ValueError, match="a sequence has 13 tokens"):
        made(input_ids=ids)


def test_the_compiler_takes_learned_positions():
    torch.compiler.reset()
    made, given = build("causal, learned", "standard"), without_labels(batch("causal"))
    compiled = torch.compile(made, backend="aot_eager")
    torch.testing.assert_close(compiled(**given).logits, made(**given).logits)


@pytest.mark.parametrize("kind", CONFIGS)
def test_an_argument_that_it_does_not_know_is_an_error(kind):
    with pytest.raises(TypeError, match="head_mask is not an argument"):
        build(kind, "standard")(**batch(kind), head_mask=torch.ones(2, 4))


def test_a_configuration_without_a_model_is_an_error():
    class Strange(hw.CausalLMConfig):
        def __init__(self):
            super().__init__(**WORDS)

    with pytest.raises(ValueError, match="config is a Strange, expected"):
        model_class(Strange())


# What it costs


@pytest.mark.parametrize("plan", ["standard", "tim", "moa", "gated", "differential", "moh"])
@pytest.mark.parametrize("kind", [kind for kind in CONFIGS if "seq2seq" not in kind])
def test_formulas_are_what_the_flop_counter_counts(kind, plan):
    made = build(kind, plan)
    (stack,) = {place.site.partition("_")[0] for place in attention_sites(made)}
    formula = sum(forward_macs(made, {stack: 7}))
    assert model_cost(made.config, {stack: 7}).macs == formula
    # Every band of adaptive embeddings looks at every word of the input.
    more = 7 * (16 * 4 + 16 * 1) if kind == "adaptive" else 0
    assert measure_macs(made, {stack: 7}) == formula + more


@pytest.mark.parametrize("kind", CONFIGS)
def test_transformers_finds_embeddings_where_tokens_are_read(kind):
    model = build(kind, "standard")
    if kind == "speech":
        with pytest.raises(NotImplementedError, match="SpeechEnhancer"):
            model.get_input_embeddings()
        assert model.get_output_embeddings() is None
        return
    embedding = model.get_input_embeddings()
    assert embedding is getattr(model, "encoder", getattr(model, "decoder", None)).embedding
    other = copy.deepcopy(embedding)
    model.set_input_embeddings(other)
    assert model.get_input_embeddings() is other
    head = None if kind == "adaptive" else getattr(model, "lm_head", None)
    assert model.get_output_embeddings() is head
