"""transformers: saving and loading, what models take and return, checkpointing, Trainer."""

import copy
import os
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
import torch
from compatible import CONFIGS, PLANS, compatible, tiny_model
from tiny import PAD, START, VOCABULARY, tokens
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    Trainer,
    TrainingArguments,
)

from headwise.heads.mae.rule import Step
from headwise.models.seq2seq import shift_right
from headwise.transformers_internals import CACHE

TOOL = "transformers"
AUTO = {
    "causal": AutoModelForCausalLM,
    "masked": AutoModelForMaskedLM,
    "classifier": AutoModelForSequenceClassification,
    "seq2seq": AutoModelForSeq2SeqLM,
}
HEADS = 4


def inputs(kind):
    """A batch with padding behind, without labels."""
    torch.manual_seed(1)
    ids, mask = tokens(3, 6), torch.ones(3, 6, dtype=torch.long)
    ids[0, 4:], mask[0, 4:] = PAD, 0
    given = {"input_ids": ids, "attention_mask": mask}
    if kind == "seq2seq":
        given["decoder_input_ids"] = tokens(3, 5)
    return given


def labels(kind):
    if kind == "classifier":
        return torch.tensor([0, 1, 0])
    made = tokens(3, 6)
    made[0, 4:] = -100
    return made


def with_labels(kind):
    given = inputs(kind)
    given.pop("decoder_input_ids", None)
    return {**given, "labels": labels(kind)}


def stacks(made, out):
    """Each stack with its hidden states and attentions."""
    if made.config.is_encoder_decoder:
        yield made.encoder, out.encoder_hidden_states, out.encoder_attentions
        yield made.decoder, out.decoder_hidden_states, out.decoder_attentions
    else:
        yield made.base_model, out.hidden_states, out.attentions


@compatible(TOOL, "`save_pretrained`, and `from_pretrained` of the Auto class with the head")
def test_save_and_load(system, tmp_path):
    for kind, auto in AUTO.items():
        model, given = tiny_model(kind, system), inputs(kind)
        model.save_pretrained(tmp_path / kind)
        loaded = auto.from_pretrained(tmp_path / kind)
        assert type(loaded) is type(model)
        assert torch.equal(loaded(**given).logits, model(**given).logits)


# Nothing of headwise is imported here.
ELSEWHERE = """
import sys, torch, transformers
from pathlib import Path
folder, found = Path(sys.argv[1]), {}
for path in sorted(folder.glob("*/*")):
    auto, given = torch.load(path / "given.pt")
    read = getattr(transformers, auto).from_pretrained(path, trust_remote_code=True)
    found[str(path.relative_to(folder))] = read(**given).logits.detach()
torch.save(found, folder / "found.pt")
"""


@pytest.fixture(scope="module")
def read_elsewhere(tmp_path_factory):
    """Logits of each saved model in a process that has not imported headwise."""
    folder = tmp_path_factory.mktemp("elsewhere")
    for system in PLANS:
        for kind, auto in AUTO.items():
            path = folder / system / kind
            tiny_model(kind, system).save_pretrained(path)
            torch.save((auto.__name__, inputs(kind)), path / "given.pt")
    environment = {**os.environ, "HF_HOME": str(folder / ".cache"), "HF_HUB_OFFLINE": "1"}
    subprocess.run([sys.executable, "-c", ELSEWHERE, folder], check=True, env=environment)
    return torch.load(folder / "found.pt")


@compatible(TOOL, "the same without `import headwise`, by `trust_remote_code=True`")
def test_load_without_import(system, read_elsewhere):
    for kind in AUTO:
        expected = tiny_model(kind, system)(**inputs(kind)).logits
        torch.testing.assert_close(read_elsewhere[f"{system}/{kind}"], expected)


@compatible(TOOL, "`AutoModel`: hidden states, without the head; and back")
def test_auto_model(system, tmp_path):
    for kind, auto in AUTO.items():
        model, given = tiny_model(kind, system), inputs(kind)
        model.save_pretrained(tmp_path / kind)
        loaded = AutoModel.from_pretrained(tmp_path / kind)
        out = model(**given, output_hidden_states=True)
        *_, (_, states, _) = stacks(model, out)
        assert torch.equal(loaded(**given).last_hidden_state, states[-1])
        loss = loaded(**given).auxiliary_loss
        assert loss is out.auxiliary_loss is None or torch.equal(loss, out.auxiliary_loss)
        loaded.save_pretrained(tmp_path / "body")
        again = auto.from_pretrained(tmp_path / "body").base_model
        for name, weight in loaded.state_dict().items():
            own = again.state_dict()[name.removeprefix(f"{type(model).base_model_prefix}.")]
            assert torch.equal(own, weight), name


