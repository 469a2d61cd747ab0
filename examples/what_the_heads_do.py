# %% [markdown]
# # What the heads do, in a model of your own
#
# A classifier in plain PyTorch learns from which of three packages a docstring comes. The attention
# of its layers is a mixture of attention heads: each token selects 4 of 8 experts. Then four
# questions: Which expert works on which words? What does the model lose without an expert? What do
# the analyses of the papers find, on one page? And what does the model do with one sentence?
#
#     python examples/what_the_heads_do.py

# %%
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import ByteLevelBPETokenizer
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

import headwise as hw
from headwise.data.builtin import paragraphs_of

STEPS = 200
BATCH = 32
LENGTH = 24  # tokens of a text; what is longer is cut
PACKAGES = ("torch", "scipy", "sklearn")
FOLDER = Path("runs/what-the-heads-do")

# %% [markdown]
# ## The data
# As many docstrings of each package as the package with the fewest has; 300 are for the test.

# %%
found = [paragraphs_of(package) for package in PACKAGES]
each = min(map(len, found))
texts = [text for of_package in found for text in of_package[:each]]
labels = torch.arange(len(PACKAGES)).repeat_interleave(each)

byte_level = ByteLevelBPETokenizer()
byte_level.train_from_iterator(
    texts, vocab_size=2000, special_tokens=["<pad>"], show_progress=False
)
tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level._tokenizer, pad_token="<pad>")
tokens = tokenizer(
    texts, padding="max_length", truncation=True, max_length=LENGTH, return_tensors="pt"
)["input_ids"]
torch.manual_seed(0)
order = torch.randperm(len(texts))
test, learned = order[:300], order[300:]

# %% [markdown]
# ## The model
# PyTorch's own layers, whose `self_attn` is replaced. They pass on the output alone;
# `hw.auxiliary_loss` collects the loss by which the mixture balances its experts.


# %%
class Classifier(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(tokenizer), width)
        self.position = nn.Parameter(0.02 * torch.randn(LENGTH, width))
        layer = nn.TransformerEncoderLayer(width, 4, 128, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2)
        self.classes = nn.Linear(width, len(PACKAGES))
        for layer in self.encoder.layers:
            layer.self_attn = hw.MixtureOfAttentionHeads(width, num_experts=8, top_k=4, head_dim=16)

    def forward(self, tokens: Tensor) -> Tensor:
        padding = tokens == tokenizer.pad_token_id
        x = self.embedding(tokens) + self.position[: tokens.size(1)]
        x = self.encoder(x, src_key_padding_mask=padding)
        real = ~padding.unsqueeze(-1)
        return self.classes((x * real).sum(1) / real.sum(1))


model = Classifier().train()
rules = hw.training_rules(model, STEPS)
optimizer = rules.attach(torch.optim.AdamW(rules.parameter_groups(lr=3e-3, weight_decay=0.01)))
for _ in range(STEPS):
    rows = learned[torch.randint(len(learned), (BATCH,))]
    loss = F.cross_entropy(model(tokens[rows]), labels[rows]) + hw.auxiliary_loss(model)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


@torch.no_grad()
def test_losses() -> Tensor:
    """The loss of each text of the test, of the model as it is when this is called."""
    return F.cross_entropy(model(tokens[test]), labels[test], reduction="none")


model.eval()
with torch.no_grad():
    accuracy = (model(tokens[test]).argmax(-1) == labels[test]).float().mean()
print(f"accuracy {accuracy:.1%} on {len(test)} docstrings of {', '.join(PACKAGES)}")

# %% [markdown]
# ## Which expert works on which words?
# `hw.record` notes what the systems decide. `frame` makes a table of it, with a row for each expert
# at each position; the rest is pandas.

# %%
with hw.record(model) as decisions, torch.no_grad():
    model(tokens[test])
words = [tokenizer.batch_decode(row.unsqueeze(-1)) for row in tokens[test]]
table = decisions.frame()
places = zip(table["sequence"], table["position"], strict=True)
table["token"] = [words[sequence][position] for sequence, position in places]
first = table[(table["path"] == "encoder.layers.0.self_attn") & (table["token"].str.len() > 3)]
frequent = first["token"].value_counts().index[:100]
weight = first[first["token"].isin(frequent)].pivot_table("weight", "token", "unit")
print("the frequent words to which each expert of layer 0 gives most weight:")
for expert, weights in weight.items():
    print(f"  expert {expert}: {' '.join(word.strip() for word in weights.nlargest(6).index)}")

# %% [markdown]
# ## What is an expert worth?
# Ablations take a part away, without training anything again. Those of one place need its path;
# those of all places at once the system's name.

# %%
whole = test_losses().mean().item()
with hw.ablated(model, {"moa": "random"}):
    print(f"loss {whole:.3f}; with random experts {test_losses().mean():.3f}", end="; ")
costs = []
for expert in range(8):
    with hw.ablated(model, "encoder.layers.0.self_attn", expert=expert):
        costs.append(test_losses().mean().item() - whole)
print(f"without one expert of layer 0: {' '.join(f'{cost:+.3f}' for cost in costs)}")

# %% [markdown]
# ## All analyses, on a page
# `hw.Analysis` asks everything at once: how undecided, how shared, which tokens, what explains it,
# how alike layers are, and what each part is worth, with tests that are corrected for their number.

# %%
analysis = hw.Analysis(
    model,
    [{"tokens": batch} for batch in tokens[test].split(BATCH)],
    tokens="tokens",
    names=tokenizer.convert_ids_to_tokens,
    quality=test_losses,
    higher_is_better=False,
    name="docstring classifier",
)
results = analysis.record.ablations.results
certain = [r for r in results if r.score.corrected_p_value and r.score.corrected_p_value < 0.05]
print(f"{len(results)} ablations, of which {len(certain)} change the loss by more than chance")
print("the costliest:", results[0].meaning, f"({results[0].score.difference:+.3f})")
print("page:", analysis.write(FOLDER))

# %% [markdown]
# ## One sentence
# As the value of a cell of a notebook this is the page itself; `save` writes it to a file.

# %%
explored = hw.explore(model, tokenizer, "Computes the sparse matrix product on a device.")
print("page:", explored.save(FOLDER / "one-sentence.html"))
explored  # noqa: B018 - what the cell shows
