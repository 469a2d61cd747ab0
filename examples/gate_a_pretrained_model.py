# %% [markdown]
# # Gates over the heads of a pretrained model
#
# Load a model, put gates over its heads, see that it computes what it did, train the gates alone on
# other text, save them apart from the model, look at what they do, and take them away again. As
# `MODEL` give any causal language model of the hub or a folder; without one a small GPT-2 is
# trained first, on the docstrings of PyTorch, and the gates then learn on those of SciPy.
#
#     python examples/gate_a_pretrained_model.py

# %%
from pathlib import Path
from typing import ClassVar

import torch
import transformers
from tokenizers import ByteLevelBPETokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

import headwise as hw
from headwise.data.builtin import paragraphs_of

MODEL = ""  # such as openai-community/gpt2
SYSTEM = "mae"  # or "gated", "moh"
STEPS, PRETRAINING_STEPS = 200, 400
PACKAGES = ("torch", "scipy")  # of the first and of the second domain
BLOCK = 64  # tokens
FOLDER = Path("runs/gated")
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

# %% [markdown]
# ## Data and training
# `RulesMixin` has the Trainer of transformers train each system by the rule of its paper. MAE's
# gates have an SGD of their own, whose rate of 1 in the paper is too low here.


# %%
class GatesTrainer(hw.RulesMixin, transformers.Trainer):
    rule_settings: ClassVar = {"mae": {"learning_rate": 30.0}} if SYSTEM == "mae" else {}


def train(model, blocks, steps, learning_rate, kind=transformers.Trainer):
    arguments = transformers.TrainingArguments(
        str(FOLDER / "training"),
        max_steps=steps,
        learning_rate=learning_rate,
        per_device_train_batch_size=32,
        save_strategy="no",
        report_to="none",
        logging_strategy="no",
        disable_tqdm=True,
    )
    rows = [{"input_ids": block, "labels": block} for block in blocks]
    trainer = kind(model, arguments, train_dataset=rows)
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()


def blocks_of(tokenizer, texts):
    """All texts one after the other, in pieces of one length."""
    text = "".join(f"{text}{tokenizer.eos_token}" for text in texts)
    ids = torch.tensor(tokenizer(text, add_special_tokens=False)["input_ids"])
    return ids[: len(ids) // BLOCK * BLOCK].view(-1, BLOCK)


def pretrain(texts, folder):
    bytes_ = ByteLevelBPETokenizer()
    bytes_.train_from_iterator(
        texts, vocab_size=1000, special_tokens=["<end>"], show_progress=False
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bytes_._tokenizer, eos_token="<end>")
    sizes = {"n_embd": 64, "n_layer": 2, "n_head": 8, "n_positions": BLOCK}
    config = transformers.GPT2Config(vocab_size=len(tokenizer), **sizes, eos_token_id=0)
    model = transformers.GPT2LMHeadModel(config)
    train(model, blocks_of(tokenizer, texts), PRETRAINING_STEPS, 3e-3)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


# %%
transformers.set_seed(0)
name = MODEL or pretrain(paragraphs_of(PACKAGES[0]), FOLDER / "gpt2")
tokenizer = AutoTokenizer.from_pretrained(name)
blocks = blocks_of(tokenizer, paragraphs_of(PACKAGES[1]))
held_out, learned = blocks[:64], blocks[64:]


@torch.no_grad()
def logits_and_loss(model):
    out = model.eval().cpu()(held_out, labels=held_out)
    return out.logits, out.loss.item()


# %% [markdown]
# ## Put gates over it, and train them alone

# %%
model = AutoModelForCausalLM.from_pretrained(name)
before, loss = logits_and_loss(model)
hw.gate_heads(model.requires_grad_(False), SYSTEM)
logits, _ = logits_and_loss(model)
print(f"gates added: logits differ by {(logits - before).abs().max():.1e} at most")
trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
print(f"to train: {trained:,} of {model.num_parameters():,} parameters")
train(model, learned, STEPS, 1e-2, GatesTrainer)
after, gated_loss = logits_and_loss(model)
print(f"loss on {len(held_out)} blocks: {loss:.4f} before, {gated_loss:.4f} after {STEPS} steps")

# %% [markdown]
# ## Save them, put them on the untouched model, look at them, and take them away

# %%
hw.save_gates(model, FOLDER / "gates")
fresh = AutoModelForCausalLM.from_pretrained(name)
hw.load_gates(fresh, FOLDER / "gates")
with hw.record(fresh) as decisions:
    logits, _ = logits_and_loss(fresh)
print(f"loaded: logits differ by {(logits - after).abs().max():.1e} at most")
print("mean weights of the heads' gates:")
print(decisions.frame().pivot_table("weight", "path", "unit").round(3).to_string())

hw.remove_gates(fresh)
print("removed: the model as it was:", torch.equal(logits_and_loss(fresh)[0], before))
