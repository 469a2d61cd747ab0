import pytest
import torch

import headwise as hw
from headwise.heads.system import Place
from headwise.models.plan import build_system, layer_specs
from headwise.models.trust import trusting

SITES = ("encoder_self", "decoder_self", "decoder_cross")
STANDARD = {"system": "standard"}


def specs_of(plan, encoder=2, decoder=2):
    depths = {"encoder_self": encoder, "decoder_self": decoder, "decoder_cross": decoder}
    return layer_specs(plan, depths)


def test_a_name_stands_at_every_site_and_layer():
    for site in SITES:
        assert specs_of("mae", 3, 3)[site] == [{"system": "mae"}] * 3


def test_what_is_not_named_is_standard():
    plan = {"decoder_cross": {"system": "mae", "dropped_heads": 2, "layers": [2, 0]}}
    mae = {"system": "mae", "dropped_heads": 2}
    assert specs_of(plan, 2, 4)["decoder_cross"] == [mae, STANDARD, mae, STANDARD]
    assert specs_of(plan, 2, 4)["encoder_self"] == [STANDARD] * 2
    assert plan["decoder_cross"]["layers"] == [2, 0]  # the plan is not written into


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ("standart", "system 'standart', .*standard, weighted, agreement, mae.*mean 'standard'"),
        (7, "attention is 7, .*standard, weighted, agreement, mae.*encoder_self"),
        ({"encoder_slf": "mae"}, "site 'encoder_slf'.*decoder_cross.*mean 'encoder_self'"),
        ({"encoder_self": "transformer"}, "attention.encoder_self.*'transformer'.*moa"),
        ({"encoder_self": {"layers": [0]}}, "attention.encoder_self.*an entry has no .system"),
        ({"encoder_self": [3]}, "attention.encoder_self is 3.*a list"),
        ({"decoder_self": {"system": "mae", "droped_heads": 2}}, "mae 'droped_heads'.*mean 'drop"),
        ({"decoder_self": {"system": "mae", "embed_dim": 2}}, "option of mae 'embed_dim'"),
        ({"decoder_self": {"system": "moa", "size": "8x"}}, "size is '8x'.*8K32E64D"),
        ({"decoder_self": {"system": "moa", "size": 8}}, "decoder_self.size is 8.*string"),
        ({"decoder_self": {"system": "mae", "layers": 1}}, "attention.decoder_self.layers is 1"),
        ({"decoder_self": {"system": "mae", "layers": ["1"]}}, r"layers is \['1'\].*\[0, 1\]"),
    ],
)
def test_what_there_is_not_is_an_error(plan, said):
    with pytest.raises(ValueError, match=said):
        hw.Seq2SeqLMConfig(attention=plan)


def test_a_system_may_be_named_by_its_module_and_class():
    name = "headwise.heads.mae:MixtureOfAttentiveExperts"
    assert specs_of(name)["encoder_self"] == [{"system": name}] * 2
    assert type(build({"system": name})) is hw.MixtureOfAttentiveExperts


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_such_module:Heads", "No module named 'no_such_module'.*in the current folder"),
        ("headwise.heads.mae:Gates", "module 'headwise.heads.mae' has no attribute 'Gates'"),
        (":Heads", "cannot be loaded: expected module:Class"),
        ("..:Heads", "cannot be loaded: expected module:Class"),
        ("my_heads:", "cannot be loaded: expected module:Class"),
        ("torch.nn:Linear", "torch.nn.modules.linear.Linear.*expected a subclass of System"),
    ],
)
def test_a_module_or_class_that_is_no_system_is_an_error(name, said):
    for plan in (name, {"decoder_self": {"system": name, "layers": [0]}}):
        with pytest.raises(ValueError, match=f"attention.*{name!r}.*{said}"), trusting():
            hw.Seq2SeqLMConfig(attention=plan)


