"""The masked language model: where it predicts, its head and its tied weights."""

import pytest
import torch
from test_every_model import batch, build, without_labels
from tiny import VOCABULARY, tokens

from headwise.models.masked_lm import MaskedLM


@pytest.mark.parametrize("plan", ["standard", "mae", "moa"])
def test_logits_are_computed_where_a_token_is_to_be_predicted(plan):
    made, given = build("masked", plan), batch("masked")
    full = made(**without_labels(given)).logits
    chosen = given["labels"] != -100
    out = made(**given, all_logits=False)
    torch.testing.assert_close(out.logits, full[chosen])
    of_all = made(**given)  # in evaluation
    assert torch.equal(of_all.logits, full)
    torch.testing.assert_close(of_all.loss, out.loss)
    log_p = full.log_softmax(-1)[chosen]
    naive = -log_p.gather(1, given["labels"][chosen][:, None]).sum()
    torch.testing.assert_close(out.token_loss, naive / len(log_p))


def test_the_head_by_hand():
    made, ids = build("masked", "standard"), tokens(2, 5)
    torch.nn.init.normal_(made.lm_head.bias)
    hidden = made.encoder(ids).last_hidden_state @ made.transform.weight.T + made.transform.bias
    hidden = hidden * 0.5 * (1 + torch.erf(hidden / 2**0.5))
    hidden = (hidden - hidden.mean(-1, keepdim=True)) / hidden.std(-1, correction=0, keepdim=True)
    naive = hidden @ made.encoder.embedding.weight.T + made.lm_head.bias
    torch.testing.assert_close(made(ids).logits, naive, rtol=1e-3, atol=1e-3)
    assert made.head_macs({"encoder": 10}) == 10 * (16 * 16 + 16 * VOCABULARY)


def test_labels_are_smoothed_in_training_only():
    made, given = build("masked", "standard", label_smoothing=0.3), batch("masked")
    plain = made(**given, all_logits=False)
    smoothed = made.train()(**given)
    log_p = plain.logits.double().log_softmax(-1)
    naive = -(0.7 * log_p.gather(1, given["labels"][given["labels"] != -100][:, None]).sum())
    naive = (naive - 0.3 * log_p.mean(-1).sum()) / len(log_p)
    torch.testing.assert_close(smoothed.token_loss.double(), naive, rtol=1e-5, atol=1e-5)
    assert smoothed.token_loss != plain.token_loss


@pytest.mark.parametrize("shared", [True, False])
def test_embeddings_are_shared_as_asked(shared, tmp_path):
    made = build("masked", "standard", share_embeddings=shared)
    made.save_pretrained(tmp_path)
    for each in (made, MaskedLM.from_pretrained(tmp_path)):
        assert (each.get_output_embeddings().weight is each.get_input_embeddings().weight) == shared
