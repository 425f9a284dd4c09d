"""The script that draws the figures of docs/gallery.md and docs/api/losses.md."""

import re
from pathlib import Path

import pytest

import sodeep

pytest.importorskip("matplotlib")
import draw_gallery

ROOT = Path(__file__).parents[2]


def test_every_loss_has_its_figure():
    drawn = {f"{name}.svg" for name in draw_gallery.all_losses()}
    assert drawn == {path.name for path in (ROOT / "docs/figures/weights").iterdir()}
    functions = {name.removesuffix("_loss") for name in sodeep.losses.__all__ if name.endswith("_loss")}
    assert drawn == {f"{name}.svg" for name in functions}


def test_every_figure_is_on_a_page():
    pages = [ROOT / "docs/gallery.md", *(ROOT / "docs/api").glob("*.md")]
    shown = {target for page in pages for target in re.findall(r"\]\((?:\.\./)?(figures/.*?)\)", page.read_text())}
    there = (ROOT / "docs").glob("figures/**/*.*")
    assert shown == {path.relative_to(ROOT / "docs").as_posix() for path in there}


def test_weights_are_those_of_the_loss():
    """An item that a loss pushes up is drawn above 0: the hardest relevant item is pushed most, and others down."""
    axis = draw_gallery.draw_weights(sodeep.TripletLoss()).axes[0]
    relevant, others = (line.get_ydata() for line in axis.get_lines()[1:])
    assert relevant[0] == 1
    assert max(others) <= 0


def test_landscapes_of_average_precision():
    values = {name: draw_gallery.line_of_landscape(loss)[1] for name, loss in draw_gallery.relaxations().items()}
    exact = values["1 - AP"]
    assert len(exact.unique()) == 9  # eight others, passed one by one
    assert (values["SupAPLoss, rho = 2"] >= exact - 1e-6).all()  # a bound
    assert (values["SmoothAPLoss, tau = 0.01"] - exact).abs().median() < 0.01


def test_growth_is_read_from_the_benchmarks(tmp_path):
    with draw_gallery.matplotlib.rc_context(draw_gallery.LOOK):
        ((name, figure),) = draw_gallery.growth()
        draw_gallery.save(figure, tmp_path / name)
    losses, ranks = figure.axes[:2]
    text = (ROOT / "docs/benchmarks.md").read_text()
    row = re.search(r"^\| laplace_rank \| ms \|(.*)\|", text, re.MULTILINE)[1].split("|")
    drawn = {line.get_label(): line.get_ydata() for line in ranks.get_lines()}
    assert list(drawn["laplace_rank"]) == [float(cell) for cell in row[:-1]]
    assert len(losses.get_lines()) == 6
    saved = (tmp_path / name).read_text()
    assert "<text" in saved
    assert "date" not in saved
    assert re.search(r'"[^"]*\d\.\d{3,}', saved) is None
