"""Reports of a comparison: plain text, Markdown, JSON, one HTML page with figures, TensorBoard.

A comparison is read and drawn once, for all of them:

    comparison = read_comparison("runs/retrieval")         # of `sodeep.comparison`
    figures, notes = draw_figures(comparison)
    write_report(comparison, figures, notes)               # report.md, report.json, report.html in its folder
    write_tensorboard(comparison, figures, "runs/board")   # then: tensorboard --logdir runs/board

The page is one file: its figures are embedded, and it loads nothing else. Figures are
drawn with matplotlib. Without it the tables are complete, and the report says what is missing.
"""

from sodeep.report.tensorboard import write_tensorboard as write_tensorboard
from sodeep.report.text import text_table as text_table
from sodeep.report.write import draw_figures as draw_figures, write_report as write_report
