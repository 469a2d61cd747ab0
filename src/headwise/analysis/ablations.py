"""What it costs a trained model to do without a part: it is evaluated again under each ablation.

    table 5 of Peng et al. 2020 (MAE) and table 3 of Ahmed et al. 2017 (Weighted Transformer)

Nothing is trained again. The difference to the whole model is paired over the test items, so that
its interval and test hold for this model; they say nothing about models of other seeds.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from headwise.analysis.importance import item_losses
from headwise.analysis.statistics import Scores, holm, paired_change
from headwise.heads.ablation import ablation_option
from headwise.heads.system import System
from headwise.messages import check_choice
from headwise.models.inspect import eval_mode, find_systems, layer_label
from headwise.models.modeling import HeadwiseModel
from headwise.pretrained.ablate import ablated, check_ablations
from headwise.pretrained.gates import with_identity_gates
from headwise.recipes.recipe import Evaluation
from headwise.tasks.scores import Score
from headwise.tasks.task import Task
from headwise.training.loss import preserve_rng_state
from headwise.yaml import read_yaml

Level = Literal["none", "model", "units"]
Quality = Callable[[], Score]  # evaluates a model as it is when called
_DRAWS = 5  # of a random ablation, whose result is the mean over them
_COLUMNS = (
    *("ablation", "path", "place", "unit", "options", "value", "difference", "low", "high"),
    *("p", "corrected_p", "cost", "share", "reason"),
)
_ABLATION_TEXT = re.compile(r"([^=,]+)=([^=,]+)(?:,([^=,]+)=(.+))?")  # SYSTEM=NAME[,OPTION=VALUE]


class _Ablation(NamedTuple):
    name: str  # one of the `supported_ablations` of a system
    unit: str  # what it removes, or else weighs
    options: dict[str, Any]
    systems: dict[str, System]  # those that it changes, by their paths
    path: str = ""  # of the system of which it removes a unit; empty if it changes all of a kind


def ablate(
    model: nn.Module,
    quality: Quality,
    level: Level = "units",
    *,
    track: Callable[[Sequence[Any]], Iterable[Any]] = iter,
) -> pd.DataFrame:
    """Evaluates a model without and with each ablation of its systems, one ablation at a time.

    The model is in evaluation mode meanwhile; it, its gradients and random draws are as before
    afterwards. A plain model of transformers is one of standard attentions, whose heads are
    removed.

    Args:
        model: a model of headwise or of transformers, or any module that holds systems.
        quality: evaluates the model as it is when called, always on the same items in the same
            order, see `task_quality`, `loss_quality` and `item_quality`.
        level: `"model"` is what changes all systems of a kind at once, such as equal weights;
            `"units"` also removes each expert, head or branch of each system; `"none"` is nothing.
        track: goes through the ablations and shows how far it is, such as `rich.progress.track`.

    Returns:
        A row for each ablation, the costliest first: the `ablation`, see `headwise.heads.ablation`;
        `path` and `place` of the system, empty if all of a kind are changed; the `unit`, such as
        expert, and the `options`, such as `{"expert": 3}`; the `value` of the score, of random
        weights the mean over five draws; its `difference` to that of the whole model, with the 95%
        interval from `low` to `high`, `p`, and `corrected_p` by Holm's method, or the `reason` for
        their absence; the `cost`, by how much the score is worse; and the `share`, the cost over
        the score of the whole model: 1 if all of it is lost, or if a loss doubles.

        Its `attrs` have `score`, the name of the score, `value`, that of the whole model,
        `lower_is_better`, `digits`, its number of decimals, and `items`, how many there are.

    Example:
        >>> import headwise as hw
        >>> layer = nn.ModuleDict({"first": hw.MultiHeadAttention(16, num_heads=4)})
        >>> x = torch.randn(20, 5, 16)
        >>> size = item_quality(lambda: layer["first"](x).output.square().mean((1, 2)), name="size")
        >>> table = ablate(layer, size)
        >>> len(table), table.attrs["score"], table["options"].iloc[0].keys()
        (4, 'size', dict_keys(['head']))
    """
    check_choice("level", level, ("none", "model", "units"))
    with preserve_rng_state(), with_identity_gates(model), eval_mode(model):
        ablations = _ablations(model, level)
        if not ablations:
            return pd.DataFrame(columns=_COLUMNS)
        whole = _evaluate(model, None, quality)
        unchanged, rows = Scores.from_runs([whole]), []
        for ablation in track(ablations):
            path, draws = ablation.path, [ablation]
            if ablation_option(ablation.name) == "seed":
                draws = [ablation._replace(options={"seed": draw}) for draw in range(_DRAWS)]
            scores = Scores.from_runs([_evaluate(model, draw, quality) for draw in draws])
            change = paired_change(scores, unchanged)
            cost = (change.value if whole.lower_is_better else -change.value) + 0.0  # never -0.0
            figures = {
                "ablation": ablation.name,
                "place": layer_label(path, ablation.systems[path]) if path else "",
                "value": scores.values.mean() if len(scores.values) else math.nan,
                "difference": change.value,
                "cost": cost,
                "share": cost / whole.value if whole.value > 0 else math.nan,
            }
            rows.append({**ablation._asdict(), **vars(change), **figures})
    table = pd.DataFrame(rows, columns=_COLUMNS)
    table["corrected_p"] = holm(table["p"])
    table = table.sort_values("cost", ascending=False, kind="stable", ignore_index=True)
    table.attrs |= {"score": whole.name, "value": whole.value, "digits": whole.digits}
    table.attrs |= {"lower_is_better": whole.lower_is_better, "items": len(whole.rows)}
    return table


def task_quality(model: HeadwiseModel, task: Task, part: str, evaluation: Evaluation) -> Quality:
    """Returns a quality: the first score of a task; texts are generated anew each time."""
    if "samples" in type(evaluation).model_fields:  # of images, which nobody looks at
        evaluation = evaluation.model_copy(update={"samples": 0})
    return lambda: task.evaluate(model, part, evaluation).scores[0]


def loss_quality(model: nn.Module, batches: Sequence[Mapping[str, Any]]) -> Quality:
    """Returns a quality: the mean loss per label of batches, which `item_losses` explains.

    One pass over the batches is much faster than to generate text, and a loss shows smaller
    differences than BLEU does.
    """

    def measure() -> Tensor:
        losses = [torch.stack(item_losses(model, batch), 1).double().cpu() for batch in batches]
        return torch.cat(losses)

    return item_quality(measure, higher_is_better=False, name="nats per token")


def item_quality(
    measure: Callable[[], Any], *, higher_is_better: bool = True, name: str = "quality"
) -> Quality:
    """Returns a quality: the mean of the numbers that a function returns, one for each test item.

    Args:
        measure: returns an array, a tensor or a list of shape `(items,)`, in the same order each
            time; or `(items, 2)`, a total and a count for each item, such as the loss of its
            tokens and their number: the score is the sum of all totals divided by that of all
            counts.
        higher_is_better: whether larger numbers are better; not of a loss.
        name: of the score.
    """

    def score() -> Score:
        measured = measure()
        if isinstance(measured, Tensor):
            measured = measured.detach().to("cpu", torch.float64)
        rows = np.asarray(measured, dtype=np.float64)
        if rows.ndim == 1 and len(rows):
            rows = np.stack([rows, np.ones_like(rows)], axis=1)
        if rows.ndim != 2 or rows.shape[1] != 2 or not len(rows):
            raise ValueError(
                f"the quality has the shape {rows.shape}, expected (items,): a number for each "
                f"item; or (items, 2): a total and a count for each"
            )
        return Score.from_rows(name, rows, "ratio", lower_is_better=not higher_is_better, digits=3)

    return score


def parse_ablations(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Reads ablations as the command line gives them: `SYSTEM=NAME[,OPTION=VALUE]` each.

    A value is YAML; a list has its commas in brackets.

    >>> parse_ablations(["mae=without-expert,expert=[0, 2]"])
    {'mae': {'name': 'without-expert', 'expert': [0, 2]}}
    """
    ablations: dict[str, dict[str, Any]] = {}
    for text in texts:
        match = _ABLATION_TEXT.fullmatch(text)
        if match is None:
            raise ValueError(
                f"ablation is {text!r}, expected SYSTEM=NAME, or with an option "
                f"SYSTEM=NAME,OPTION=VALUE"
            )
        system, name, option, value = (part and part.strip() for part in match.groups())
        if system in ablations:
            raise ValueError(f"ablation is {text!r}, but {system} has one already")
        ablations[system] = {"name": name} | ({option: read_yaml(value)} if option else {})
    check_ablations(ablations)
    return ablations


