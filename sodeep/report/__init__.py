"""What came out of a comparison, from its runs: plain text, Markdown, JSON, one HTML page with figures, TensorBoard.

A comparison is read and drawn once, and every form is made of that:

    comparison = read_comparison("runs/retrieval")         # of `sodeep.comparison`
    figures, notes = draw_figures(comparison)
    write_report(comparison, figures, notes)               # report.md, report.json, report.html in its folder
    write_tensorboard(comparison, figures, "runs/board")   # then: tensorboard --logdir runs/board

The page needs nothing but itself: figures are in it, and it loads nothing, from this computer or another. Figures are
drawn with matplotlib. Without it the tables are complete, and the report says what is missing.
"""

from sodeep.report.tensorboard import write_tensorboard as write_tensorboard
from sodeep.report.text import text_table as text_table
from sodeep.report.write import draw_figures as draw_figures, write_report as write_report
