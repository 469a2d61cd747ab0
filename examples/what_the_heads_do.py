# %% [markdown]
# # What the heads do, in a model of your own
#
# A classifier in plain PyTorch learns from which of three packages a docstring comes. The attention
# of its layers is a mixture of attention heads, of whose 8 experts each token selects 4. Which
# experts work on which words, what is each worth, and what does the model do with one sentence?
#
#     python examples/what_the_heads_do.py

# %%
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import headwise as hw
from headwise.analysis.metrics import pmi
from headwise.data.builtin import paragraphs_of
from headwise.data.tokenizers import TokenizerSettings, learn_tokenizer

STEPS = 200
PACKAGES = ("torch", "scipy", "sklearn")
WIDTH, LENGTH = 64, 24  # tokens of a text; what is longer is cut
FOLDER = Path("runs/what-the-heads-do")

docstrings = [paragraphs_of(package)[:800] for package in PACKAGES]
texts = [text for part in docstrings for text in part]
labels = torch.tensor([label for label, part in enumerate(docstrings) for _ in part])
tokenizer = learn_tokenizer(texts, TokenizerSettings(vocab_size=2000), "classifier")
shape = {"padding": "max_length", "truncation": True, "max_length": LENGTH, "return_tensors": "pt"}
tokens = tokenizer(texts, add_special_tokens=False, **shape)["input_ids"]
torch.manual_seed(0)
order = torch.randperm(len(texts))
test, train = order[:300], order[300:]

# %% [markdown]
# ## The model
# PyTorch's own layers, whose `self_attn` is replaced. They pass on the output alone;
# `hw.auxiliary_loss` collects the loss by which the mixture balances its experts.


# %%
class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(tokenizer), WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2)
        self.classes = nn.Linear(WIDTH, len(PACKAGES))
        for layer in self.encoder.layers:
            layer.self_attn = hw.MixtureOfAttentionHeads(WIDTH, num_experts=8, top_k=4, head_dim=16)

    def forward(self, tokens: Tensor) -> Tensor:
        padding = tokens == tokenizer.pad_token_id
        x = self.encoder(self.embedding(tokens), src_key_padding_mask=padding)
        real = ~padding.unsqueeze(-1)
        return self.classes((x * real).sum(1) / real.sum(1))


model = Classifier().train()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for _ in range(STEPS):
    rows = train[torch.randint(len(train), (32,))]
    loss = F.cross_entropy(model(tokens[rows]), labels[rows]) + hw.auxiliary_loss(model)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

# %% [markdown]
# ## What the experts do, and what they are worth
# `hw.analyse` runs the model on the test once, and once without each part. `quality` gives a number
# for each item. What comes back holds DataFrames, and writes a page.


# %%
@torch.no_grad()
def is_right() -> Tensor:
    return (model(tokens[test]).argmax(-1) == labels[test]).double()


analysis = hw.analyse(
    model,
    [{"tokens": rows} for rows in tokens[test].split(50)],
    tokens="tokens",
    names=lambda number: tokenizer.decode([number]).strip(),
    quality=is_right,
    name="docstring classifier",
)
print(*analysis.findings, sep="\n")
print("the words that go to each expert of layer 0 more than to others:")
for expert, words in pmi(analysis.decisions[0], top=6).groupby("unit"):
    print(f"  expert {expert}: {' '.join(words['name'])}")
print("page:", analysis.write(FOLDER))

# %% [markdown]
# ## One sentence
# As the value of a cell of a notebook this is the page itself; `save` writes it to a file.

# %%
explored = hw.explore(model, tokenizer, "Computes the sparse matrix product on a device.")
print("page:", explored.save(FOLDER / "one-sentence.html"))
explored  # noqa: B018 - what the cell shows
