"""The tasks that ranking losses were published for, small enough for two CPU cores.

A task is data, a small encoder, a step that applies a loss, and exact evaluation (`sodeep.metrics`):

* ``retrieval``: pictures of classes never seen in training find their like.
* ``cross-modal``: pictures find their captions and captions their pictures.
* ``memorability``: a score is predicted, judged by the order it gives.
* ``multi-label``: every label ranks the examples, judged by mean average precision.
* ``toy``: points of two classes and a linear scorer, beside a linear support vector machine.

`Task` and `TaskMetrics` are in `sodeep.tasks.base`, one task in each module beside it; the data, their readers and the
small sets to begin with in `sodeep.datasets`. `sodeep.comparison` trains the tasks with losses. A further task is a
subclass of `Task` in a module of its own, and a line in `TASKS`.

>>> task = TASKS["memorability"].load(seed=0)  # no data given: a small embedded set
>>> task.data_name
'synthetic memorability (generated, no real data)'
"""

from __future__ import annotations

from sodeep.datasets._folder import Layout, read_data
from sodeep.datasets.types import CrossModalData, MemorabilityData, MultiLabelData, RetrievalData
from sodeep.tasks.base import Task, TaskMetrics
from sodeep.tasks.cross_modal import CrossModal
from sodeep.tasks.memorability import Memorability
from sodeep.tasks.multi_label import MultiLabel
from sodeep.tasks.retrieval import Retrieval
from sodeep.tasks.toy import Toy

TASKS: dict[str, type[Task]] = {
    "retrieval": Retrieval,
    "cross-modal": CrossModal,
    "memorability": Memorability,
    "multi-label": MultiLabel,
    "toy": Toy,
}
"""The tasks by name."""

__all__ = [
    "TASKS",
    "CrossModal",
    "CrossModalData",
    "Layout",
    "Memorability",
    "MemorabilityData",
    "MultiLabel",
    "MultiLabelData",
    "Retrieval",
    "RetrievalData",
    "Task",
    "TaskMetrics",
    "Toy",
    "read_data",
]
