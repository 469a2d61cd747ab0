"""What it costs a model to do without a unit, or without its decisions: all ablations, ranked."""

import hashlib
import json
import math
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import torch
from rich.progress import Progress as Bars
from torch import nn

from headwise.analysis.ablations.declared import Ablation, Level, declared_ablations
from headwise.analysis.ablations.quality import Quality
from headwise.analysis.ablations.results import (
    AblationAnalysis,
    AblationResult,
    Change,
    Measured,
    changes,
)
from headwise.analysis.decisions.observing import Where
from headwise.analysis.statistics.seeds_and_items import Resampled, change, resampled
from headwise.files import write_text
from headwise.heads.ablation import meaning_of
from headwise.models.inspect import evaluating
from headwise.tasks.scores import Outcome, Record, Score
from headwise.training.loss import own_draws

# Called with how many ablations are done, how many there are, and the one that comes next.
Progress = Callable[[int, int, str], None]

_FORMAT = 4  # of the files of finished ablations
_Result = TypeVar("_Result", bound=Record)


def analyse_ablations(
    model: nn.Module,
    quality: Quality,
    *,
    level: Level = "units",
    folder: Path | None = None,
    progress: Progress = lambda done, total, name: None,
) -> AblationAnalysis | None:
    """Evaluates a model without and with each ablation of its systems.

    The model is evaluated in evaluation mode, and left as it was. In `folder`, if there is one,
    finished ablations are kept, so that an interrupted analysis goes on where it was. What is kept
    of another model, part or evaluation is not used.

    Returns:
        The ablations, the costliest first, with tests that are corrected over all of them; None if
        there are none.
    """
    ablations = declared_ablations(model, level)
    if not ablations:
        return None
    found = []
    with evaluating(model):
        runner = _Runner(model, quality, _Kept(model, quality, folder))
        progress(0, len(ablations) + 1, "without ablation")
        before = runner.without()
        for number, ablation in enumerate(ablations, 1):
            progress(number, len(ablations) + 1, str(ablation))
            found.append(runner.under(ablation, before))
        progress(len(ablations) + 1, len(ablations) + 1, "")
    return _ranked(ablations, found, before, quality, level)


def bar_of(bars: Bars, label: str) -> Progress:
    """Returns a progress that a bar shows, with the ablation that is being made."""
    bar = bars.add_task(label, total=None, figures="")

    def progress(done: int, total: int, coming: str) -> None:
        bars.update(bar, completed=done, total=total, figures=coming)

    return progress


class _Unablated(Record):
    """The model without ablation; both scores have their rows, of which pairs are made."""

    score: Score
    loss: Score | None


class _Finished(Record):
    """What is kept of a finished ablation."""

    score: Measured
    loss: Measured | None


class _Kept:
    """The files of finished ablations of one model, part and evaluation; none without a folder."""

    def __init__(self, model: nn.Module, quality: Quality, folder: Path | None) -> None:
        self.folder: Path | None = None
        if folder is not None:
            settings = json.dumps(quality.determined_by or {}, sort_keys=True, default=str)
            digest = hashlib.sha256(f"{_FORMAT} {settings} ".encode())
            digest.update(weights_digest(model).encode())
            self.folder = folder / digest.hexdigest()[:16]

    def get(self, name: str, kind: type[_Result], make: Callable[[], _Result]) -> _Result:
        """What is kept under a name if it can be read, or else what is made then, and kept."""
        if self.folder is None:
            return make()
        readable = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:80]
        digest = hashlib.sha256(name.encode()).hexdigest()[:8]
        path = self.folder / f"{readable}-{digest}.json"
        with suppress(OSError, ValueError):
            return kind.model_validate_json(path.read_text(encoding="utf-8"))
        made = make()
        with suppress(OSError):  # it only spares time; others' runs may not be written to
            write_text(path, made.model_dump_json())
        return made


