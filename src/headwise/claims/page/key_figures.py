"""The figure of a claim that the list of claims shows: that of the test which decided."""

from headwise.claims.judging.verdicts import Finding, Verdict
from headwise.report.formatting import NONE


def key_figure(verdict: Verdict) -> str:
    """Returns the figures and the difference of the test that decided a verdict.

    >>> one = Finding(test="a better than b", kind="confirmed", figures="2.0 against 1.0 BLEU")
    >>> other = Finding(
    ...     test="a better than c", kind="contradicted", difference="−1.0 [−1.5, −0.5], p < 0.001"
    ... )
    >>> key_figure(Verdict(kind="confirmed", findings=[one]))
    '2.0 against 1.0 BLEU'
    >>> key_figure(Verdict(kind="contradicted", findings=[one, other]))
    'a better than c: −1.0 [−1.5, −0.5], p < 0.001 (1 of 2 tests)'
    """
    # What is not comparable speaks against the claim.
    kind = "contradicted" if verdict.kind == "not comparable" else verdict.kind
    found = [finding for finding in verdict.findings if finding.kind == kind]
    if not found or verdict.kind == "not run":
        return NONE
    said = _said(found[0])
    if len(verdict.findings) == 1:
        return said
    return f"{found[0].test}: {said} ({len(found)} of {len(verdict.findings)} tests)"


def _said(finding: Finding) -> str:
    return "; ".join(part for part in (finding.figures, finding.difference) if part) or NONE
