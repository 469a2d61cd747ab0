# %% [markdown]
# # A system of your own, in one file
#
# A new idea for the heads, from its equation to its comparison with standard attention. Here the
# heads of a token divide a budget: the token has H shares in all, and gives more of them to the
# heads that it needs,
#
#     yₜ = Σᵢ sᵢ(t) oᵢ(t) Wᵢ,   s(t) = H · softmax(xₜ G).
#
# With G = 0 each head has one share, and the layer computes standard attention.
#
#     python examples/a_system_of_your_own.py

# %%
from pathlib import Path

import torch
import transformers
from rich.console import Console
from torch import Tensor, nn

import headwise as hw
from headwise.recipes.recipe import RecipeFile
from headwise.report.comparison import read_comparison, results_table, write_report
from headwise.runs.compare import plan_comparison, run_comparison
from headwise.testing import check_system

PACKAGES = ["torch", "scipy", "sklearn"]
SEEDS = [1, 2, 3]
STEPS = 100
FOLDER = Path("runs/shared-budget")  # what it holds is not trained again

# %% [markdown]
# ## The system
# `combine` gets what each head has read, and returns the output with what has been decided.
# `ablate_weights` lets an ablation change that.


# %%
class SharedBudget(hw.MultiHeadAttention):
    """yₜ = Σᵢ sᵢ(t) oᵢ(t) Wᵢ, s(t) = H · softmax(xₜ G)."""

    routing_parameters = ("budget",)
    supported_ablations = hw.systems.ablations_of("head")

    def __init__(self, embed_dim: int, num_heads: int, **options) -> None:
        super().__init__(embed_dim, num_heads, **options)
        self.budget = nn.Linear(embed_dim, num_heads, bias=False)
        self.init_neutral()

    def init_neutral(self) -> None:
        nn.init.zeros_(self.budget.weight)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self.init_neutral()

    def combine(self, heads: Tensor, inputs, state) -> tuple[Tensor, hw.Routing]:
        # heads: (batch, heads, queries, head_dim)
        shares = self.ablate_weights(
            self.budget(inputs.query).softmax(-1)
        )  # (batch, queries, heads)
        scaled = heads * self.num_heads * shares.transpose(1, 2).unsqueeze(-1)
        output, _ = super().combine(scaled, inputs, state)
        return output, hw.Routing(shares)


# %% [markdown]
# ## Check it
# `check_system` tries what models ask of every system: shapes, causality, padding, decoding with a
# cache, gradients, copies, half precision. What only its author knows is the equation.

# %%
check_system(SharedBudget)
print("SharedBudget passes check_system")
standard, x = hw.MultiHeadAttention(64, 8), torch.randn(2, 10, 64)
neutral = SharedBudget.from_attention(standard)
print("without training it is standard attention:", torch.equal(neutral(x)[0], standard(x)[0]))

# %% [markdown]
# ## Compare it
# A recipe is a YAML file or, as here, the same as a dictionary: from which of three installed
# packages does a docstring come? A plan names a system of one's own as `module:Class`.

# %%
RECIPE = {
    "task": "classification",
    "data": {"path": "docstrings", "options": {"packages": PACKAGES}, "max_length": 24},
    "tokenizer": {"vocab_size": 2000},
    "model": {"layers": 2, "embed_dim": 64, "num_heads": 8, "ffn_dim": 128, "pooling": "mean"},
    "training": {"max_steps": STEPS, "batch_tokens": 768, "learning_rate": 0.002},
    "systems": {"standard": {}, "budget": {"model": {"attention": f"{__name__}:SharedBudget"}}},
}
transformers.utils.logging.disable_progress_bar()
file, command = RecipeFile("shared-budget", RECIPE), "python examples/a_system_of_your_own.py"
planned = plan_comparison(file, ["standard", "budget"], SEEDS, FOLDER, Console())
run_comparison(planned, FOLDER, command, Console(), write=write_report)
Console(width=100).print(results_table(read_comparison(FOLDER)))
print("report:", FOLDER / "report.html")