def seen_by_layers(model, stack, given):
    """What each layer of a stack reads, and what the norm behind them gives."""
    read, given_back = [], []
    hooks = [
        layer.register_forward_pre_hook(lambda _, args: read.append(args[0]))
        for layer in stack.layers
    ]
    hooks.append(stack.final_norm.register_forward_hook(lambda *args: given_back.append(args[2])))
    model(**given)
    for hook in hooks:
        hook.remove()
    return read, *given_back


@pytest.mark.parametrize("norm", ["post", "pre"])
@compatible(TOOL, "`output_hidden_states`, as an argument and in the configuration")
def test_hidden_states(system, norm):
    for kind in CONFIGS:
        model, given = tiny_model(kind, system, norm=norm), inputs(kind)
        out = model(**given, output_hidden_states=True)
        for stack, states, _ in stacks(model, out):
            read, given_back = seen_by_layers(model, stack, given)
            expected = [*read, given_back]
            assert all(torch.equal(*pair) for pair in zip(states, expected, strict=True))
        only_last = model(**given, output_hidden_states=-1)
        for (_, every, _), (_, last, _) in zip(
            stacks(model, out), stacks(model, only_last), strict=True
        ):
            assert last[:-1] == (None, None) and torch.equal(last[-1], every[-1])
        model.config.output_hidden_states = True
        assert all(states is not None for _, states, _ in stacks(model, model(**given)))
        assert torch.equal(model(**given).logits, out.logits)


@compatible(TOOL, "`output_attentions`, `cross_attentions`, and in the configuration")
def test_attentions(system):
    for kind in CONFIGS:
        model, given = tiny_model(kind, system), inputs(kind)
        expected = model(**given).logits
        out = model(**given, output_attentions=True)
        assert torch.equal(out.logits, expected)
        of_all = [(weights, given["attention_mask"]) for *_, weights in stacks(model, out)]
        if kind == "seq2seq":
            of_all[1] = (out.decoder_attentions, torch.ones(3, 5, dtype=torch.long))
            of_all.append((out.cross_attentions, given["attention_mask"]))
        for attentions, keys in of_all:
            assert len(attentions) == 2
            for weights in attentions:
                heads = 5 if system == "moa" else HEADS  # all that could be chosen, of 5 experts
                assert weights.shape[:2] == (3, heads) and weights.size(3) == keys.size(1)
                assert (weights.masked_select(keys[:, None, None] == 0) == 0).all()
                sums = weights.sum(-1)
                if system == "moa":  # two of five for each position
                    assert ((sums > 0.5).sum(1) == 2).all()
                    sums = sums[sums > 0]
                if system == "differential":  # the rest of each row is subtracted
                    assert ((sums > 0) & (sums < 1)).all()
                    continue
                torch.testing.assert_close(sums, torch.ones_like(sums))
        model.config.output_attentions = True
        for (*_, weights), (*_, again) in zip(
            stacks(model, out), stacks(model, model(**given)), strict=True
        ):
            assert all(torch.equal(a, b) for a, b in zip(weights, again, strict=True))


@compatible(TOOL, "`return_dict=False`, as an argument and in the configuration")
def test_tuples(system):
    for kind in CONFIGS:
        model, given = tiny_model(kind, system), with_labels(kind)
        out = model(**given)
        loss, logits, *_ = model(**given, return_dict=False)
        assert torch.equal(loss, out.loss) and torch.equal(logits, out.logits)
        model.config.return_dict = False
        assert type(model(**given)) is tuple


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
@compatible(TOOL, "`inputs_embeds` in place of tokens")
def test_inputs_embeds(system, positions):
    for kind in CONFIGS:
        model, given = tiny_model(kind, system, positions=positions), inputs(kind)
        expected = model(**given).logits
        embedded = {**given, "inputs_embeds": model.get_input_embeddings()(given["input_ids"])}
        del embedded["input_ids"]
        assert torch.equal(model(**embedded).logits, expected)
        if kind == "seq2seq":
            ids = embedded.pop("decoder_input_ids")
            embedded["decoder_inputs_embeds"] = model.get_decoder().embedding(ids)
            assert torch.equal(model(**embedded).logits, expected)
        with pytest.raises(ValueError, match="expected exactly one of them"):
            model(**given, inputs_embeds=embedded["inputs_embeds"])


