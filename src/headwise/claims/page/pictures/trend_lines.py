"""The picture of a question: the differences of systems from the baseline along a key."""

from headwise.claims.page.pictures.card import card
from headwise.claims.why.answers import Answer
from headwise.report.formatting import in_words
from headwise.report.svg import drawing, looks_of, panel, reference_line

_WIDTH, _HEIGHT = 640, 320
_APART = 0.06  # by how much lines stand beside each other, so that intervals do not cover others


def trend_lines(answer: Answer) -> str | None:
    """Returns an SVG file with a line for each system, and an interval at each point.

    Args:
        answer: what is known of the question.

    Returns:
        The text of the file; None unless a system is known at two points.
    """
    question = answer.question
    baseline, *others = question.systems
    known = {
        system: [
            (place, point.value, point)
            for place, point in enumerate(answer.told[system])
            if point.value is not None
        ]
        for system in others
    }
    drawn = {system: points for system, points in known.items() if len(points) > 1}
    found = next((p.found for of in drawn.values() for *_, p in of if p.found), None)
    if found is None:
        return None
    look_of = looks_of(question.systems)
    identity = f"why-{question.scale}-{question.name}"
    said = []
    with drawing(identity):
        figure, axes = panel(_HEIGHT, width=_WIDTH)
        reference_line(axes, 0.0, baseline)
        for number, (system, points) in enumerate(drawn.items()):
            look, aside = look_of[system], _APART * (number - (len(drawn) - 1) / 2)
            axes.plot(
                [place + aside for place, *_ in points],
                [value for _, value, _ in points],
                color=look.colour,
                linestyle=look.dashes,
                marker=look.marker,
                markersize=7,
                label=system,
            )
            for place, _, point in points:
                if point.difference is not None:
                    ends = [point.difference.low, point.difference.high]
                    across = [place + aside] * 2
                    axes.plot(across, ends, color=look.colour, linewidth=1.2, marker="_")
            at = [
                f"{point.said(found.digits)} at {question.at[place]}" for place, _, point in points
            ]
            said.append(f"{system} {', '.join(at)}; {answer.trends[system]}")
        axes.set_xticks(range(len(question.at)), [str(value) for value in question.at])
        axes.set_xlim(-0.4, len(question.at) - 0.6)
        better = "above" if found.higher_is_better else "below"
        axes.set_xlabel(question.over)
        axes.set_ylabel(f"Test {in_words(found.unit)} − {baseline}'s\n({better} 0: better)")
        figure.legend(loc="outside upper left", ncols=4, fontsize=11)
        label = f"Differences from {baseline} of the test {in_words(found.unit)}: "
        return card(figure, identity, f"{label}{'. '.join(said)}.")
