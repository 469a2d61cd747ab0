"""The papers' measures of decisions: each is a function of a `DecisionTable`.

Peng et al. 2020, *A Mixture of h − 1 Heads is Better than h Heads* (MAE),
https://arxiv.org/abs/2005.06537; Zhang et al. 2022, *Mixture of Attention Heads* (MoA),
https://arxiv.org/abs/2210.05144; Lamb et al. 2021, *Transformers with Competitive Ensembles of
Independent Mechanisms* (TIM), https://arxiv.org/abs/2103.00336.

>>> import torch
>>> import headwise as hw
>>> sizes = {"vocab_size": 9, "embed_dim": 8, "num_heads": 2, "ffn_dim": 8, "layers": 1}
>>> model = hw.CausalLM(hw.CausalLMConfig(**sizes, attention="gated"))
>>> batches = [{"input_ids": torch.randint(9, (3, 20))} for _ in range(2)]
>>> (d,) = hw.analyse(model, batches, tokens="input_ids").decisions
>>> bool(entropy(d)["mean"] <= entropy(d)["even"]), round(float(unit_load(d).sum()), 3)
(True, 1.0)
>>> pmi(d, min_count=2).columns.tolist()
['unit', 'name', 'occurrences', 'pmi', 'low', 'high']
>>> explained = {label: epsilon_squared(d, label) for label in d.labels}
>>> list(explained)
['position', 'token']
"""

import math
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pandas as pd
from scipy.special import stdtrit, xlogy
from torch import nn

from headwise.analysis.decisions import Batch, DecisionTable, collect
from headwise.tasks.scores import spread
from headwise.tasks.task import Task
from headwise.training.batches import token_batches

_NORMAL = 1.959963984540054  # its quantile for an interval of 95%
_MONITORED = 32  # sequences that `decision_monitor` reads


def entropy(d: DecisionTable) -> pd.Series:
    """Measures how undecided a system is: the mean entropy -Σ w ln w of its weights w, in nats.

    It is 0 if one unit has all weight, and ln N if N units weigh alike; MAE, section 5.1.

    Returns:
        `mean` over the rows, with a 95% interval from `low` to `high`; and `even`, the entropy if
        all units, or all chosen units, had equal weights. The interval is that of the ratio of two
        sums over sequences, which are independent (Cochran 1977, *Sampling Techniques*, chapter 6);
        NaN if there are less than two.
    """
    w = d.weights.astype(np.float64)
    rows = pd.Series(-xlogy(w, w).sum(1))  # NaN of negative weights
    mean, half = rows.mean(skipna=False), np.nan
    if d.scope != "everything":
        deviations = (rows - mean).groupby(d.rows["sequence"].to_numpy()).sum()
        dof = len(deviations) - 1
        if dof:
            error = np.sqrt((deviations**2).sum() * len(deviations) / dof) / len(rows)
            half = stdtrit(dof, 0.975) * error
    even = np.log(w.shape[1] if d.chosen is None else d.chosen.shape[1])
    low, high = max(mean - half, 0.0), min(mean + half, even)
    return pd.Series({"mean": mean, "low": low, "high": high, "even": even})


def unit_load(d: DecisionTable) -> pd.Series:
    """Computes the share of the decisions that goes to each unit; the shares sum to 1.

    MAE, table 8, and MoA, figures 3 and 4. See `DecisionTable.utilization`.
    """
    return pd.Series(d.utilization.mean(0), name=d.place)


def pmi(d: DecisionTable, label: str = "token", top: int = 10, min_count: int = 5) -> pd.DataFrame:
    """Finds the tokens, or classes of another label, that go to each unit more often than others.

    They are found by pointwise mutual information, ln p(unit | token) / p(unit): MAE, table 6, and
    MoA, table 4. A token goes to the chosen units of the decision on it, or to the unit of largest
    weight. Tokens are ranked by the lower end of the interval, so that rare ones do not lead by
    chance; those with fewer than `min_count` decisions are left out.

    Returns:
        A row for each unit and each of its `top` tokens, with `unit`, `name`, `occurrences`,
        `pmi`, and its 95% interval from `low` to `high`, by Wilson's (1927,
        https://doi.org/10.2307/2276774) of p(unit | token) with as many trials as decisions.
    """
    rows = d.positions[d.positions[label].notna()]
    names, assignment = rows[label].to_numpy(), pd.DataFrame(d.assignment[rows.index])
    by_name, is_constant = assignment.groupby(names), _is_constant_in_sequences(rows, label)
    decisions = rows["sequence"] if is_constant else rows.index.to_series()
    n, occurrences = decisions.groupby(names).nunique(), by_name.size()
    table = by_name.mean().rename_axis("name").melt(ignore_index=False, var_name="unit")
    table = table.assign(n=n, occurrences=occurrences)
    table = table[(table["n"] >= min_count) & (table["value"] > 0)]
    p, z = table["value"], _NORMAL**2 / table["n"]
    centre, half = (p + z / 2) / (1 + z), np.sqrt(z * (p * (1 - p) + z / 4)) / (1 + z)
    shares = {"pmi": p, "low": (centre - half).clip(0), "high": (centre + half).clip(upper=1)}
    overall = table["unit"].map(assignment.mean())
    table = table.assign(**{name: np.log(share / overall) for name, share in shares.items()})
    best = table.sort_values("low", ascending=False, kind="stable").groupby("unit").head(top)
    best = best.sort_values("unit", kind="stable").reset_index()
    return best[["unit", "name", "occurrences", "pmi", "low", "high"]]


