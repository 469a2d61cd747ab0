"""Systems made as large as one another."""

import pytest
import torch

import headwise as hw
from headwise.runs.matching import TOLERANCE, match_parameters
from headwise.tasks.translation import TranslationModel

SIZES = {"embed_dim": 64, "num_heads": 4, "ffn_dim": 128, "encoder_layers": 2, "decoder_layers": 2}


def count(model: TranslationModel) -> int:
    settings = model.model_dump(exclude={"share_embeddings", "pretrained"})
    with torch.device("meta"):
        made = hw.Seq2SeqLM(hw.Seq2SeqLMConfig(vocab_size=500, **settings))
    return sum(parameter.numel() for parameter in made.parameters())


@pytest.mark.parametrize(
    "plan, grows",
    [
        ("mae", False),
        ({"system": "moa", "size": "4K8E16D"}, False),
        ({"system": "moa", "size": "2K2E8D"}, True),
        ("weighted", None),
        ({"agreement": "low"}, None),
        ({"system": "tim", "layers": [1]}, None),
        # These divide widths by more than the heads.
        ({"system": "tim", "layers": [1], "num_mechanisms": 8, "num_heads": 8}, None),
        ({"system": "weighted", "ffn": "split", "num_branches": 8}, None),
    ],
)
def test_every_system_gets_the_baselines_size(plan, grows):
    target = count(TranslationModel(**SIZES)) * (11 if grows is None else 10) // 10
    before = TranslationModel(**SIZES, attention=plan)
    match = match_parameters(before, target, count)
    assert match.parameters == count(match.model)
    assert abs(match.parameters / target - 1) <= TOLERANCE
    assert grows is None or (match.model.ffn_dim > before.ffn_dim) == grows
    assert match.model.embed_dim % 4 == match.model.ffn_dim % 4 == 0
    unchanged = {"embed_dim", "ffn_dim"}
    assert match.model.model_dump(exclude=unchanged) == before.model_dump(exclude=unchanged)


def test_the_number_of_heads_may_grow_with_the_width():
    """As in the paper on independent mechanisms: heads stay as wide as they are."""
    target = count(TranslationModel(**SIZES))
    before = TranslationModel(**SIZES, attention={"system": "tim", "layers": [0, 1]})
    match = match_parameters(before, target, count, change_heads=True)
    assert abs(match.parameters / target - 1) <= TOLERANCE
    assert match.model.embed_dim > 64 and match.model.num_heads > 4
    assert match.model.embed_dim / match.model.num_heads == 16
    said = match.explain(before, target)
    assert f"num_heads {match.model.num_heads} in place of 4" in said


def test_the_feed_forward_stays_in_proportion():
    target = count(TranslationModel(**SIZES))
    wide = TranslationModel(**SIZES, attention={"system": "moa", "size": "4K8E16D"})
    matched = match_parameters(wide, target, count).model
    assert matched.embed_dim < 64  # the attention alone would leave no room for it
    assert matched.ffn_dim / matched.embed_dim == pytest.approx(2.0, rel=0.15)


def test_a_size_out_of_reach_is_an_error():
    target = count(TranslationModel(**SIZES))
    with pytest.raises(ValueError, match="no width near 64 gives 100 parameters") as error:
        match_parameters(TranslationModel(**SIZES), 100, count)
    assert f"{target:,}" in str(error.value)


def test_where_the_models_feed_forward_counts_for_nothing_the_width_alone_changes():
    own = {"system": "weighted", "ffn_dim": 144}
    before = TranslationModel(**SIZES, attention={"encoder_self": own, "decoder_cross": own})
    wider = before.model_copy(update={"embed_dim": 72})
    match = match_parameters(before, count(wider), count)
    assert (match.model.embed_dim, match.model.ffn_dim) == (72, 128)
    with pytest.raises(ValueError, match="no width near 64"):  # between two widths
        match_parameters(before, (count(wider) + count(before)) // 2 + 2000, count)
