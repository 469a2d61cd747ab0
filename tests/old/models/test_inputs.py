"""Empty batches give finite losses; wrong tokens, labels and masks errors that name them."""

import pytest
import torch
from test_every_model import (
    CAUSAL,
    CONFIGS,
    EVERYTHING,
    LENGTHS,
    TIME,
    batch,
    build,
    every_model,
)
from tiny import PAD, VOCABULARY, config, tokens

import headwise as hw


@pytest.mark.parametrize("train", [False, True])
@every_model
def test_no_sequences_and_no_positions(kind, plan, train):
    made, given = build(kind, plan).train(train), batch(kind)
    whole = given["labels"].dim() == 1
    no_rows = {name: value[:0] for name, value in given.items()}
    no_time = {n: v if whole and n == "labels" else v[:, :0] for n, v in given.items()}
    for empty in (no_rows, no_time):
        for names in (set(empty), set(empty) - {"attention_mask"}):
            made.zero_grad()
            out = made(**{name: empty[name] for name in names})
            assert torch.isfinite(out.loss)
            assert out.auxiliary_loss is None or out.auxiliary_loss == 0
            out.loss.backward()
            assert all(
                torch.isfinite(p.grad).all() for p in made.parameters() if p.grad is not None
            )
            assert out.logits is None or not out.logits.numel() or whole


# Not of speech: frames are neighbours of frames.
READERS = [(kind, plan) for kind, plan in EVERYTHING if kind in CAUSAL and kind != "speech"]


@pytest.mark.parametrize(("kind", "plan"), READERS)
def test_padding_between_tokens_changes_nothing(kind, plan):
    made, places = build(kind, plan), [0, 1, 4, 5, 7, 9]
    ids = tokens(1, TIME)
    spread = torch.full((1, 10), PAD)
    spread[:, places] = ids
    mask = torch.zeros(1, 10, dtype=torch.long)
    mask[:, places] = 1
    expected = made(input_ids=ids).logits
    torch.testing.assert_close(made(spread, mask).logits[:, places], expected)
    steps, cache = [], None
    for t in range(10):
        out = made(spread[:, t : t + 1], mask[:, : t + 1], cache, use_cache=True)
        steps.append(out.logits)
        cache = out.cache
    torch.testing.assert_close(torch.cat(steps, 1)[:, places], expected)


@pytest.mark.parametrize("kind", [kind for kind in CONFIGS if kind != "speech"])
def test_wrong_tokens_labels_and_masks(kind):
    made, given = build(kind, "standard"), batch(kind)
    ids, labels = given["input_ids"], given["labels"]

    def refused(name, value, message):
        with pytest.raises(ValueError, match=message):
            made(**{**given, name: value})

    def changed(x, value):
        x = x.clone()
        x.view(-1)[-2] = value
        return x

    last = VOCABULARY - 1
    for token in (VOCABULARY, -1, 10**12):
        wrong = f"input_ids has the token {token}, .* 0 to {last}"
        refused("input_ids", changed(ids, token), wrong)
    refused("input_ids", ids.float(), r"input_ids has dtype torch.float32.*input_ids.long\(\)")
    refused("input_ids", ids[0], r"input_ids has shape \(6,\), expected \(batch, time\); .*unsq")
    refused("input_ids", ids.tolist(), "input_ids is of type list, expected a tensor")
    wide = torch.ones(len(LENGTHS), TIME + 1, dtype=torch.long)
    shape = r"attention_mask has shape .*expected \(batch, time\) = \(3"
    for mask in (wide, wide[:2, :TIME], wide[:, None, None, :TIME]):
        refused("attention_mask", mask, shape)
    right = (torch.arange(TIME) < torch.tensor([[TIME], [3], [4]])).float()
    added = torch.zeros_like(right).masked_fill(right == 0, float("-inf"))
    for mask, found in (
        (added, "has -inf"),
        (right - 1, "has -1"),
        (torch.zeros_like(right), "is 0.0 everywhere"),
        (2 * right.long(), "has 2"),
    ):
        refused("attention_mask", mask, f"attention_mask {found}, expected 1 at tokens and 0")
    made.eval()
    expected = made(**{**given, "attention_mask": right}).logits
    for mask in (right.bool(), right.long(), added == 0):
        torch.testing.assert_close(made(**{**given, "attention_mask": mask}).logits, expected)
    refused("labels", labels[:2], r"labels has shape \(2,.*expected \(3,")
    refused("labels", labels.unsqueeze(-1), "labels has shape .*, 1\\), expected ")
    if kind != "regression":
        classes = 2 if kind.startswith("classifier") else VOCABULARY
        for label in (classes, -1):
            wrong = f"labels has {label}, expected 0 to {classes - 1}, or -100"
            refused("labels", changed(labels, label), wrong)
        refused("labels", labels.float(), "labels has dtype torch.float32, expected torch.int64")
    assert torch.isfinite(made(**given).loss)


def test_what_a_decoder_refuses_bears_the_name_that_it_was_given_by():
    made, ids = hw.Seq2SeqLM(config()), tokens(1, 4)
    with pytest.raises(ValueError, match="decoder_input_ids has the token 99"):
        made(input_ids=ids, decoder_input_ids=torch.full((1, 2), 99))
    with pytest.raises(ValueError, match=r"decoder_attention_mask has shape \(1, 9\)"):
        mask = torch.ones(1, 9)
        made(input_ids=ids, decoder_input_ids=ids, decoder_attention_mask=mask)


def test_frames_of_another_shape():
    made, given = build("speech", "standard"), batch("speech")
    with pytest.raises(ValueError, match=r"labels has shape \(3, 6, 9, 1\), expected \(3, 6, 9\)"):
        made(**{**given, "labels": given["labels"].unsqueeze(-1)})
    with pytest.raises(ValueError, match=r"attention_mask has shape \(3, 5\)"):
        made(**{**given, "attention_mask": given["attention_mask"][:, :5]})
    with pytest.raises(ValueError, match="attention_mask has -1e\\+09, expected 1 at tokens"):
        made(**{**given, "attention_mask": -1e9 * (given["attention_mask"] == 0)})


def test_values_are_looked_at_only_where_that_costs_nothing():
    """A compiled or vectorised model reads no values: neither could be traced."""
    made, ids = build("causal", "standard"), tokens(2, 4)
    with torch.no_grad():
        expected = made(ids).logits
        compiled = torch.compile(made, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(ids).logits, expected)
        each = torch.func.vmap(lambda row: made(row.unsqueeze(0)).logits[0])(ids)
        torch.testing.assert_close(each, expected)


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_positions_are_those_of_the_batch(rows):
    model = hw.MaskedLM(hw.MaskedLMConfig(vocab_size=9, embed_dim=8, num_heads=2, layers=1))
    given = {"input_ids": torch.ones(2, 3, dtype=torch.long)}
    positions = torch.arange(3).expand(rows, -1)
    if rows < 4:
        assert model(**given, position_ids=positions).logits.shape == (2, 3, 9)
        return
    with pytest.raises(ValueError, match=r"position_ids has shape \(4, 3\), .* batch is 2 and "):
        model(**given, position_ids=positions)