def removable_parts(system: System) -> list[str]:
    """Says what can be removed from a system, one at a time: its units, such as experts, and heads.

    A part of which it has only one cannot be removed: nothing would be left.
    """
    parts = dict.fromkeys((system.unit, "head"))
    supported = [part for part in parts if f"without-{part}" in system.supported_ablations]
    return [part for part in supported if count_parts(system, part) > 1]


def count_parts(system: Any, part: str) -> int:
    """Counts the heads, or the other units, of a system."""
    count: int = system.num_heads if part == "head" else system.num_units
    return count


def _ablations(model: nn.Module, level: Level) -> list[_Ablation]:
    """Lists the ablations: first those of all systems of a kind, then those of a single unit."""
    kinds: dict[Any, dict[str, Any]] = {}
    for path, system in find_systems(model).items():
        if system.num_units > 1:
            kind = type(system), system.unit, system.supported_ablations
            kinds.setdefault(kind, {})[path] = system
    whole_kinds: list[_Ablation] = []
    for (_, unit, names), alike in kinds.items():
        # Fewer units than a system has in force anyway.
        in_force = min(getattr(each, "top_k", None) or each.num_units for each in alike.values())
        for name in names:
            option = ablation_option(name)
            if option in (None, "seed"):
                whole_kinds.append(_Ablation(name, unit, {}, alike))
            elif option == "top_k":
                # With 1 it is what `largest` does.
                top_k = range(2, in_force)
                whole_kinds += [_Ablation(name, unit, {option: k}, alike) for k in top_k]
    single_units = [
        _Ablation(f"without-{part}", part, {part: number}, {path: system}, path)
        for path, system in find_systems(model).items()
        for part in removable_parts(system)
        for number in range(count_parts(system, part))
    ]
    return {"none": [], "model": whole_kinds, "units": whole_kinds + single_units}[level]


def _evaluate(model: nn.Module, ablation: _Ablation | None, quality: Quality) -> Score:
    """Evaluates a model under an ablation, or without any."""
    with ExitStack() as stack:
        if ablation is not None:
            for path in ablation.systems:
                stack.enter_context(ablated(model, path, ablation.name, **ablation.options))
        torch.manual_seed(0)  # what an evaluation draws, such as masks, is the same each time
        with torch.no_grad():
            return quality()
