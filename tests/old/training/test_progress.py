"""Bars that another process draws."""

import io

import pytest
import toy
from rich.console import Console

from headwise.training.progress import Position, Printed, Relay, RunBars


def relayed(folder, *, is_terminal):
    """What a run tells the process that shows it."""
    told = []
    looks = {"label": "reversals", "console": Relay(told.append, is_terminal)}
    toy.train(folder, toy.model(), toy.settings(), **looks)
    return told


def test_for_a_terminal_a_run_tells_where_it_is(tmp_path):
    *positions, end = relayed(tmp_path, is_terminal=True)
    assert all(isinstance(each, Position) for each in positions)
    assert [each.begun for each in positions] == [True] + [False] * (len(positions) - 1)
    steps = [each.completed for each in positions]
    assert steps == sorted(steps) and (steps[0], steps[-1]) == (0, 12)
    assert {each.total for each in positions} == {12}
    assert "valid" in positions[-1].figures
    # The bar goes, and a line stays.
    assert end.objects == (f"reversals: step 12/12 {positions[-1].figures}",)


def test_elsewhere_a_run_has_its_lines_printed(tmp_path):
    lines = relayed(tmp_path, is_terminal=False)
    assert [line.objects[0].split(" loss")[0] for line in lines] == [
        f"reversals: step {step}/12" for step in (4, 8, 12)
    ]
    assert all(isinstance(line, Printed) for line in lines)


def test_a_label_is_no_markup():
    written = io.StringIO()
    with RunBars(Console(file=written, force_terminal=True, width=80)) as bars:
        bars.begin("mae[/b]", 3)
    assert "mae[/b]" in written.getvalue()


def test_a_run_tells_its_end_however_soon():
    told = []
    bars = RunBars(Relay(told.append, True), transient=True)
    bar = bars.begin("short", 1000)
    for _ in range(1000):
        bars.update(bar, advance=1)
    bars.stop()
    assert len(told) < 500
    assert (told[0].completed, told[-1].completed) == (0, 1000)


@pytest.mark.parametrize("begun", [True, False])
def test_a_position_is_drawn(begun):
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, width=80, color_system=None)
    with RunBars(console) as bars:
        bar = bars.begin("standard seed 1", None, figures="starting")
        if not begun:
            bars.show(bar, Position(True, 0, 1200, "loss 9.99"))
        bars.show(bar, Position(begun, 345, 1200, "loss 3.43 valid 3.30 13,467 tokens/s"))
    last = written.getvalue().splitlines()[-2]
    assert "standard seed 1" in last
    assert "345/1200" in last and "loss 3.43 valid 3.30 13,467 tokens/s" in last
