"""The model: its loss, what may influence what, half precision, saving and loading."""

import math

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import END, PAD, PLANS, START, VOCABULARY, config, model, padded, tokens
from transformers import AutoModel

import headwise as hw
from headwise.models.seq2seq import shift_right
from headwise.models.sites import attention_sites

SOURCE_LENGTHS, TARGET_LENGTHS = [6, 3, 5], [4, 5, 2]


def batch(time=5):
    """Padded sources and targets; labels are -100 at padding."""
    source, mask = padded(SOURCE_LENGTHS, 6)
    labels, label_mask = padded(TARGET_LENGTHS, time)
    labels = labels.masked_fill(label_mask == 0, -100)
    return {"input_ids": source, "attention_mask": mask, "labels": labels}


def logits_of(made, source, target, **more):
    torch.manual_seed(7)
    return made(input_ids=source, decoder_input_ids=target, **more).logits


@pytest.mark.parametrize("mode", ["evaluation", "joint", "gate", "expert"])
@pytest.mark.parametrize("plan", PLANS)
def test_later_target_tokens_change_no_earlier_logits(plan, mode):
    made = model(PLANS[plan]).train(mode != "evaluation")
    for site in attention_sites(made):
        if isinstance(site.module, hw.MixtureOfAttentiveExperts):
            site.module.step = mode
            if site.module.gate is not None:
                site.module.gate.dropout = 0.0
                site.module.gate.norm.momentum = 0.0  # one pass leaves no trace in the next
    source, target = tokens(3, 6), tokens(3, 6)
    with torch.no_grad():
        for t in (1, 3, 5):
            changed = target.clone()
            changed[:, t:] = (changed[:, t:] - 3 + 7) % (VOCABULARY - 3) + 3
            before = logits_of(made, source, target)
            after = logits_of(made, source, changed)
            torch.testing.assert_close(after[:, :t], before[:, :t], rtol=1e-5, atol=1e-5)
            assert not torch.allclose(after[:, t:], before[:, t:], atol=1e-3)


def smoothed(logits, labels, epsilon):
    """Cross entropy to (1 − ε) one-hot + ε / V, summed over what is to be predicted."""
    total, count = 0.0, 0
    for row, targets in zip(logits.double(), labels, strict=True):
        for x, y in zip(row, targets.tolist(), strict=True):
            if y != -100:
                log_p = x - torch.log(torch.exp(x).sum())
                total = total - (1 - epsilon) * log_p[y] - epsilon * log_p.mean()
                count += 1
    return total, count


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("plan", ["standard", "moa"])
def test_the_loss_by_hand(plan, epsilon):
    made = model(PLANS[plan], label_smoothing=epsilon)
    given = batch()
    plain = made(**given)
    total, count = smoothed(plain.logits.detach(), given["labels"], 0.0)
    assert plain.token_loss.item() == pytest.approx(float(total / count), rel=1e-5)
    out = made.train()(**given)
    total, count = smoothed(out.logits.detach(), given["labels"], epsilon)
    assert out.token_loss.item() == pytest.approx(float(total / count), rel=1e-5)
    if plan == "standard":
        assert out.auxiliary_loss is None
        assert out.loss == out.token_loss
    else:
        assert out.loss.item() == pytest.approx((out.token_loss + out.auxiliary_loss).item())
    other = made(**given, num_items_in_batch=torch.tensor(40))
    assert other.token_loss.item() == pytest.approx(float(total / 40), rel=1e-5)
    assert other.auxiliary_loss == out.auxiliary_loss
    share = (given["labels"] != -100).sum() / 40
    expected = other.token_loss + share * (out.auxiliary_loss or 0)
    assert other.loss.item() == pytest.approx(float(expected))


