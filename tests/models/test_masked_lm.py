"""The masked language model: where it predicts, its loss, padding, tied weights, saving."""

import copy
import json
from typing import Any

import pytest
import torch
from tiny import MOA, PAD, VOCABULARY, padded, strengthen, tokens
from torch import Tensor
from transformers import AutoConfig, AutoModelForMaskedLM

from headwise.analysis.cost import count_parameters
from headwise.models.masked_lm import MaskedLM, MaskedLMConfig
from headwise.models.sites import attention_sites

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


def test_tokens_on_both_sides_change_a_prediction() -> None:
    made, ids = model(), tokens(1, 6)
    before = made(ids).logits[0, 3]
    for place in (0, 5):
        changed = ids.clone()
        changed[0, place] = (ids[0, place] - 3 + 7) % (VOCABULARY - 3) + 3
        assert not torch.allclose(made(changed).logits[0, 3], before, atol=1e-3)


@pytest.mark.parametrize("plan", PLANS)
def test_nothing_to_predict_is_a_loss_of_zero(plan: str) -> None:
    made, given = model(PLANS[plan]).train(), batch()
    given["labels"].fill_(-100)
    out = made(**given)
    assert out.token_loss == 0
    out.loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in made.parameters())


@pytest.mark.parametrize("plan", PLANS)
def test_a_few_steps_of_training_lower_the_loss(plan: str) -> None:
    torch.manual_seed(0)
    made, given = MaskedLM(config(PLANS[plan])).train(), batch()
    optimizer = torch.optim.Adam(made.parameters(), lr=5e-3)
    losses = []
    for _ in range(20):
        out = made(**given)
        out.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(out.token_loss.item())
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize("auto", [False, True])
@pytest.mark.parametrize("plan", ["moa", "mixed"])
def test_a_saved_model_computes_the_same(plan: str, auto: bool, tmp_path: Any) -> None:
    made, given = model(PLANS[plan]), batch()
    made.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "headwise-masked-lm"
    loaded = (AutoModelForMaskedLM if auto else MaskedLM).from_pretrained(tmp_path)
    assert type(loaded) is MaskedLM
    assert isinstance(AutoConfig.from_pretrained(tmp_path), MaskedLMConfig)
    assert loaded.config.mask_token_id == MASK
    assert made.state_dict().keys() == loaded.state_dict().keys()
    for each in (loaded, copy.deepcopy(made)):
        torch.testing.assert_close(each(**given).logits, made(**given).logits, rtol=0, atol=0)


@pytest.mark.parametrize("shared", [True, False])
def test_embeddings_are_shared_as_asked(shared: bool, tmp_path: Any) -> None:
    made = model(share_embeddings=shared)
    made.save_pretrained(tmp_path)
    for each in (made, MaskedLM.from_pretrained(tmp_path)):
        assert (each.get_output_embeddings().weight is each.get_input_embeddings().weight) == shared
    vocabulary = VOCABULARY * 16
    assert count_parameters(made) == count_parameters(model()) + (0 if shared else vocabulary)


def test_fresh_weights() -> None:
    torch.manual_seed(0)
    made = MaskedLM(MaskedLMConfig(3000, embed_dim=16, num_heads=2, ffn_dim=8, layers=1))
    embedding = made.encoder.embedding.weight
    assert not embedding[PAD].any()
    assert embedding.std().item() == pytest.approx(0.25, rel=0.03)
    assert not made.lm_head.bias.any() and not made.transform.bias.any()


def test_the_vocabulary_can_be_resized() -> None:
    made = model()
    made.resize_token_embeddings(30)
    assert made.config.vocab_size == 30
    assert made(torch.tensor([[28]])).logits.shape == (1, 1, 30)
    assert made.lm_head.weight is made.encoder.embedding.weight


def test_outputs_as_transformers_gives_them() -> None:
    made, given = model(), batch()
    out = made(**given)
    loss, logits, *_ = made(**given, return_dict=False)
    assert torch.equal(loss, out.loss) and torch.equal(logits, out.logits)
    with pytest.raises(TypeError, match="head_mask is not an argument of MaskedLM"):
        made(**given, head_mask=torch.ones(2, 4))


def test_the_encoder_stands_where_others_find_it() -> None:
    made = model(PLANS["mixed"])
    places = [(place.site, place.layer, place.path) for place in attention_sites(made)]
    assert places == [
        ("encoder_self", 0, "encoder.layers.0.system"),
        ("encoder_self", 1, "encoder.layers.1.self_attention"),
    ]
    assert made.config.num_hidden_layers == 2


def test_multiply_accumulates_of_the_head() -> None:
    assert model().head_macs({"encoder": 10}) == 10 * (16 * 16 + 16 * VOCABULARY)


def test_sites_of_a_decoder_are_errors() -> None:
    with pytest.raises(ValueError, match="attention names the site 'decoder_self'"):
        config({"decoder_self": "mae"})
