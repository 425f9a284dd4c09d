"""Losses side by side on a task: an equal search for each, several seeds, differences with their intervals."""

from sodeep.comparison._compare import compare as compare
from sodeep.comparison.read import Comparison as Comparison, read_comparison as read_comparison
from sodeep.comparison.runs import Run as Run, read_runs as read_runs
from sodeep.comparison.schedule import ComparisonStopped as ComparisonStopped, Plan as Plan
from sodeep.comparison.statistics import Cell as Cell, Summary as Summary, summarise as summarise
