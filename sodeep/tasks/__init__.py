"""The tasks that ranking losses were published for, small enough for two CPU cores.

A task is data, a small encoder, a step that applies a loss, and exact evaluation (`sodeep.metrics`):

* ``retrieval``: images of classes never seen in training retrieve others of their class.
* ``cross-modal``: images retrieve their captions and captions their images.
* ``memorability``: regression of a score, evaluated by Spearman's correlation.
* ``multi-label``: every label ranks the examples, evaluated by mean average precision.
* ``ranking``: items in groups, each ordered by graded relevance, evaluated by nDCG.
* ``toy``: points of two classes and a linear scorer, compared with a linear support vector machine.

Import from here: the tasks, the data classes they are made of, and what a task of your own needs (`Task`,
`TaskMetrics`, `Range`, `Layout`, `read_data`, `Loss`). Readers of data sets are in `sodeep.datasets`.
`sodeep.comparison` trains the tasks with losses. A task of your own is a subclass of `Task` in a module of yours; one
of this package has a line in `TASKS` too.

>>> task = TASKS["memorability"].load(seed=0)  # no data given: a small embedded set
>>> task.data_name
'synthetic memorability (generated, no real data)'
"""

from __future__ import annotations

from sodeep._core.search import Range
from sodeep.datasets.layouts import Layout, read_data
from sodeep.datasets.types import Array, CrossModalData, MemorabilityData, MultiLabelData, RankingData, RetrievalData
from sodeep.tasks.base import BATCH_SIZE, Loss, Task, TaskMetrics
from sodeep.tasks.cross_modal import CrossModal
from sodeep.tasks.memorability import Memorability
from sodeep.tasks.multi_label import MultiLabel
from sodeep.tasks.ranking import Ranking
from sodeep.tasks.retrieval import Retrieval
from sodeep.tasks.toy import Toy

TASKS: dict[str, type[Task]] = {
    "retrieval": Retrieval,
    "cross-modal": CrossModal,
    "memorability": Memorability,
    "multi-label": MultiLabel,
    "ranking": Ranking,
    "toy": Toy,
}
"""The tasks by name."""

__all__ = [
    "BATCH_SIZE",
    "TASKS",
    "Array",
    "CrossModal",
    "CrossModalData",
    "Layout",
    "Loss",
    "Memorability",
    "MemorabilityData",
    "MultiLabel",
    "MultiLabelData",
    "Range",
    "Ranking",
    "RankingData",
    "Retrieval",
    "RetrievalData",
    "Task",
    "TaskMetrics",
    "Toy",
    "read_data",
]
