"""Losses compared on a task: the same tuning budget for each, several seeds, differences with confidence intervals.

    runs = compare("retrieval", ["smooth-ap", "map:laplace"], out="runs/retrieval")
    comparison = read_comparison("runs/retrieval")  # for `sodeep.report`

Import from here. Losses are named as in `sodeep.comparison.losses_by_name`.
"""

from sodeep.comparison._compare import compare as compare
from sodeep.comparison.read import Comparison as Comparison, read_comparison as read_comparison
from sodeep.comparison.runs import Run as Run, read_runs as read_runs
from sodeep.comparison.schedule import ComparisonStopped as ComparisonStopped, Plan as Plan
from sodeep.comparison.statistics import Cell as Cell, Summary as Summary, summarise as summarise
