# %% [markdown]
# # A language model in your own training loop
#
# `hw.CausalLM` is a Hugging Face model, and the loop below is plain PyTorch: an optimizer, a schedule,
# accumulated gradients and clipping. MAE's paper asks for more than that. Its gates and its experts
# learn in turn, the gates by an SGD of their own. `training_rules` adds that to the loop in four lines.
#
# Standard attention, MAE without its rule and MAE with it are trained on the docstrings of PyTorch.
# What comes back is the validation loss of the three, how sure MAE's gates are with and without the
# rule, and a text that the last model writes.
#
#     python examples/language_model_own_loop.py

# %%
import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from tokenizers import ByteLevelBPETokenizer
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

import headwise as hw
from headwise.tasks.text.labelled.docstrings import docstrings

STEPS = 200
BLOCKS = 16  # in a batch, of which two make a step
LENGTH = 64  # tokens of a block
PROMPT = "Returns a tensor"

# %% [markdown]
# ## The data
# First paragraphs of docstrings, one after the other, in blocks of one length. The tokens are
# subwords, learned from the same text.

# %%
texts = docstrings("torch")
byte_level = ByteLevelBPETokenizer()
byte_level.train_from_iterator(
    texts, vocab_size=1000, special_tokens=["<end>"], show_progress=False
)
tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level._tokenizer, eos_token="<end>")
ids = torch.tensor(
    [number for text in texts for number in [*tokenizer(text)["input_ids"], tokenizer.eos_token_id]]
)
blocks = ids[: len(ids) // LENGTH * LENGTH].view(-1, LENGTH)
held_out, learned = blocks[::10], blocks[torch.arange(len(blocks)) % 10 > 0]
print(f"{len(texts):,} docstrings, {len(learned):,} blocks to learn from, {len(held_out):,} held out")

# %% [markdown]
# ## The loop
# The four lines are those with `rules`. `before_step` is given a function that computes the losses of
# the coming step, since MAE takes a step for its gates first, if one is due; with accumulated gradients
# the function gives one loss after the other. For a model whose systems have no rule nothing happens.


# %%
def batches(steps: int) -> Iterator[list[Tensor]]:
    for _ in range(steps):
        yield list(learned[torch.randint(len(learned), (2 * BLOCKS,))].split(BLOCKS))


def train(model: hw.CausalLM, follow_rules: bool) -> None:
    rules = hw.training_rules(model, STEPS, settings=SETTINGS) if follow_rules else None
    groups = rules.parameter_groups(lr=1e-3) if rules else model.parameters()