@pytest.mark.parametrize(
    "text, said",
    [
        ("class A(:", "fails with SyntaxError: invalid syntax"),
        ("raise RuntimeError('no licence')", "fails with RuntimeError: no licence; mend the mod"),
    ],
)
def test_a_module_that_fails_is_named_with_its_error(tmp_path, monkeypatch, text, said):
    (tmp_path / "failing_heads.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError) as error, trusting():
        hw.Seq2SeqLMConfig(attention="failing_heads:A")
    assert said in str(error.value)
    assert isinstance(error.value.__cause__, ValueError)
    assert type(error.value.__cause__.__cause__).__name__ in said


@pytest.mark.parametrize(
    "entry, part",
    [
        ({"system": "mae", "layers": [2]}, "layer 2, expected 0 to 1"),
        ({"system": "mae", "layers": [-1]}, "layer -1, expected 0 to 1"),
        ({"system": "mae", "layers": [1, 1]}, "layer 1 twice"),
        (["mae", {"system": "moa", "layers": [0]}], "layer 0 twice"),
    ],
)
def test_layers_there_are_not_or_twice(entry, part):
    with pytest.raises(ValueError, match=r"attention\.encoder_self") as error:
        specs_of({"encoder_self": entry})
    assert part in str(error.value)


def build(spec, site="encoder_self", **more):
    place = Place(site, embed_dim=16, num_heads=4, ffn_dim=32, attention_dropout=0.3, **more)
    return build_system(spec, place)


def test_attentions_are_built_with_the_models_sizes():
    standard = build(STANDARD)
    assert type(standard) is hw.MultiHeadAttention
    mae = build({"system": "mae", "dropped_heads": 2, "num_heads": 8})
    assert (mae.num_heads, mae.dropped_heads, mae.num_experts) == (8, 2, 28)
    moa = build({"system": "moa"})
    assert (moa.top_k, moa.num_experts, moa.head_dim) == (4, 8, 8)
    moa = build({"system": "moa", "size": "2K5E3D", "normalize_weights": False})
    assert (moa.top_k, moa.num_experts, moa.head_dim) == (2, 5, 3)
    assert not moa.normalize_weights
    assert all(module.dropout == 0.3 for module in (standard, mae, moa))


@pytest.mark.parametrize("site", SITES)
def test_only_the_decoders_cross_attention_has_causal_queries(site):
    assert build({"system": "mae"}, site).causal_queries == (site == "decoder_cross")


# Systems that take the place of more than one attention


def test_weighted_alone_stands_where_a_feed_forward_follows():
    specs = specs_of("weighted", 2, 3)
    assert specs["encoder_self"] == [{"system": "weighted"}] * 2
    assert specs["decoder_self"] == [STANDARD] * 3
    assert specs["decoder_cross"] == [{"system": "weighted"}] * 3
    # In a decoder without a cross-attention it follows the self-attention.
    assert (
        layer_specs("weighted", {"decoder_self": 2})["decoder_self"] == [{"system": "weighted"}] * 2
    )


def test_tim_alone_keeps_the_first_two_layers_and_the_last_standard():
    tim = {"system": "tim"}
    specs = specs_of("tim", 6, 4)
    assert specs["encoder_self"] == [STANDARD] * 2 + [tim] * 3 + [STANDARD]
    assert specs["decoder_self"] == [STANDARD] * 2 + [tim] + [STANDARD]
    assert specs["decoder_cross"] == [STANDARD] * 4
    assert specs_of("tim", 6, 2)["decoder_self"] == [STANDARD] * 2  # too short for any
    assert specs_of({"system": "tim", "layers": "all"}, 2, 1)["decoder_self"] == [tim]
    assert specs_of({"encoder_self": "tim"}, 4, 4)["encoder_self"][2] == tim


def test_layers_in_words():
    agreement = {"system": "agreement"}
    specs = specs_of({"agreement": "low"}, 4, 4)
    assert specs["encoder_self"] == [agreement] * 2 + [STANDARD] * 2
    assert specs["decoder_self"] == specs["decoder_cross"] == [STANDARD] * 4
    assert specs_of({"agreement": "low"}, 1, 1)["encoder_self"] == [agreement]
    everywhere = specs_of({"system": "mae", "layers": "low"}, 3, 3)
    assert all(of_site == [{"system": "mae"}] * 2 + [STANDARD] for of_site in everywhere.values())


MIXED = {"decoder_self": {"system": "tim", "layers": [1]}, "decoder_cross": "mae"}


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ({"decoder_self": "weighted"}, "names weighted.* behind decoder_self stands decoder_cross"),
        ({"decoder_cross": {"system": "tim", "layers": [0]}}, "whole layer: name it at decoder_s"),
        (MIXED, "attention.decoder_cross names mae in layer 1.*different layers"),
        ("tim", "the first two layers and the last standard.*none of 2 layers is left"),
        ({"agreement": "all"}, "the system 'agreement' in the place of a site.*system: agreement"),
        ({"encoder_self": "mae", "tim": "all"}, "the system 'tim' in the place of a site"),
        ({"system": "mae", "layers": "low one"}, "layers is 'low one'.*all, low, middle"),
        ({"system": "mae", "layers": []}, r"layers is \[\].*such as \[0, 1\]"),
        ({"system": "mae", "layers": "middle"}, "layers: middle, so that none of 2 layers is left"),
        ({"system": "mae", "dropout": 0.1}, "option of mae 'dropout'.*the model sets"),
    ],
)
def test_what_cannot_stand_somewhere_is_an_error_that_says_where_it_can(plan, said):
    with pytest.raises(ValueError, match=said):
        specs_of(plan)