def test_the_auxiliary_loss_is_the_sum_over_attentions():
    made, found = model(PLANS["mixed"]), []
    for site in attention_sites(made):
        site.module.register_forward_hook(
            lambda module, args, out: found.append(out.routing and out.routing.loss)
        )
    out = made(**batch())
    losses = [loss for loss in found if loss is not None]
    assert len(losses) == 2  # as many as the plan names
    torch.testing.assert_close(out.auxiliary_loss, sum(losses))
    out.loss.backward()
    assert all(p.grad is not None for p in made.parameters())


def test_labels_shift_right_behind_the_start_token():
    labels = torch.tensor([[7, -100, 8, END, -100]])
    made = model()
    expected = torch.tensor([[START, 7, PAD, 8, END]])
    assert torch.equal(shift_right(labels, START, PAD), expected)
    assert torch.equal(made.prepare_decoder_input_ids_from_labels(labels), expected)
    source = tokens(1, 4)
    torch.testing.assert_close(  # behind the last label the model sees padding
        made(input_ids=source, labels=labels).logits[:, :4],
        made(input_ids=source, decoder_input_ids=expected).logits[:, :4],
    )


@pytest.mark.parametrize("plan", ["mae", "moa"])
def test_a_label_left_out_inside_is_not_predicted_but_seen(plan):
    """-100 before the last label is no padding: what follows attends to its position."""
    made = model(PLANS[plan])
    source = tokens(1, 4)
    whole = torch.tensor([[7, 8, 9, END]])
    holed = torch.tensor([[7, -100, 9, END]])
    out = made(input_ids=source, labels=holed)
    total, count = smoothed(out.logits.detach(), holed, 0.0)
    assert count == 3
    assert out.token_loss.item() == pytest.approx(float(total / 3), rel=1e-5)
    # The first two queries see the same in both.
    expected = made(input_ids=source, labels=whole).logits
    torch.testing.assert_close(out.logits[:, :2], expected[:, :2])
    inputs = made.prepare_decoder_input_ids_from_labels(holed)
    unpadded = made(input_ids=source, decoder_input_ids=inputs).logits
    torch.testing.assert_close(out.logits, unpadded)


def test_arguments_that_are_missing():
    made = model()
    with pytest.raises(ValueError, match="input_ids is None"):
        made(decoder_input_ids=tokens(1, 2))
    with pytest.raises(ValueError, match="decoder_inputs_embeds and labels are all None"):
        made(input_ids=tokens(1, 2))


def test_the_encoder_may_have_run_before():
    made, given = model(), batch()
    out = made(**given)
    encoded = made.get_encoder()(given["input_ids"], given["attention_mask"])
    again = made(encoder_outputs=encoded, **{**given, "input_ids": None})
    torch.testing.assert_close(again.logits, out.logits)
    torch.testing.assert_close(encoded.last_hidden_state, out.encoder_last_hidden_state)


# Embeddings


@pytest.mark.parametrize("how", ["all", "target", "none"])
def test_embeddings_are_shared_as_asked(how, tmp_path):
    target = VOCABULARY if how == "all" else 17
    made = model(share_embeddings=how, target_vocab_size=target)
    made.save_pretrained(tmp_path)
    for each in (made, hw.Seq2SeqLM.from_pretrained(tmp_path)):
        source, decoder = each.encoder.embedding.weight, each.decoder.embedding.weight
        assert (source is decoder) == (how == "all")
        assert (decoder is each.lm_head.weight) == (how != "none")
        assert each.get_input_embeddings().weight is source
        assert each.get_output_embeddings().weight is each.lm_head.weight
        assert decoder.shape == (target, 16)
    out = made(input_ids=tokens(2, 4), labels=torch.randint(3, 17, (2, 3)))
    assert out.logits.shape == (2, 3, target)


def test_only_a_joint_vocabulary_can_be_resized():
    with pytest.raises(ValueError, match="share_embeddings is 'target'"):
        model(share_embeddings="target").resize_token_embeddings(30)