class _Runner:
    """Evaluates a model under ablations, unless that has been kept."""

    def __init__(self, model: nn.Module, quality: Quality, kept: _Kept) -> None:
        self.model = model
        self.quality = quality
        self.kept = kept
        self._scores: Resampled | None = None
        self._losses: Resampled | None = None

    def without(self) -> _Unablated:
        """The model without ablation."""
        return self.kept.get("without ablation", _Unablated, self._evaluate)

    def under(self, ablation: Ablation, before: _Unablated) -> _Finished:
        """The model under an ablation, compared with the one without."""
        key = f"{ablation} {ablation.draws}" if ablation.draws else str(ablation)
        return self.kept.get(key, _Finished, lambda: self._compared(ablation, before))

    def _compared(self, ablation: Ablation, before: _Unablated) -> _Finished:
        drawn = []
        for draw in range(max(1, ablation.draws)):
            with ablation.in_force(self.model, draw):
                drawn.append(self._evaluate())
        if self._scores is None:
            self._scores, self._losses = self._resampled([before])
        scores, losses = self._resampled(drawn)
        return _Finished(
            score=_measured(scores, self._scores),
            loss=None
            if losses is None or self._losses is None
            else _measured(losses, self._losses),
        )

    def _evaluate(self) -> _Unablated:
        # What an evaluation draws, such as masks, is the same under all ablations.
        with torch.no_grad(), own_draws():
            torch.manual_seed(0)
            score = self.quality.evaluate().scores[0]
            loss = None
            if self.quality.losses is not None:
                torch.manual_seed(0)
                loss = Score.of("loss", self.quality.losses(), "ratio", lower_is_better=True)
        return _Unablated(score=score, loss=loss)

    def _resampled(self, of: list[_Unablated]) -> tuple[Resampled, Resampled | None]:
        """Score and loss on resamples of the items, a row for each draw."""
        losses = [each.loss for each in of if each.loss is not None]
        return _of_draws([each.score for each in of]), _of_draws(losses) if losses else None


def _of_draws(scores: list[Score]) -> Resampled:
    return resampled([Outcome(scores=[score]) for score in scores], scores[0].name)


def _measured(changed: Resampled, unchanged: Resampled) -> Measured:
    difference, spread = change(changed, unchanged)
    return Measured(
        value=float(changed.scores.mean()) if changed.seeds else math.nan,
        difference=difference,
        spread=spread,
        items=changed.items,
    )


def _ranked(
    ablations: list[Ablation],
    found: list[_Finished],
    before: _Unablated,
    quality: Quality,
    level: Level,
) -> AblationAnalysis:
    first, loss = before.score, before.loss
    scores = changes([each.score for each in found], not first.lower_is_better)
    losses = changes([each.loss for each in found], higher_is_better=False)
    results = [
        _result(ablation, score, of_loss)
        for ablation, score, of_loss in zip(ablations, scores, losses, strict=True)
        if score is not None
    ]
    return AblationAnalysis(
        level=level,
        score=first.name,
        higher_is_better=not first.lower_is_better,
        digits=first.digits,
        item_name=quality.item_name,
        items=len(first.rows),
        value=first.value,
        loss_name=quality.loss_name if loss is not None else "",
        loss=None if loss is None else loss.value,
        results=sorted(results, key=_by_cost),
    )


def _result(ablation: Ablation, score: Change, loss: Change | None) -> AblationResult:
    place = ablation.places[0]
    return AblationResult(
        system=ablation.system,
        ablation=ablation.name,
        options=dict(ablation.options),
        meaning=meaning_of(ablation.name),
        where=Where.of(place) if ablation.unit is not None else None,
        unit=ablation.unit,
        alone=ablation.alone,
        draws=ablation.draws,
        score=score,
        loss=loss,
    )


def _by_cost(result: AblationResult) -> tuple[float, float]:
    """The costliest first; of equal costs that of the larger loss. Without a number last."""
    costs = (result.score.cost, 0.0 if result.loss is None else result.loss.cost)
    score, loss = (math.inf if math.isnan(cost) else -cost for cost in costs)
    return score, loss


def weights_digest(model: nn.Module) -> str:
    """Returns a hash of all parameters and buffers of a model."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
