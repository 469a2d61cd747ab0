"""The masked language model: where it predicts, its loss, padding, tied weights, saving."""

from typing import Any

import pytest
import torch
from tiny import MOA, VOCABULARY, padded, strengthen, tokens
from torch import Tensor

from headwise.analysis.cost import count_parameters
from headwise.models.masked_lm import MaskedLM, MaskedLMConfig

MASK = 4
PLANS: dict[str, Any] = {
    "standard": "standard",
    "weighted": "weighted",
    "agreement": "agreement",
    "simple routing": {"system": "agreement", "routing": "simple", "num_capsules": 8},
    "mae": "mae",
    "tim": {"system": "tim", "layers": "all"},
    "moa": MOA,
    "gated": "gated",
    "moh": "moh",
    "mixed": {"encoder_self": [{"system": "tim", "layers": [0]}, {"system": "mae", "layers": [1]}]},
}
LENGTHS = [7, 3, 5]


def config(plan: Any = "standard", **options: Any) -> MaskedLMConfig:
    sizes = {"embed_dim": 16, "num_heads": 4, "ffn_dim": 24, "layers": 2, "dropout": 0.0}
    return MaskedLMConfig(VOCABULARY, attention=plan, **{**sizes, **options})


def model(plan: Any = "standard", **options: Any) -> MaskedLM:
    """In evaluation, with attention and gates that depend strongly on their input."""
    torch.manual_seed(0)
    made = MaskedLM(config(plan, **options))
    strengthen(made)
    return made.eval()


def batch() -> dict[str, Tensor]:
    """Padded rows in which the second token and the last of each are to be predicted."""
    ids, mask = padded(LENGTHS, 7)
    labels = torch.full_like(ids, -100)
    for row, length in enumerate(LENGTHS):
        for place in (1, length - 1):
            labels[row, place] = ids[row, place]
        ids[row, 1] = MASK
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def without_labels(given: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in given.items() if name != "labels"}


@pytest.mark.parametrize("plan", PLANS)
def test_logits_are_computed_where_a_token_is_to_be_predicted(plan: str) -> None:
    made, given = model(PLANS[plan]), batch()
    full = made(**without_labels(given)).logits
    assert full.shape == (3, 7, VOCABULARY)
    chosen = given["labels"] != -100
    out = made(**given, all_logits=False)
    assert out.logits.shape == (6, VOCABULARY)
    torch.testing.assert_close(out.logits, full[chosen])
    of_all = made(**given)  # in evaluation
    assert torch.equal(of_all.logits, full)
    torch.testing.assert_close(of_all.loss, out.loss)
    log_p = full.log_softmax(-1)[chosen]
    naive = -sum(row[token] for row, token in zip(log_p, given["labels"][chosen], strict=True))
    torch.testing.assert_close(out.token_loss, naive / 6)
    torch.testing.assert_close(made(**given, num_items_in_batch=10).token_loss, naive / 10)
    assert (out.auxiliary_loss is not None) == (plan in ("moa", "moh"))
    if plan in ("moa", "moh"):
        torch.testing.assert_close(out.loss, out.token_loss + out.auxiliary_loss)


def test_the_head_by_hand() -> None:
    made, ids = model(), tokens(2, 5)
    torch.nn.init.normal_(made.lm_head.bias)
    hidden = made.encoder(ids).last_hidden_state @ made.transform.weight.T + made.transform.bias
    hidden = hidden * 0.5 * (1 + torch.erf(hidden / 2**0.5))
    hidden = (hidden - hidden.mean(-1, keepdim=True)) / hidden.std(-1, correction=0, keepdim=True)
    naive = hidden @ made.encoder.embedding.weight.T + made.lm_head.bias
    torch.testing.assert_close(made(ids).logits, naive, rtol=1e-3, atol=1e-3)


def test_labels_are_smoothed_in_training_only() -> None:
    made, given = model(label_smoothing=0.3), batch()
    plain = made(**given, all_logits=False)
    smoothed = made.train()(**given)
    assert smoothed.logits.shape == plain.logits.shape == (6, VOCABULARY)
    log_p = plain.logits.double().log_softmax(-1)
    naive = -(0.7 * log_p.gather(1, given["labels"][given["labels"] != -100][:, None]).sum())
    naive = (naive - 0.3 * log_p.mean(-1).sum()) / 6
    torch.testing.assert_close(smoothed.token_loss.double(), naive, rtol=1e-5, atol=1e-5)
    assert smoothed.token_loss != plain.token_loss


@pytest.mark.parametrize("shared", [True, False])
def test_embeddings_are_shared_as_asked(shared: bool, tmp_path: Any) -> None:
    made = model(share_embeddings=shared)
    made.save_pretrained(tmp_path)
    for each in (made, MaskedLM.from_pretrained(tmp_path)):
        assert (each.get_output_embeddings().weight is each.get_input_embeddings().weight) == shared
    vocabulary = VOCABULARY * 16
    assert count_parameters(made) == count_parameters(model()) + (0 if shared else vocabulary)


def test_the_vocabulary_can_be_resized() -> None:
    made = model()
    made.resize_token_embeddings(30)
    assert made.config.vocab_size == 30
    assert made(torch.tensor([[28]])).logits.shape == (1, 1, 30)
    assert made.lm_head.weight is made.encoder.embedding.weight


def test_multiply_accumulates_of_the_head() -> None:
    assert model().head_macs({"encoder": 10}) == 10 * (16 * 16 + 16 * VOCABULARY)