@pytest.mark.parametrize("kind_of_positions", ["sinusoidal", "learned"])
@compatible(TOOL, "`position_ids`")
def test_position_ids(system, kind_of_positions):
    for kind in CONFIGS:
        model, given = tiny_model(kind, system, positions=kind_of_positions), inputs(kind)
        expected = model(**given).logits
        positions = given["attention_mask"].cumsum(1) - 1
        assert torch.equal(model(**given, position_ids=positions).logits, expected)
        moved = model(**given, position_ids=torch.arange(6) + 2).logits
        assert not torch.allclose(moved, expected, atol=1e-3)
        if kind == "seq2seq":
            same = model(**given, decoder_position_ids=torch.arange(5)[None]).logits
            torch.testing.assert_close(same, expected)
            moved = model(**given, decoder_position_ids=torch.arange(5)[None] + 1).logits
            assert not torch.allclose(moved, expected, atol=1e-3)
        with pytest.raises(ValueError, match=r"position_ids has shape \(5,\), expected"):
            model(**given, position_ids=torch.arange(5))
        if kind_of_positions == "learned":
            with pytest.raises(ValueError, match="a sequence has 601 tokens"):
                model(**given, position_ids=positions + 595)


def learn(model, given):
    """The losses, gradients and buffers of steps of training, and the next random number."""
    found = []
    for step in Step.__args__:
        for module in model.modules():
            if hasattr(module, "step"):
                module.step = step
        torch.manual_seed(5)
        out = model(**given)
        for module in model.modules():
            if hasattr(module, "step"):
                module.step = "joint"  # the layers are to remember how they computed
        out.loss.backward()
        found += [out.loss.detach(), torch.rand(1)]
    found += [parameter.grad for parameter in model.parameters()]
    return found + [buffer.clone() for buffer in model.buffers()]


@compatible(TOOL, "gradient checkpointing, equal to the last bit")
def test_gradient_checkpointing(system):
    rates = {"dropout": 0.1, "attention_dropout": 0.1, "ffn_dropout": 0.1}
    for kind in CONFIGS:
        model = tiny_model(kind, system, **rates).train()
        checkpointed = copy.deepcopy(model)
        checkpointed.gradient_checkpointing_enable()
        computed = Counter()
        layer = checkpointed.get_submodule("decoder" if kind == "causal" else "encoder").layers[0]
        next(layer.children()).register_forward_pre_hook(lambda *_, seen=computed: seen.update("x"))
        given = with_labels(kind)
        for ours, theirs in zip(learn(checkpointed, given), learn(model, given), strict=True):
            assert ours is theirs is None or torch.equal(ours, theirs)
        assert computed.total() == 2 * len(Step.__args__)


@compatible(TOOL, "gradient checkpointing and caches")
def test_gradient_checkpointing_and_caches(system):
    for kind in ("causal", "seq2seq"):
        model, given = tiny_model(kind, system), with_labels(kind)
        filled = model(**given, use_cache=True).cache
        assert filled.get_seq_length() == 6
        expected = model.generate(given["input_ids"], max_new_tokens=3, do_sample=False)
        model.gradient_checkpointing_enable()
        again = model.generate(given["input_ids"], max_new_tokens=3, do_sample=False)
        assert torch.equal(again, expected)
        model.train()
        assert model(**given, use_cache=True).cache is None
        with pytest.raises(ValueError, match=f"{CACHE} holds positions already"):
            model(**given, cache=filled)
        with pytest.raises(ValueError, match="use_reentrant is True, expected False"):
            model.gradient_checkpointing_enable({"use_reentrant": True})


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@compatible(TOOL, "`attn_implementation`: `sdpa`, `eager`, `flex_attention`")
def test_attn_implementation(system, tmp_path):
    for kind, auto in AUTO.items():
        model, given = tiny_model(kind, system), inputs(kind)
        expected = model(**given).logits
        model.save_pretrained(tmp_path / kind)
        eager = auto.from_pretrained(tmp_path / kind, attn_implementation="eager")
        assert eager.config._attn_implementation == "eager"
        assert model.config._attn_implementation == "sdpa"
        torch.testing.assert_close(eager(**given).logits, expected, atol=1e-5, rtol=1e-5)
        with pytest.raises(ImportError, match=r"(?i)flash.?attention"):
            model.set_attn_implementation("flash_attention_2")
        model.set_attn_implementation("flex_attention")
        with torch.no_grad():
            torch.testing.assert_close(model(**given).logits, expected, atol=1e-5, rtol=1e-5)
        with pytest.raises(ValueError, match="flex_attention has no backward pass on the CPU"):
            model(**given)
        model.set_attn_implementation("eager")
        assert model(**given).logits.requires_grad


