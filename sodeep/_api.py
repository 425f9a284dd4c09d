"""The public names: ``sodeep.NAME`` is what is imported here, with all losses and metrics."""

import typing as _typing

from sodeep import (
    evaluation as evaluation,
    generators as generators,
    losses as losses,
    metrics as metrics,
    ranks as ranks,
    training as training,
)
from sodeep.checkpoint.export import export_sorter as export_sorter
from sodeep.checkpoint.format import (
    SorterCard as SorterCard,
    list_sorters as list_sorters,
    load_sorter as load_sorter,
    save_sorter as save_sorter,
)
from sodeep.checkpoint.pretrained import save_pretrained as save_pretrained
from sodeep.checkpoint.sodeep2019 import import_sodeep2019 as import_sodeep2019
from sodeep.dataset_metric import DatasetMetric as DatasetMetric
from sodeep.distributed import drop_repeats as drop_repeats, gather as gather
from sodeep.evaluation import optimization_score as optimization_score, rank_error as rank_error
from sodeep.gallery import retrieval_metrics as retrieval_metrics
from sodeep.generators import DEFAULT as DEFAULT, DISTRIBUTIONS as DISTRIBUTIONS, SODEEP2019 as SODEEP2019
from sodeep.groups import (
    GroupBatchSampler as GroupBatchSampler,
    Groups as Groups,
    pad_groups as pad_groups,
    unpad_groups as unpad_groups,
)
from sodeep.losses import *  # noqa: F403
from sodeep.metrics import *  # noqa: F403
from sodeep.multistage import multistage_backward as multistage_backward
from sodeep.ranks import (
    blackbox_rank as blackbox_rank,
    exact_rank as exact_rank,
    laplace_rank as laplace_rank,
    sigmoid_rank as sigmoid_rank,
    straight_through as straight_through,
    with_width as with_width,
)
from sodeep.samplers import BalancedBatchSampler as BalancedBatchSampler
from sodeep.sorters import SORTERS as SORTERS, build_sorter as build_sorter
from sodeep.sorters.base import Sorter as Sorter
from sodeep.training.config import TrainConfig as TrainConfig
from sodeep.training.refresh import RefreshedSorter as RefreshedSorter, RefreshResult as RefreshResult
from sodeep.training.run import TrainResult as TrainResult
from sodeep.training.train import TrainingInterrupted as TrainingInterrupted, train_sorter as train_sorter

if not _typing.TYPE_CHECKING:  # which go by the imports
    __all__ = sorted(name for name in globals() if name[0] != "_")
