"""The figures of all papers."""

from headwise.analysis.papers.agreement import agreement_figures
from headwise.analysis.papers.figures import Paper
from headwise.analysis.papers.gated import gated_figures
from headwise.analysis.papers.mae import mae_figures
from headwise.analysis.papers.moa import moa_figures
from headwise.analysis.papers.moh import moh_figures
from headwise.analysis.papers.tim import tim_figures
from headwise.analysis.papers.weighted import weighted_figures


def published_figures() -> list[Paper]:
    """Returns the figures of all papers, in the order of publication."""
    return [
        weighted_figures(),
        agreement_figures(),
        mae_figures(),
        tim_figures(),
        moa_figures(),
        moh_figures(),
        gated_figures(),
    ]
