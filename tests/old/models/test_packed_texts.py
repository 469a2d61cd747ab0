"""Texts packed one behind another, as transformers' DataCollatorWithFlattening does."""

import copy

import pytest
import torch
import torch.nn.functional as F
from test_causal_lm import DECODER
from test_causal_lm import model as in_single
from tiny import PAD, tokens
from tiny import model as seq2seq
from transformers import AutoModel, DataCollatorWithFlattening

import headwise as hw
from headwise.transformers_internals import CACHE

LENGTHS = (4, 1, 6, 3)


def model(plan="standard", **options):
    return in_single(plan, **options).double()


def texts():
    return [tokens(length) for length in LENGTHS]


def packed(each, **options):
    return DataCollatorWithFlattening(**options)([{"input_ids": text} for text in each])


def padded(each):
    """The same texts in rows of their own."""
    ids = torch.nn.utils.rnn.pad_sequence(each, batch_first=True, padding_value=PAD)
    mask = torch.arange(ids.size(1)) < torch.tensor([len(text) for text in each]).unsqueeze(1)
    labels = ids.masked_fill(~mask, -100)
    labels[:, 0] = -100
    return {"input_ids": ids, "attention_mask": mask.long(), "labels": labels}


@pytest.mark.parametrize("plan", DECODER)
@pytest.mark.parametrize("positions", [{}, {"positions": "learned", "max_positions": 8}])
def test_each_text_is_computed_by_itself(plan, positions):
    made, each = model(DECODER[plan], **positions), texts()
    out = made(**packed(each))
    alone = [made(text[None]).logits for text in each]
    torch.testing.assert_close(out.logits, torch.cat(alone, dim=1))
    losses = [F.cross_entropy(logits[0, :-1], text[1:], reduction="sum")
              for logits, text in zip(alone, each, strict=True)]  # fmt: skip
    expected = torch.stack(losses).sum() / sum(length - 1 for length in LENGTHS)
    torch.testing.assert_close(out.token_loss, expected)
    parameters = list(made.parameters())
    found = torch.autograd.grad(out.token_loss, parameters, allow_unused=True)
    torch.testing.assert_close(found, torch.autograd.grad(expected, parameters, allow_unused=True))


@pytest.mark.parametrize("plan", DECODER)
def test_packed_texts_are_trained_on_as_padded_ones(plan):
    """Losses, gradients and running statistics; the experts that are drawn, too."""
    made, each = model(DECODER[plan]).train(), texts()
    other = copy.deepcopy(made)
    results = []
    for one, given in ((made, packed(each)), (other, padded(each))):
        torch.manual_seed(0)
        for step in ("joint", "expert"):
            for module in one.modules():
                if isinstance(module, hw.MixtureOfAttentiveExperts):
                    module.step = step
            loss = one(**given).loss
            loss.backward()
            results.append(loss)
    torch.testing.assert_close(results[:2], results[2:])
    for expected, parameter in zip(other.parameters(), made.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, expected.grad)
    torch.testing.assert_close(list(made.buffers()), list(other.buffers()))


@pytest.mark.parametrize("plan", ["mae", "tim"])
def test_several_rows_and_the_model_without_a_head(plan, tmp_path):
    made = model(DECODER[plan])
    ids = tokens(2, 7)
    positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3], [5, 6, 0, 0, 1, 2, 3]])
    hidden = made(ids, position_ids=positions, output_hidden_states=True).hidden_states
    pieces = [(0, 0, 3), (0, 3, 7), (1, 0, 2), (1, 2, 3), (1, 3, 7)]
    for row, first, end in pieces:
        alone = made(
            ids[row : row + 1, first:end],
            position_ids=positions[row : row + 1, first:end],
            output_hidden_states=True,
        ).hidden_states
        for state, expected in zip(hidden, alone, strict=True):
            torch.testing.assert_close(state[row, first:end], expected[0])
    made.save_pretrained(tmp_path)
    headless = AutoModel.from_pretrained(tmp_path).double()
    last = headless(ids, position_ids=positions).last_hidden_state
    torch.testing.assert_close(last, hidden[-1])


def test_positions_that_go_on_or_stand_beside_a_mask_are_positions_alone():
    made, ids = model("mae"), tokens(1, 5)
    expected = made(ids).logits
    torch.testing.assert_close(made(ids, position_ids=torch.arange(5)).logits, expected)
    again = torch.tensor([[0, 1, 0, 1, 2]])
    as_one = made(ids, position_ids=again, attention_mask=torch.ones(1, 5)).logits
    apart = made(ids, position_ids=again).logits
    torch.testing.assert_close(as_one[:, :2], apart[:, :2])
    assert (as_one - apart)[:, 2:].abs().amin(1).max() > 1e-3


def test_what_packed_texts_do_not_go_with_is_refused():
    made, given = model("mae"), packed(texts())
    del given["labels"]
    for more, name in (
        ({"use_cache": True}, CACHE),
        ({"cache": made.new_cache()}, CACHE),
        ({"output_attentions": True}, "output_attentions=True"),
    ):
        with pytest.raises(ValueError, match=f"{name}.* is given, expected none with packed texts"):
            made(**given, **more)
    with pytest.raises(ValueError, match="decoder_position_ids do not go on by one"):
        seq2seq("mae")(
            input_ids=tokens(1, 3),
            decoder_input_ids=tokens(1, 4),
            decoder_position_ids=torch.tensor([[0, 1, 0, 1]]),
        )


@pytest.mark.parametrize("option", ["return_flash_attn_kwargs", "return_seq_idx"])
@pytest.mark.parametrize("position_ids", [True, False])
def test_what_else_the_collator_may_give_is_refused(option, position_ids):
    given = packed(texts(), return_position_ids=position_ids, **{option: True})
    with pytest.raises(TypeError, match="position_ids alone say where packed texts begin"):
        model("mae")(**given)