def test_what_is_named_at_a_site_has_to_stand_there():
    specs_of("tim", 6, 2)  # for a whole model it is enough that it stands somewhere
    with pytest.raises(
        ValueError, match=r"attention\.decoder_self: tim keeps .* none of 2 layers is left"
    ):
        specs_of({"encoder_self": "tim", "decoder_self": "tim"}, 6, 2)


# Blocks of today


class Explicit(hw.MultiHeadAttention):
    """A system of a user's own, which knows none of the options that models have of late."""

    def __init__(self, embed_dim, num_heads, dropout=0.0):
        super().__init__(embed_dim, num_heads, dropout=dropout)

    def forward(self, query, key=None, value=None, *, key_padding_mask=None, attn_mask=None,
                is_causal=False, query_padding_mask=None, cache=None):  # fmt: skip
        given = {"key_padding_mask": key_padding_mask, "is_causal": is_causal, "cache": cache}
        return super().forward(query, key, value, **given, query_padding_mask=query_padding_mask)


class HandingOn(hw.MultiHeadAttention):
    """One that hands on what it does not name, as docs/add-a-system.md does."""

    def __init__(self, embed_dim, num_heads, **options):
        super().__init__(embed_dim, num_heads, **options)

    def forward(self, query, *others, **options):
        return super().forward(query, *others, **options)


class OwnLayer(hw.IndependentMechanismsLayer):
    def forward(
        self, x, memory=None, *, key_padding_mask=None, is_causal=False, query_padding_mask=None,
        memory_key_padding_mask=None, cache=None, cross_cache=None,
    ):  # fmt: skip
        return super().forward(
            x, key_padding_mask=key_padding_mask, is_causal=is_causal, cache=cache
        )


SMALL = {"vocab_size": 9, "embed_dim": 16, "num_heads": 4, "ffn_dim": 8, "layers": 1}
GROUPED, ROTARY = (
    {"num_key_value_heads": 2, "qk_norm": True, "bias": False},
    {"positions": "rotary"},
)


def own(system, **options):
    plan = {"system": f"{__name__}:{system.__name__}", "layers": [0]}
    return hw.CausalLM(hw.CausalLMConfig(attention=plan, **SMALL, **options))


@pytest.mark.parametrize("system", [Explicit, HandingOn, OwnLayer])
def test_a_users_own_system_stands_in_a_model_that_does_without_blocks_of_today(system):
    made = own(system, norm="pre")
    assert made(torch.tensor([[3, 4, 5]]), use_cache=True).logits.isfinite().all()