@compatible(TOOL, "plain `Trainer.predict`: `predictions.argmax(-1)`")
def test_plain_trainer_predicts(system, tmp_path):
    for kind in CONFIGS:
        model, given = tiny_model(kind, system), with_labels(kind)
        rows = [{name: tensor[row] for name, tensor in given.items()} for row in range(3)]
        trainer = Trainer(
            model,
            TrainingArguments(
                str(tmp_path), per_device_eval_batch_size=2, report_to="none", use_cpu=True
            ),
            compute_metrics=lambda p: {"right": (p.predictions.argmax(-1) == p.label_ids).mean()},
        )
        found = trainer.predict(rows)
        np.testing.assert_allclose(
            found.predictions, model(**given).logits.detach(), rtol=1e-4, atol=1e-5
        )
        assert "test_right" in found.metrics


@compatible(TOOL, "`resize_token_embeddings`, `get_output_embeddings`, `tie_weights`")
def test_resize_token_embeddings(system):
    for kind in CONFIGS:
        model, given = tiny_model(kind, system), inputs(kind)
        with torch.no_grad():  # a graph would hold on to the weights of before
            expected = model(**given).logits
        model.resize_token_embeddings(VOCABULARY + 3)
        assert model.config.vocab_size == VOCABULARY + 3
        head = model.get_output_embeddings()
        logits = model(**given).logits
        torch.testing.assert_close(logits[..., : expected.size(-1)], expected)
        if kind == "classifier":
            assert head is None
            continue
        assert logits.size(-1) == VOCABULARY + 3
        model.tie_weights()
        assert head.weight is model.get_input_embeddings().weight
        shifted = shift_right(given["input_ids"], START, PAD)
        model(**{**given, "input_ids": shifted + 3}).logits.sum().backward()


@compatible(
    TOOL,
    "`device_map` with layers on the disk, or chosen for little memory: the same logits",
    needs=("accelerate",),
)
def test_weights_on_the_disk(system, tmp_path):
    model, given = tiny_model("causal", system), inputs("causal")
    model.save_pretrained(tmp_path)
    parts = [name for name, _ in model.decoder.named_children() if name != "layers"]
    by_hand = {f"decoder.{name}": "cpu" for name in parts} | {"lm_head": "cpu"}
    layers = len(model.decoder.layers)
    by_hand |= {f"decoder.layers.{i}": "disk" if i else "cpu" for i in range(layers)}
    size = sum(parameter.nbytes for parameter in model.parameters())
    most = {"cpu": size * 3 // 4}  # an older accelerate puts no model on the disk as a whole
    for how in ({"device_map": by_hand}, {"device_map": "auto", "max_memory": most}):
        apart = type(model).from_pretrained(tmp_path, offload_folder=tmp_path / "disk", **how)
        with torch.no_grad():
            torch.testing.assert_close(apart.eval()(**given).logits, model(**given).logits)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@compatible(TOOL, "`dtype=bfloat16` and `float16`: forward, backward, `generate`")
def test_half_precision(system, dtype, tmp_path):
    for kind, auto in AUTO.items():
        model, given = tiny_model(kind, system), with_labels(kind)
        expected = model(**given).loss
        model.save_pretrained(tmp_path / kind)
        half = auto.from_pretrained(tmp_path / kind, dtype=dtype)
        assert half.dtype == dtype
        out = half.train()(**given)
        out.loss.backward()
        assert out.logits.dtype == dtype and out.token_loss.dtype == torch.float32
        assert torch.isfinite(out.loss)
        assert half.eval()(**given).loss.item() == pytest.approx(expected.item(), rel=0.2)
        if kind in ("causal", "seq2seq"):
            made = half.generate(given["input_ids"], max_new_tokens=3, num_beams=2)
            assert made.size(0) == 3
