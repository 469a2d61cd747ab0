"""What an analysis comes to, in one sentence for each run: the top of its page."""

from statistics import fmean

from headwise.analysis.decisions.record import RunAnalysis
from headwise.heads.words import Words
from headwise.report.analysis_page.ablation_words import costliest


def finding(run: RunAnalysis) -> str:
    """Returns what the heads of a run do, in a few clauses."""
    clauses = [
        clause
        for system, words in run.words.items()
        for clause in (_entropy(run, system, words), _load(run, system, words))
        if clause
    ]
    clauses += [clause for clause in (_likeness(run), _ablation(run)) if clause]
    return f"{run.name}: {'; '.join(clauses)}." if clauses else f"{run.name}: no heads to compare."


def _entropy(run: RunAnalysis, system: str, words: Words) -> str:
    groups = [] if run.entropy is None else run.entropy.models
    for group in groups:
        if group.system == system and group.spread.uniform:
            mean, even = group.spread.mean.value, group.spread.uniform
            return (
                f"the entropy of the {words.decision} is {100 * mean / even:.0f}% of that of even "
                f"weights ({mean:.2f} of {even:.2f} nats{_start(run, system)})"
                f"{_heard(run, system, words)}"
            )
    return ""


def _start(run: RunAnalysis, system: str) -> str:
    """What of it was there before the first step, if the run has taken snapshots."""
    courses = [] if run.courses is None else run.courses.snapshots
    starts = [course.start_entropy for course in courses if course.system == system]
    known = [start for start in starts if start is not None]
    return f"; {fmean(known):.2f} before training" if known else ""


def _heard(run: RunAnalysis, system: str, words: Words) -> str:
    modules = [] if run.entropy is None else run.entropy.modules
    heard = [
        (m.heard / m.units, m.heard, m.units)
        for m in modules
        if m.where.system == system and m.heard is not None
    ]
    if not heard:
        return ""
    _, least, units = min(heard)
    return f", and a {words.part} listens to {least:.1f} of {units} {words.units}"


def _load(run: RunAnalysis, system: str, words: Words) -> str:
    loads = [load.share for load in run.load if load.where.system == system]
    if not loads:
        return ""
    largest = fmean(load.largest for load in loads)
    unused, units = sum(load.unused for load in loads), sum(len(load.shares) for load in loads)
    has = "has" if unused == 1 else "have"
    idle = f" and {unused} of {units} {words.units} {has} no share" if unused else ""
    return f"the busiest {words.unit} of a module has {largest:.1f} times an even share{idle}"


def _likeness(run: RunAnalysis) -> str:
    if run.likeness is None:
        return ""
    alike = [found.mean_outputs for found in run.likeness.modules if found.mean_outputs is not None]
    if not alike:
        return ""
    return f"what two heads say is alike by {fmean(alike):.2f} (0 unlike, 1 the same)"


def _ablation(run: RunAnalysis) -> str:
    found = "" if run.ablations is None else costliest(run.ablations)
    return f"the costliest ablation: {found}" if found else ""
