"""What a report has of the heads of a model: entropy and load of each system, on one part."""

from collections.abc import Iterable

from torch import Tensor
from transformers import PreTrainedModel

from headwise.analysis.decisions.entropy import Entropy, ModuleEntropy
from headwise.analysis.decisions.load import Load, LoadRecord
from headwise.analysis.decisions.observing import observe_batch
from headwise.analysis.decisions.snapshots import DecisionCourse
from headwise.analysis.results import AttentionRecord


def record_attention(
    model: PreTrainedModel,
    batches: Iterable[dict[str, Tensor]],
    snapshots: Iterable[DecisionCourse] = (),
) -> list[AttentionRecord]:
    """Runs a model on batches and returns what its systems of heads decide.

    Entropy is the mean of -Σ w ln w over all rows of weights w, each scaled to sum 1. There is a
    row for each token, for each sequence, or a single one, as the system decides. The percentiles
    of the entropy are taken over the same rows, and are right within `histogram.STEP` nats.

    Load says how the work is shared, and sums to 1. The system's words say how it is measured:

    - `lead`: the share of rows in which a unit has the largest weight; units that have the largest
      weight together share the row;
    - `choice`: the share of all choices that fall on a unit;
    - `weight`: a unit's mean weight.

    Padding counts in nothing.

    Args:
        model: a headwise model; it is put into evaluation.
        batches: keyword arguments of its forward.
        snapshots: of its training; the first is taken before the first step.
    """
    entropy, load = Entropy(), Load()
    model.eval()
    for batch in batches:
        observed = observe_batch(model, batch, {}, {})
        entropy.add(observed)
        load.add(observed)
    entropies = entropy.result()
    if entropies is None:
        return []
    starts = {course.path: course.start_entropy for course in snapshots}
    return [
        _record(entropy, load, starts.get(entropy.where.path))
        for entropy, load in zip(entropies.modules, load.result(), strict=True)
    ]


def _record(entropy: ModuleEntropy, load: LoadRecord, start: float | None) -> AttentionRecord:
    where = entropy.where
    return AttentionRecord(
        site=where.site,
        layer=where.layer,
        system=where.system,
        whole_layer=where.whole_layer,
        experts=entropy.units,
        entropy=entropy.spread.mean.value,
        load=load.share.shares,
        uniform=entropy.spread.uniform,
        entropy_percentiles=entropy.spread.percentiles,
        start_entropy=start,
        heard=entropy.heard,
    )