def test_a_model_without_its_head_is_resized_too(tmp_path):
    made = AutoModel.from_config(model().config)
    made.resize_token_embeddings(30)
    made.save_pretrained(tmp_path)
    again = AutoModel.from_pretrained(tmp_path)
    assert len(again.decoder.embedding.weight) == again.config.target_vocab_size == 30


def test_decoder_inputs_without_a_batch_are_named():
    with pytest.raises(ValueError, match=r"decoder_input_ids has shape \(3,\)"):
        model()(tokens(2, 4), decoder_input_ids=tokens(1, 3)[0], labels=tokens(2, 3))


# Saving and loading


def test_gates_can_be_added_to_a_checkpoint_without_them(tmp_path):
    """Practitioners start from a standard model: what it has is kept, the gates are fresh."""
    standard = model("standard")
    standard.save_pretrained(tmp_path)
    gated, info = hw.Seq2SeqLM.from_pretrained(tmp_path, attention="mae", output_loading_info=True)
    state = gated.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in standard.state_dict().items())
    assert info["missing_keys"]
    assert all(".gate." in name for name in info["missing_keys"])
    for site in attention_sites(gated):
        gate = site.module.gate
        assert not gate.norm.running_mean.any() and (gate.norm.running_var == 1).all()
        assert (gate.norm.weight == 1).all() and not gate.norm.bias.any()
        assert gate.norm.num_batches_tracked == 0
        bound = math.sqrt(6 / sum(gate.hidden.weight.shape))
        assert 0.5 * bound < gate.hidden.weight.abs().max() <= bound
        assert not gate.hidden.bias.any()
    assert gated(**batch()).logits.isfinite().all()


def test_only_what_is_missing_is_drawn_afresh(tmp_path):
    """A checkpoint that lacks a few tensors of a module keeps the others."""
    made = model("mae")
    made.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    state = load_file(path)
    lost = [
        "model.encoder.layers.0.self_attention.gate.output.weight",
        "model.encoder.layers.0.self_attention.gate.norm.running_var",
        "model.decoder.layers.1.cross_attention.q_proj.weight",
    ]
    save_file({k: v for k, v in state.items() if k not in lost}, path, {"format": "pt"})
    loaded = hw.Seq2SeqLM.from_pretrained(tmp_path).state_dict()
    for name, value in made.state_dict().items():
        assert torch.equal(loaded[name], value) == (name not in lost), name
    assert all(loaded[name].isfinite().all() for name in lost)
    assert (loaded[lost[1]] == 1).all()


@pytest.mark.parametrize(
    "options, parts",
    [
        ({"num_heads": 3}, ["embed_dim is 16", "num_heads = 3"]),
        ({"norm": "middle"}, ["norm is 'middle'", "'post' or 'pre'"]),
        ({"ffn_activation": "swish"}, ["ffn_activation is 'swish'", "'leaky-relu'"]),
        ({"positions": "none"}, ["positions is 'none'", "'learned'"]),
        ({"norm_kind": "root"}, ["norm_kind is 'root'", "'rms'"]),
        ({"bias": "all"}, ["bias is 'all'", "'qkv'"]),
        ({"num_key_value_heads": 3}, ["num_key_value_heads is 3", "num_heads = 4"]),
        ({"rope_parameters": {}}, ["positions is 'sinusoidal'", "'rotary'"]),
        ({"max_positions": 9}, ["max_positions is 9", "positions to 'learned'"]),
        ({"positions": "learned", "max_positions": 0}, ["max_positions is 0", "positive"]),
        ({"share_embeddings": "some"}, ["share_embeddings is 'some'", "'target'"]),
        ({"target_vocab_size": 9}, ["target_vocab_size is 9", "vocab_size = 23", "'target'"]),
    ],
)
def test_sizes_that_do_not_fit_are_errors(options, parts):
    with pytest.raises(ValueError) as error:
        config(**options)
    assert all(part in str(error.value) for part in parts)
