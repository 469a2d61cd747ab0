"""The table of decisions has a row for each unit's weight, without padding."""

import pandas
import pytest
import tiny
import torch
from tiny import MOA, PLANS, padded, tokens

import headwise as hw
from headwise.heads.system import Routing
from headwise.models.decisions import Decisions
from headwise.models.sites import AttentionSite


def place(site="", path="first"):
    return AttentionSite(site, 0, hw.MultiHeadAttention(8, 2), path)


def by_position(padding=None, indices=None):
    weights = torch.tensor([[[0.25, 0.75], [0.5, 0.5]], [[1.0, 0.0], [0.125, 0.875]]])
    return Routing(weights, indices, padding=padding)


PADDING = torch.tensor([[False, False], [True, False]])


def test_each_unit_of_each_decision_has_a_row():
    frame = Decisions({place(): [by_position(PADDING)]}).frame()
    assert list(frame.columns) == [
        "path", "pass", "sequence", "position", "unit", "weight", "chosen"
    ]  # fmt: skip
    assert frame.drop(columns=["path", "chosen"]).to_numpy().tolist() == [
        [0, 0, 0, 0, 0.25],
        [0, 0, 0, 1, 0.75],
        [0, 0, 1, 0, 0.5],
        [0, 0, 1, 1, 0.5],
        [0, 1, 1, 0, 0.125],
        [0, 1, 1, 1, 0.875],
    ]
    assert set(frame["path"]) == {"first"} and frame["chosen"].all()


def test_without_pandas_it_is_a_list_of_rows(monkeypatch):
    decisions = Decisions({place(): [by_position(PADDING)]})
    expected = decisions.frame(tokens=[["a", "b"], ["c"]])
    monkeypatch.setattr("headwise.models.decisions.find_spec", lambda name: None)
    rows = decisions.frame(tokens=[["a", "b"], ["c"]])
    assert rows == expected.to_dict("records")
    assert rows[-1] == {
        "path": "first", "pass": 0, "sequence": 1, "position": 1, "unit": 1, "weight": 0.875,
        "chosen": True, "token": "c",
    }  # fmt: skip


def test_decisions_of_a_sequence_or_of_everything_have_no_position():
    sequences, everything = Routing(torch.tensor([[0.25, 0.75]])), Routing(torch.tensor([1.0]))
    frame = Decisions({place(): [sequences, sequences, everything]}).frame()
    assert frame["pass"].tolist() == [0, 0, 1, 1, 2]
    assert frame["sequence"].tolist() == [0, 0, 0, 0, pandas.NA]
    assert frame["position"].isna().all()
    assert frame["weight"].tolist() == [0.25, 0.75, 0.25, 0.75, 1.0]


def test_what_is_chosen_is_marked():
    indices = torch.tensor([[[1], [0]], [[0], [1]]])
    frame = Decisions({place(): [by_position(indices=indices)]}).frame()
    assert frame["chosen"].tolist() == [False, True, True, False, True, False, False, True]


@pytest.mark.parametrize(
    "given",
    [[["a", "b"], ["pad", "c"]], [["a", "b"], ["c"]], torch.tensor([[7, 8], [0, 9]])],
    ids=["all positions", "real positions", "ids"],
)
def test_tokens_stand_beside_their_positions(given):
    frame = Decisions({place(): [by_position(PADDING)]}).frame(tokens=given)
    expected = [7, 7, 8, 8, 9, 9] if isinstance(given, torch.Tensor) else list("aabbcc")
    assert frame["token"].tolist() == expected


def test_each_stack_has_its_own_tokens():
    made = tiny.model({"encoder_self": MOA, "decoder_self": "mae", "decoder_cross": "weighted"})
    ids, mask = padded([5, 3], 5)
    target = tokens(2, 4)
    with hw.record(made) as decisions:
        made(input_ids=ids, attention_mask=mask, decoder_input_ids=target)
    frame = decisions.frame(tokens={"encoder": ids, "decoder": target})
    first = frame[frame["path"] == "encoder.layers.0.self_attention"]
    assert first.groupby(["sequence", "position"])["token"].first().tolist() == (
        ids[ids != tiny.PAD].tolist()
    )
    second = frame[frame["path"] == "decoder.layers.1.self_attention"]
    assert second.groupby(["sequence", "position"])["token"].first().tolist() == (
        target.flatten().tolist()
    )
    everywhere = frame[frame["path"] == "decoder.layers.1.cross_attention"]
    assert everywhere["token"].isna().all() and everywhere["sequence"].isna().all()
    total = first.groupby(["sequence", "position"])["weight"].sum()
    assert len(total) == 8 and total.to_numpy() == pytest.approx(1.0)
    assert (first.groupby(["sequence", "position"])["chosen"].sum() == 2).all()


def test_tokens_of_other_positions_are_refused():
    decisions = Decisions({place(): [by_position(PADDING)]})
    for wrong in ([["a", "b"]], [["a", "b", "c"], ["d"]]):
        with pytest.raises(ValueError, match=r"first decided for 2 sequences of 2 positions"):
            decisions.frame(tokens=wrong)
    decisions = Decisions({place(): [by_position(), by_position()]})
    with pytest.raises(ValueError, match=r"tokens are those of one pass, but first has made 2"):
        decisions.frame(tokens=[["a", "b"], ["c", "d"]])


def test_a_model_that_decides_nothing_has_an_empty_table():
    made = tiny.model(PLANS["standard"])
    with hw.record(made) as decisions:
        made(input_ids=tokens(1, 2), decoder_input_ids=tokens(1, 2))
    frame = decisions.frame()
    assert len(frame) == 0 and "weight" in frame
