"""Plans of attention: which system stands where, which options it has, and what is refused."""

import copy
import json

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from hypothesis import given
from hypothesis import strategies as st
from support.tiny_models import PLANS, config, model, systems_of, tokens

import headwise as hw
from headwise.models.parameters import decayed_parameters
from headwise.models.plan import SYSTEMS

NAMES = {system: name for name, system in SYSTEMS.items()}
# Weighted takes the place of the feed-forward too, TIM that of a whole layer.
ANYWHERE = sorted(SYSTEMS.keys() - {"weighted", "tim"})
OPTIONS = {
    name: plan if isinstance(plan, dict) else {"system": name} for name, plan in PLANS.items()
}
SITES = ("encoder_self", "decoder_self", "decoder_cross")


def build(plan, encoder=2, decoder=2, **options):
    """An encoder-decoder without weights."""
    sizes = {"encoder_layers": encoder, "decoder_layers": decoder, **options}
    with torch.device("meta"):
        return hw.Seq2SeqLM(config("seq2seq", attention=plan, **sizes))


def parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


@st.composite
def placements(draw):
    """The name of a system for each site of three layers."""
    found = {}
    for layer in range(3):
        whole = draw(st.booleans())  # a layer of TIM, in which nothing else stands
        found["encoder_self", layer] = draw(st.sampled_from(list(SYSTEMS)))
        found["decoder_self", layer] = "tim" if whole else draw(st.sampled_from(ANYWHERE))
        behind = ["standard"] if whole else [*ANYWHERE, "weighted"]
        found["decoder_cross", layer] = draw(st.sampled_from(behind))
    return found


@given(expected=placements())
def test_any_plan_stands_as_it_is_written(expected):
    """By sites and layers, also of a configuration that was written to JSON and read."""
    plan = {site: [] for site in SITES}
    for (site, layer), name in expected.items():
        plan[site].append({**OPTIONS[name], "layers": [layer]})
    before = copy.deepcopy(plan)
    net = build(plan, 3, 3)
    assert plan == before  # it is not written into
    config_read = hw.Seq2SeqLMConfig.from_dict(json.loads(net.config.to_json_string()))
    with torch.device("meta"):
        net_read = hw.Seq2SeqLM(config_read)
    for each in (net, net_read):
        found = {place: NAMES[type(module)] for place, module in systems_of(each).items()}
        in_others = {("decoder_cross", i) for (_, i), name in found.items() if name == "tim"}
        assert found == {place: expected[place] for place in expected if place in found}
        assert expected.keys() - found.keys() <= in_others
    assert parameters(net) == parameters(net_read)


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        ("mae", {"encoder_self": "mmmm", "decoder_self": "mmm", "decoder_cross": "mmm"}),
        ({"encoder_self": "mae"}, {"encoder_self": "mmmm"}),
        ({"decoder_cross": {"system": "mae", "layers": [2, 0]}}, {"decoder_cross": "msm"}),
        ({"system": "mae", "layers": "low"}, dict(zip(SITES, ("mmss", "mms", "mms"), strict=True))),
        ({"encoder_self": {"system": "mae", "layers": "middle"}}, {"encoder_self": "ssms"}),
        (
            {"encoder_self": {"system": "agreement", "layers": "low"}},
            {"encoder_self": "aass"},
        ),  # as in its paper
        ("weighted", {"encoder_self": "wwww", "decoder_cross": "www"}),  # before a feed-forward
        ("tim", {"encoder_self": "ssts"}),  # as in its paper, but the first two and the last
    ],
    ids=str,
)
def test_what_is_not_named_is_standard(plan, expected):
    found = dict.fromkeys(SITES, "")
    for (site, _), module in sorted(systems_of(build(plan, 4, 3)).items()):
        found[site] += NAMES[type(module)][0]
    assert found == dict(zip(SITES, ("ssss", "sss", "sss"), strict=True)) | expected


def test_options_are_those_of_the_constructor():
    systems = systems_of(build({"encoder_self": PLANS["moa"], "decoder_cross": PLANS["moh"]}))
    moa, moh = systems["encoder_self", 1], systems["decoder_cross", 0]
    assert (moa.num_experts, moa.top_k, moa.head_dim) == (5, 2, 4)
    assert (moh.shared_heads, moh.top_k) == (1, 2)
    paper = build({"system": "weighted", "preset": "paper"})
    assert parameters(paper) != parameters(build("weighted"))
    authors = {"system": "moa", "preset": "authors", "per_batch": False}  # what is named wins
    moa = systems_of(build(authors))["encoder_self", 0]
    assert not moa.normalize_weights and not moa.per_batch
    for name in ANYWHERE:  # what the model sets reaches every system
        systems = systems_of(build(OPTIONS[name], num_key_value_heads=2, attention_dropout=0.25))
        found = {(module.num_key_value_heads, module.dropout) for module in systems.values()}
        assert found == {(2, 0.25)}


