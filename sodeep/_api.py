"""The public names: ``sodeep.NAME`` is what is imported here, all losses among them."""

from sodeep import evaluation, generators, losses, metrics, ranks, training
from sodeep.checkpoint.export import export_sorter
from sodeep.checkpoint.format import SorterCard, list_sorters, load_sorter, save_sorter
from sodeep.checkpoint.sodeep2019 import import_sodeep2019
from sodeep.evaluation import optimization_score, rank_error
from sodeep.gather import drop_repeats, gather
from sodeep.generators import DEFAULT, DISTRIBUTIONS, SODEEP2019
from sodeep.losses import *  # noqa: F403
from sodeep.metrics import (
    UndefinedMetricWarning,
    asp,
    average_precision,
    hit_rate_at_k,
    map_at_r,
    median_rank,
    pmrp,
    r_precision,
    recall_at_k,
    spearman_corr,
)
from sodeep.multistage import multistage_backward
from sodeep.ranks import blackbox_rank, exact_rank, laplace_rank, sigmoid_rank, straight_through
from sodeep.samplers import BalancedBatchSampler
from sodeep.sorters import SORTERS, build_sorter
from sodeep.sorters.base import Sorter
from sodeep.training.config import TrainConfig
from sodeep.training.refresh import RefreshedSorter, RefreshResult
from sodeep.training.run import TrainResult
from sodeep.training.train import TrainingInterrupted, train_sorter

__all__ = [
    "DEFAULT",
    "DISTRIBUTIONS",
    "SODEEP2019",
    "SORTERS",
    "BalancedBatchSampler",
    "RefreshResult",
    "RefreshedSorter",
    "Sorter",
    "SorterCard",
    "TrainConfig",
    "TrainResult",
    "TrainingInterrupted",
    "UndefinedMetricWarning",
    "asp",
    "average_precision",
    "blackbox_rank",
    "build_sorter",
    "drop_repeats",
    "evaluation",
    "exact_rank",
    "export_sorter",
    "gather",
    "generators",
    "hit_rate_at_k",
    "import_sodeep2019",
    "laplace_rank",
    "list_sorters",
    "load_sorter",
    "losses",
    "map_at_r",
    "median_rank",
    "metrics",
    "multistage_backward",
    "optimization_score",
    "pmrp",
    "r_precision",
    "rank_error",
    "ranks",
    "recall_at_k",
    "save_sorter",
    "sigmoid_rank",
    "spearman_corr",
    "straight_through",
    "train_sorter",
    "training",
]
__all__ += losses.__all__
