# %% [markdown]
# # Gates over the heads of a pretrained model
#
# Put gates over the heads of a pretrained model, see that it computes what it did, train the gates
# alone on other text, save them apart from the model, look at what they do, and take them away. As
# `MODEL` give any causal language model of the hub or a folder; without one a small GPT-2 is
# trained first, on the docstrings of PyTorch, and the gates then learn on those of SciPy.
#
#     python examples/gate_a_pretrained_model.py

# %%
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

import headwise as hw
from headwise.data.builtin import paragraphs_of
from headwise.data.tokenizers import TokenizerSettings, learn_tokenizer

MODEL = ""  # such as openai-community/gpt2
SYSTEM = "mae"  # or "gated", "moh"
STEPS, PRETRAINING_STEPS = 200, 400
PACKAGES = ("torch", "scipy")  # of the first and of the second domain
BLOCK = 64  # tokens
FOLDER = Path("runs/gated")
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


# %%
def make_blocks(tokenizer, texts):
    """All texts one after the other, in pieces of one length."""
    text = "".join(f"{text}{tokenizer.eos_token}" for text in texts)
    ids = torch.tensor(tokenizer(text, add_special_tokens=False)["input_ids"])
    return ids[: len(ids) // BLOCK * BLOCK].view(-1, BLOCK)


def train(model, blocks, steps, learning_rate, settings=None):
    rules = hw.TrainingRules(model.train(), steps, steps_per_epoch=50, settings=settings)
    optimizer = rules.attach(torch.optim.AdamW(rules.parameter_groups(lr=learning_rate)))
    for _ in range(steps):
        batch = blocks[torch.randint(len(blocks), (32,))]
        rules.before_step(lambda batch=batch: model(batch, labels=batch).loss)
        (model(batch, labels=batch).loss + hw.auxiliary_loss(model)).backward()
        optimizer.step()
        optimizer.zero_grad()


@torch.no_grad()
def logits_and_loss(model, blocks):
    out = model.eval()(blocks, labels=blocks)
    return out.logits, out.loss.item()


def pretrain(texts, folder):
    tokenizer = learn_tokenizer(texts, TokenizerSettings(vocab_size=1000), "classifier")
    sizes = {"n_embd": 64, "n_layer": 2, "n_head": 8, "n_positions": BLOCK}
    special = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = transformers.GPT2Config(vocab_size=len(tokenizer), **sizes, **special)
    model = transformers.GPT2LMHeadModel(config)
    train(model, make_blocks(tokenizer, texts), PRETRAINING_STEPS, 3e-3)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


torch.manual_seed(0)
name = MODEL or pretrain(paragraphs_of(PACKAGES[0]), FOLDER / "gpt2")
blocks = make_blocks(AutoTokenizer.from_pretrained(name), paragraphs_of(PACKAGES[1]))
held_out, training_blocks = blocks[:64], blocks[64:]

# %% [markdown]
# ## Put gates over it, and train them alone

# %%
model = AutoModelForCausalLM.from_pretrained(name)
before, loss = logits_and_loss(model, held_out)
hw.gate_heads(model.requires_grad_(False), SYSTEM)
logits, _ = logits_and_loss(model, held_out)
print(f"gates added: logits differ by {(logits - before).abs().max():.1e} at most")
trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
print(f"to train: {trainable:,} of {model.num_parameters():,} parameters")
# MAE's gates have an SGD of their own, whose rate of 1 in the paper is too low here.
settings = {"mae": {"learning_rate": 30.0}} if SYSTEM == "mae" else {}
train(model, training_blocks, STEPS, 1e-2, settings)
after, gated_loss = logits_and_loss(model, held_out)
print(f"loss on {len(held_out)} blocks: {loss:.4f} before, {gated_loss:.4f} after {STEPS} steps")

# %% [markdown]
# ## Save them, put them on the untouched model, look at them, and take them away

# %%
hw.save_gates(model, FOLDER / "gates")
fresh = AutoModelForCausalLM.from_pretrained(name)
hw.load_gates(fresh, FOLDER / "gates")
with hw.record(fresh) as decisions:
    logits, _ = logits_and_loss(fresh, held_out)
print(f"loaded: logits differ by {(logits - after).abs().max():.1e} at most")
print(decisions.frame().pivot_table("weight", "path", "unit").round(3).to_string())
hw.remove_gates(fresh)
print("removed: the model as it was:", torch.equal(logits_and_loss(fresh, held_out)[0], before))