def epsilon_squared(d: DecisionTable, label: str) -> float:
    """Measures how much of the decisions a label explains: 1 is all, about 0 nothing.

    It is the share of the variance of the weights w that lies between the C classes of a label, of
    which class c has n_c of the N rows, less what is expected by chance p (Kelley 1935, *An
    Unbiased Correlation Ratio Measure*, https://doi.org/10.1073/pnas.21.9.554):

        η² = Σ_c n_c ‖w̄_c - w̄‖² / Σ ‖w - w̄‖²,    ε² = (η² - p) / (1 - p),    p = (C - 1) / (N - 1).

    With the side of an image as label, η² is what we read in TIM, figure 2. If all rows of a
    sequence have the same class, a row is the mean over a sequence, since its positions resemble
    each other. Positions and lengths are divided into the classes 0, 1, 2 to 3, 4 to 7, and so on.
    It is NaN if nothing varies, or if each row has a class of its own.
    """
    rows = d.rows[d.rows[label].notna()]
    classes, w = rows[label], pd.DataFrame(d.weights[rows.index].astype(np.float64))
    if pd.api.types.is_numeric_dtype(classes):
        classes = pd.Series(np.frexp(classes)[1], classes.index)
    if len(rows) and _is_constant_in_sequences(rows, label):
        sequence = rows["sequence"].to_numpy()
        w, classes = w.groupby(sequence).mean(), classes.groupby(sequence).first()
    by_class = w.groupby(classes.to_numpy())
    total = ((w - w.mean()) ** 2).to_numpy().sum()
    # Of equal weights rounding may leave a little.
    if not total > 1e-12 * (w**2).to_numpy().sum() or len(w) <= len(by_class):
        return np.nan
    between = ((by_class.transform("mean") - w.mean()) ** 2).to_numpy().sum()
    chance = (len(by_class) - 1) / (len(w) - 1)
    return float((between / total - chance) / (1 - chance))


def layer_similarity(tables: Sequence[DecisionTable], levels: Sequence[str] = ()) -> pd.DataFrame:
    """Measures how alike several systems decide, such as those of the layers of a stack.

    Of systems with two units it is the correlation r of the weights of their first units: TIM,
    figures 3 and 4. Of others, whose units have no order in common, it is the RV coefficient
    (Robert and Escoufier 1976, https://doi.org/10.2307/2347233), which is linear CKA: with the
    covariances S of the weights of two systems

        RV = tr(S_xy S_yx) / √(tr(S_xx²) tr(S_yy²)).

    It is 1 if the weights of one are those of the other, renumbered or scaled, and about 0 if two
    systems decide independently on many rows. The systems decided on the same rows; `levels` are
    quantities of the rows, such as loudness, to compare the decisions with. The table is square,
    with NaN where the weights do not vary.
    """
    columns = {d.place: d.weights for d in tables}
    columns |= {level: tables[0].rows[[level]].to_numpy() for level in levels}
    centred = {name: _centred(x) for name, x in columns.items()}
    if all(d.weights.shape[1] == 2 for d in tables):
        return pd.DataFrame({name: x[:, 0] for name, x in centred.items()}).corr()
    products = {
        name: {other: np.linalg.norm(x.T @ y) for other, y in centred.items()}
        for name, x in centred.items()
    }
    norms = pd.Series({name: np.linalg.norm(x.T @ x) ** 0.5 for name, x in centred.items()})
    return (pd.DataFrame(products).div(norms, axis=0) / norms) ** 2


def decision_monitor(task: Task, batch_tokens: int) -> Callable[[nn.Module], dict[str, float]]:
    """Returns a function that measures the decisions of a model on a few validation sequences.

    These are 32 sequences, spread evenly over the part, in batches of at most `batch_tokens`
    tokens. The function returns figures by their names in `RunResult.history`.
    """

    @cache
    def batches() -> list[Batch]:
        part = task.stored_items("validation")
        chosen = np.array(spread(range(len(part.lengths)), _MONITORED))
        order = token_batches(np.asarray(part.lengths)[chosen], batch_tokens)
        return [task.collate(part.__getitems__(chosen[batch].tolist())) for batch in order]

    def monitor(model: nn.Module) -> dict[str, float]:
        figures: dict[str, float] = {}
        for d in collect(model, batches(), task.describe):
            figures[f"entropy {d.place}"], *_, figures[f"even entropy {d.place}"] = entropy(d)
            figures |= {f"share {d.place}/{unit}": share for unit, share in unit_load(d).items()}
            figures |= {f"explained {d.place}/{x}": epsilon_squared(d, x) for x in d.labels}
        return {name: round(float(x), 5) for name, x in figures.items() if math.isfinite(x)}

    return monitor


def _centred(x: np.ndarray) -> np.ndarray:
    """Subtracts the means of columns; a column that varies only by rounding becomes exactly 0."""
    x = x.astype(np.float64)
    deviations = x - x.mean(0)
    return np.where((deviations**2).sum(0) > 1e-12 * (x**2).sum(0), deviations, 0.0)


def _is_constant_in_sequences(rows: pd.DataFrame, label: str) -> bool:
    """Says whether all rows of each sequence have the same class."""
    return bool((rows.groupby("sequence")[label].nunique() == 1).all())