REFUSED = [
    (7, {"attention", "7"}),
    ({"system": "mae", "embed_dim": 2}, {"mae", "embed_dim"}),
    ({"system": "moa", "size": "8x"}, {"size", "8x", "8K32E64D"}),
    ({"system": "mae", "layers": "lowest"}, {"layers", "lowest", "low", "middle"}),
    ({"system": "mae", "layers": 1.5}, {"layers", "1.5"}),
    ({"system": "mae", "layers": None}, {"layers", "None"}),
    ({"encoder_self": ["mae", {"system": "gated", "layers": [0]}]}, {"encoder_self", "0"}),
    ("tim", {"tim", "2"}),  # none of two layers is left for it
    ({"decoder_self": "weighted"}, {"weighted", "decoder_self", "decoder_cross"}),
    ({"decoder_self": PLANS["tim"], "decoder_cross": "mae"}, {"tim", "mae", "decoder_cross"}),
    ("headwise:NoHeads", {"headwise", "NoHeads"}),
]


@pytest.mark.parametrize(("plan", "must_name"), REFUSED, ids=range(len(REFUSED)))
def test_what_cannot_stand_is_refused_by_name(plan, must_name):
    with pytest.raises((ValueError, TypeError, StrictDataclassError)) as error:
        build(plan)
    assert not [name for name in must_name if name not in str(error.value)], error.value


class Scaled(hw.MultiHeadAttention):
    """A system of a user's own."""

    def __init__(self, embed_dim, num_heads, scale=1.0, **options):
        super().__init__(embed_dim, num_heads, **options)
        self.scale = scale

    def forward(self, query, *args, **options):
        return super().forward(self.scale * query, *args, **options)


def test_a_system_of_ones_own_stands_where_it_is_named(tmp_path):
    """By its module, which is imported, and its class; with its options, saved and loaded."""
    plan = {"system": f"{__name__}:{Scaled.__name__}", "scale": 2.0, "layers": [1]}
    net, ids = model("causal", plan, positions="rotary", qk_norm=True), tokens(2, 5)
    first, second = systems_of(net).values()
    assert (type(first), type(second), second.scale) == (hw.MultiHeadAttention, Scaled, 2.0)
    net.save_pretrained(tmp_path)
    loaded = hw.CausalLM.from_pretrained(tmp_path)
    torch.testing.assert_close(loaded(ids).logits, net(ids).logits)


def test_numbers_of_parameters():
    """Of the transformer by hand, and of the speech paper's baseline, six millions."""
    d, f, words = 16, 24, 23 * 16
    layer = 4 * (d * d + d) + (d * f + f) + (f * d + d) + 4 * d
    modern = {"bias": False, "norm_kind": "rms", "ffn_activation": "swiglu", "norm": "pre"}
    for kind, options, expected in (
        ("causal", {}, words + 2 * layer),
        ("causal", {"positions": "learned", "max_positions": 9}, words + 9 * d + 2 * layer),
        ("causal", modern, words + 2 * (4 * d * d + 3 * d * f + 2 * d) + d),
        ("causal", {"num_key_value_heads": 2}, words + 2 * (layer - d * d - d)),
        ("seq2seq", {}, words + 4 * layer + 2 * (4 * (d * d + d) + 2 * d)),
    ):
        assert parameters(model(kind, **options)) == expected, (kind, options)
    with torch.device("meta"):
        baseline = hw.SpeechEnhancer(hw.SpeechEnhancerConfig())
    assert parameters(baseline) == pytest.approx(6e6, rel=0.03)


def test_weight_decay_spares_what_a_system_names():
    """Beside biases, norms and vectors: the norms of mechanisms are matrices that start as ones."""
    layer = systems_of(build(PLANS["tim"]))["encoder_self", 0]
    assert layer.no_decay
    decayed = {id(parameter) for parameter in decayed_parameters(layer)}
    named = dict(layer.named_parameters())
    spared = [name for name, parameter in named.items() if id(parameter) not in decayed]
    assert all(name in spared for name in named if name.startswith(layer.no_decay))
    assert any(named[name].dim() > 1 for name in spared) and len(spared) < len(named)
