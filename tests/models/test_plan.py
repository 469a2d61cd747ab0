import pytest
from tiny import MOA

import headwise as hw
from headwise.heads.system import Place
from headwise.models.plan import build_system, layer_specs

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


def test_an_entry_may_be_a_name_or_a_list():
    plan = {
        "encoder_self": "moa",
        "decoder_self": [{"system": "mae", "layers": [0]}, {**MOA, "layers": [1]}],
    }
    assert specs_of(plan, 2, 3)["encoder_self"] == [{"system": "moa"}] * 2
    assert specs_of(plan, 2, 3)["decoder_self"] == [{"system": "mae"}, MOA, STANDARD]


@pytest.mark.parametrize(
    "plan, parts",
    [
        (
            "standart",
            ["system 'standart'", "standard, agreement, mae, moa", "did you mean 'standard'"],
        ),
        (7, ["attention is 7", "standard, agreement, mae, moa", "encoder_self"]),
        (
            {"encoder_slf": "mae"},
            ["site 'encoder_slf'", "decoder_cross", "did you mean 'encoder_self'"],
        ),
        ({"encoder_self": "transformer"}, ["attention.encoder_self", "'transformer'", "moa"]),
        ({"encoder_self": {"layers": [0]}}, ["attention.encoder_self", "system None"]),
        ({"encoder_self": None}, ["attention.encoder_self is None", "a list"]),
        ({"encoder_self": [3]}, ["attention.encoder_self is 3", "a list"]),
        (
            {"decoder_self": {"system": "mae", "droped_heads": 2}},
            ["attention.decoder_self", "option of mae 'droped_heads'", "mean 'dropped_heads'"],
        ),
        ({"decoder_self": {"system": "moa", "num_heads": 2}}, ["option of moa 'num_heads'"]),
        ({"decoder_self": {"system": "mae", "embed_dim": 2}}, ["option of mae 'embed_dim'"]),
        ({"decoder_self": {"system": "standard", "top_k": 2}}, ["option of standard 'top_k'"]),
        ({"decoder_self": {"system": "moa", "size": "8x"}}, ["size is '8x'", "8K32E64D"]),
        ({"decoder_self": {"system": "moa", "size": 8}}, ["decoder_self.size is 8", "string"]),
        ({"decoder_self": {"system": "mae", "layers": 1}}, ["attention.decoder_self.layers is 1"]),
        (
            {"decoder_self": {"system": "mae", "layers": ["1"]}},
            ["attention.decoder_self.layers is ['1']", "[0, 1]"],
        ),
    ],
)
def test_what_there_is_not_is_an_error(plan, parts):
    with pytest.raises(ValueError) as error:
        hw.Seq2SeqConfig(attention=plan)
    assert all(part in str(error.value) for part in parts), str(error.value)


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


def build(spec, site="encoder_self"):
    place = Place(site, embed_dim=16, num_heads=4, ffn_dim=32, attention_dropout=0.3)
    return build_system(spec, place)


def test_attentions_are_built_with_the_models_sizes():
    standard = build(STANDARD)
    assert type(standard) is hw.MultiHeadAttention
    mae = build({"system": "mae", "dropped_heads": 2, "num_heads": 8})
    assert (mae.num_heads, mae.dropped_heads, mae.num_experts) == (8, 2, 28)
    moa = build({"system": "moa"})
    assert (moa.top_k, moa.num_experts, moa.head_dim) == (4, 16, 4)
    moa = build({"system": "moa", "size": "2K5E3D", "normalize_weights": False})
    assert (moa.top_k, moa.num_experts, moa.head_dim) == (2, 5, 3)
    assert not moa.normalize_weights
    assert all(module.dropout == 0.3 for module in (standard, mae, moa))


@pytest.mark.parametrize("site", SITES)
def test_only_the_decoders_cross_attention_has_causal_queries(site):
    assert build({"system": "mae"}, site).causal_queries == (site == "decoder_cross")
