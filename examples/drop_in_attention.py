# %% [markdown]
# # All systems in a model and a loop of your own
#
# A classifier in plain PyTorch reads scikit-learn's images of digits (8 × 8 pixels) row by row. Its
# attention is `nn.MultiheadAttention`; then each system of headwise takes that place. Printed is
# the test accuracy over three seeds, and its difference to `nn.MultiheadAttention` with the 95%
# interval of Welch's test over the seeds.
#
#     python examples/drop_in_attention.py

# %%
import torch
import torch.nn.functional as F
from scipy import stats
from sklearn.datasets import load_digits
from torch import Tensor, nn

import headwise as hw

SEEDS = (1, 2, 3)
EPOCHS = 12
WIDTH, HEADS, HIDDEN = 64, 8, 128

digits = load_digits()
images, labels = torch.tensor(digits.images).float() / 16, torch.tensor(digits.target)
order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
train, test = order[:1000], order[1000:]

# %% [markdown]
# ## The model
# Every system is called as `nn.MultiheadAttention` is. `replaces` says how much of a layer it takes
# the place of: an attention, also the feed-forward behind it, or the whole layer.


# %%
class Layer(nn.Module):
    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention = attention
        self.replaces = getattr(attention, "replaces", "attention")
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.ffn = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        if self.replaces == "layer":
            return self.attention(x)[0]
        x = self.norms[0](x + self.attention(x, x, x)[0])
        return self.norms[1](x + self.ffn(x)) if self.replaces == "attention" else x


SYSTEMS = {
    "nn.MultiheadAttention": lambda: nn.MultiheadAttention(WIDTH, HEADS, batch_first=True),
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
# ## The loop
# `TrainingRules` follows the rules by which some papers train their systems, and `auxiliary_loss`
# is what systems add to the loss, such as MoA's balance of experts. Elsewhere they do nothing.


# %%
def accuracy(make_attention, seed: int) -> float:
    torch.manual_seed(seed)
    layers = [Layer(make_attention()) for _ in range(2)]
    model = nn.Sequential(nn.Linear(8, WIDTH), *layers, nn.Flatten(), nn.Linear(8 * WIDTH, 10))
    rules = hw.TrainingRules(model, total_steps=10 * EPOCHS, steps_per_epoch=10)
    optimizer = rules.attach(torch.optim.AdamW(rules.parameter_groups(lr=2e-3, weight_decay=0.01)))
    for rows in (rows for _ in range(EPOCHS) for rows in train[torch.randperm(1000)].split(100)):

        def loss(rows: Tensor = rows) -> Tensor:
            return F.cross_entropy(model(images[rows]), labels[rows]) + hw.auxiliary_loss(model)

        rules.before_step(loss)
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        return 100 * (model.eval()(images[test]).argmax(-1) == labels[test]).float().mean().item()


# %%
baseline = []
for name, make_attention in SYSTEMS.items():
    scores = [accuracy(make_attention, seed) for seed in SEEDS]
    baseline = baseline or scores
    mean, baseline_mean = sum(scores) / len(SEEDS), sum(baseline) / len(SEEDS)
    low, high = stats.ttest_ind(scores, baseline, equal_var=False).confidence_interval()
    difference = f"{mean - baseline_mean:+.1f} [{low:+.1f}, {high:+.1f}]"
    print(f"{name:<28}{mean:.1f}%  {difference if scores != baseline else ''}")