def test_a_users_own_system_may_hand_on_what_it_does_not_name():
    made = own(HandingOn, **GROUPED, **ROTARY)
    assert made.decoder.layers[0].self_attention.num_key_value_heads == 2
    ids = torch.tensor([[3, 4, 5]])
    other = hw.CausalLM(hw.CausalLMConfig(**SMALL, **GROUPED, **ROTARY)).eval()
    other.load_state_dict(made.state_dict())
    torch.testing.assert_close(made.eval()(ids).logits, other(ids).logits)


@pytest.mark.parametrize(
    ("system", "options", "said"),
    [
        (Explicit, ROTARY, r"model\.positions is 'rotary', .*:Explicit does not .* its forward"),
        (OwnLayer, ROTARY, r"model\.positions is 'rotary', .*:OwnLayer does not .* no rotary"),
        (Explicit, {"qk_norm": True}, r"model\.(qk_norm|norm_eps) is .*:Explicit .* constructor"),
        (Explicit, {"bias": False}, r"model\.bias is False, which .*takes no bias; leave it out"),
        (Explicit, {"num_key_value_heads": 2}, r"model\.num_key_value_heads is 2, .*takes no"),
    ],
)
def test_a_users_own_system_that_does_not_know_a_block_is_an_error(system, options, said):
    with pytest.raises(ValueError, match=said):
        own(system, **options)
    if options is ROTARY:
        standard = hw.CausalLM(hw.CausalLMConfig(**SMALL, **options))
        with pytest.raises(ValueError, match=said):
            standard.with_attention({"system": f"{__name__}:{system.__name__}", "layers": [0]})


def test_what_a_model_settles_reaches_each_system():
    settled = {"num_key_value_heads": 2, "qk_norm": True, "norm_eps": 0.1, "head_dim": 6}
    for name in ("standard", "mae", "gated", "differential", "moh", "agreement", "weighted"):
        made = build({"system": name}, bias="qkv", **settled)
        assert (made.num_key_value_heads, made.head_dim) == (2, 6)
        assert made.q_norm.eps == made.k_norm.eps == 0.1
        assert None not in (made.q_proj.bias, made.k_proj.bias, made.v_proj.bias)
        others = {key for key, _ in made.named_parameters()}
        assert not others & {"out_proj.bias", "ffn_up.bias", "ffn_down.bias", "capsule_bias"}
    moa = build({"system": "moa"}, bias="qkv", **settled)
    assert (moa.num_key_value_heads, moa.top_k, moa.num_experts, moa.num_heads) == (2, 2, 4, 4)
    assert moa.head_dim == 8 and moa.k_proj.bias is None  # as of MoA without these options
    tim = build({"system": "tim"}, bias="qkv", **settled)
    assert tim.key_size() == (2, 6) and tim.ffn_up_bias is None
    assert build({"system": "moa", "num_key_value_heads": 1}, **settled).num_heads == 4
    with pytest.raises(ValueError, match=r"num_key_value_heads is 1, .* num_mechanisms = 2"):
        build({"system": "tim"}, num_key_value_heads=1)


def test_turns_have_to_fit_the_heads_of_each_system():
    """MoA's heads are twice as wide as those of the model, or as wide as its size says."""
    rope = {"partial_rotary_factor": 0.75}
    assert build({"system": "moa"}, rope_parameters=rope).head_dim == 8
    with pytest.raises(ValueError, match=r"turn 3 channels .*head_dim = 5\), expected an even"):
        build({"system": "moa", "size": "2K4E5D"}, rope_parameters=rope)
    with pytest.raises(ValueError, match="turn 5 channels"):
        hw.CausalLMConfig(**SMALL, **ROTARY, attention={"system": "moa", "size": "2K4E5D"})
    cross = {"decoder_cross": {"system": "moa", "size": "2K4E5D"}}  # which is not turned
    sizes = {"embed_dim": 16, "num_heads": 4, "ffn_dim": 8, "vocab_size": 9}
    hw.Seq2SeqLMConfig(**sizes, **ROTARY, encoder_layers=1, decoder_layers=1, attention=cross)
