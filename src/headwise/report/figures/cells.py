"""What figures of coloured cells share: the strength of the colour, and the frame around them."""

from matplotlib.axes import Axes

from headwise.report.figures.svg import GRID, SURFACE

# Opacity of the strongest cell; more would hide its number.
HEAT_OPACITY = 0.75


def frame_cells(axes: Axes, rows: int, columns: int) -> None:
    """Makes axes the frame of cells of size 1, the first of them around (0, 0) at the top left."""
    axes.set_xlim(-0.5, columns - 0.5)
    axes.set_ylim(rows - 0.5, -0.5)
    axes.grid(visible=False)
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set(visible=True, color=GRID)


def divide_cells(axes: Axes, rows: int, columns: int, *, between_rows: float = 2) -> None:
    """Draws lines between cells, in the colour of the page.

    Args:
        axes: where the cells are.
        rows, columns: number of cells.
        between_rows: width of the lines between rows; those between columns are 1 wide.
    """
    axes.vlines([at + 0.5 for at in range(columns - 1)], -0.5, rows - 0.5, SURFACE, lw=1)
    lines = [at + 0.5 for at in range(rows - 1)]
    axes.hlines(lines, -0.5, columns - 0.5, SURFACE, lw=between_rows)
