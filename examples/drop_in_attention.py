# %% [markdown]
# # All systems in a model of your own
#
# The model below is written in plain PyTorch. It reads images of handwritten digits
# (scikit-learn's, 8 × 8 pixels) row by row. Its attention is `nn.MultiheadAttention`; then each
# system of headwise takes that place, and nothing else changes. What comes back is a table: the
# test accuracy over three seeds, the difference to `nn.MultiheadAttention` with its 95% interval,
# the number of parameters, and the seconds of training.
#
#     python examples/drop_in_attention.py

# %%
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from scipy import stats
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import headwise as hw

SEEDS = (1, 2, 3)
EPOCHS = 12
BATCH = 100
TRAINING_IMAGES = 1000  # of 1,797; the others are for the test
WIDTH, HEADS, HIDDEN = 64, 8, 128

# %% [markdown]
# ## The data
# An image is a sequence of 8 rows with 8 pixels each.

# %%
digits = load_digits()
rows = torch.tensor(digits.images, dtype=torch.float32) / 16  # (images, rows, pixels)
train_x, test_x, train_y, test_y = train_test_split(
    rows, torch.tensor(digits.target), train_size=TRAINING_IMAGES, random_state=0
)

# %% [markdown]
# ## The model
# Every system is called as `nn.MultiheadAttention` is, and the first item of what it returns is the
# output. `replaces` says how much of a layer a system takes the place of: an attention, also the
# feed-forward behind it (`BranchedAttention`), or the whole layer (`IndependentMechanismsLayer`).


# %%
class Layer(nn.Module):
    """A post-norm layer with the attention that it is given."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention = attention
        self.replaces = getattr(attention, "replaces", "attention")
        if self.replaces != "layer":
            self.attention_norm = nn.LayerNorm(WIDTH)
        if self.replaces == "attention":
            self.feed_forward = nn.Sequential(
                nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDTH)
            )
            self.feed_forward_norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        if self.replaces == "layer":
            return self.attention(x)[0]
        x = self.attention_norm(x + self.attention(x, x, x)[0])
        if self.replaces == "attention":
            x = self.feed_forward_norm(x + self.feed_forward(x))
        return x


class Reader(nn.Module):
    """Two layers over the rows of an image; the class is read off their mean."""

    def __init__(self, make_attention: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.embedding = nn.Linear(8, WIDTH)
        self.position = nn.Parameter(0.02 * torch.randn(8, WIDTH))
        self.layers = nn.ModuleList(Layer(make_attention()) for _ in range(2))
        self.classes = nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embedding(x) + self.position
        for layer in self.layers:
            x = layer(x)
        return self.classes(x.mean(1))


# %% [markdown]
# ## The systems
# MoA selects 8 of 16 heads for each row, MoH 6 of 8; the independent mechanisms are two.

# %%
SYSTEMS: dict[str, Callable[[], nn.Module]] = {
    "nn.MultiheadAttention": lambda: nn.MultiheadAttention(WIDTH, HEADS, batch_first=True),
    "MultiHeadAttention": lambda: hw.MultiHeadAttention(WIDTH, HEADS),
    "BranchedAttention": lambda: hw.BranchedAttention(WIDTH, HEADS, ffn_dim=HIDDEN),
    "AgreementAttention": lambda: hw.AgreementAttention(WIDTH, HEADS),
    "MixtureOfAttentiveExperts": lambda: hw.MixtureOfAttentiveExperts(WIDTH, HEADS),
    "IndependentMechanismsLayer": lambda: hw.IndependentMechanismsLayer(
        WIDTH, HEADS, ffn_dim=HIDDEN, num_mechanisms=2
    ),
    "MixtureOfAttentionHeads": lambda: hw.MixtureOfAttentionHeads(
        WIDTH, num_experts=2 * HEADS, top_k=HEADS, head_dim=WIDTH // HEADS
    ),
    "GatedAttention": lambda: hw.GatedAttention(WIDTH, HEADS),
    "MixtureOfHeads": lambda: hw.MixtureOfHeads(WIDTH, HEADS, shared_heads=2, top_k=4),
}

# %% [markdown]
# ## Training
# One loop for all. `training_rules` follows the rules by which some papers train their systems, and
# `auxiliary_loss` is what systems add to the loss, such as MoA's balance of experts; for a model
# without such systems they do nothing.


# %%
def train(model: nn.Module) -> None:
    batches = len(train_x) // BATCH
    total = EPOCHS * batches
    rules = hw.training_rules(model, total, steps_per_epoch=batches)
    optimizer = torch.optim.AdamW(rules.parameter_groups(lr=3e-3, weight_decay=0.01))
    rules.attach(optimizer)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=total)
    model.train()
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(train_x)).split(BATCH):

            def loss(batch: Tensor = batch) -> Tensor:
                logits = model(train_x[batch])
                return F.cross_entropy(logits, train_y[batch]) + hw.auxiliary_loss(model)

            rules.before_step(loss)
            loss().backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()


@torch.no_grad()
def accuracy(model: nn.Module) -> float:
    return (model.eval()(test_x).argmax(-1) == test_y).double().mean().item()


# %% [markdown]
# ## The comparison
# Each system is trained with each seed. The interval of a difference is that of Welch's test over
# the seeds: where it holds zero, these seeds cannot tell the two apart.

# %%
print(f"{'attention':<28}{'parameters':>10}{'seconds':>9}{'accuracy':>10}   difference")
baseline: list[float] = []
for name, make_attention in SYSTEMS.items():
    scores, start = [], time.perf_counter()
    for seed in SEEDS:
        torch.manual_seed(seed)
        model = Reader(make_attention)
        train(model)
        scores.append(100 * accuracy(model))
    seconds = (time.perf_counter() - start) / len(SEEDS)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    mean = sum(scores) / len(scores)
    row = f"{name:<28}{parameters:>10,}{seconds:>9.1f}{mean:>9.1f}%"
    if baseline:
        test = stats.ttest_ind(scores, baseline, equal_var=False)
        low, high = test.confidence_interval()
        print(f"{row}   {mean - sum(baseline) / len(baseline):+.1f} [{low:+.1f}, {high:+.1f}]")
    else:
        baseline = scores
        print(row)
