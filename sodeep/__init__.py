"""sodeep: differentiable ranks, learned or handcrafted, and the losses and metrics built on them."""

__version__ = "0.1.0"

from sodeep import evaluation, generators, metrics, ranks, training
from sodeep.checkpoint import SorterCard, import_sodeep2019, list_sorters, load_sorter, save_sorter
from sodeep.evaluation import climb, rank_error
from sodeep.generators import DEFAULT, DISTRIBUTIONS, SODEEP2019
from sodeep.metrics import spearman_corr
from sodeep.ranks import blackbox_rank, exact_rank, laplace_rank, sigmoid_rank, straight_through
from sodeep.sorters import SORTERS, Sorter, build_sorter
from sodeep.training import TrainConfig, TrainingInterrupted, TrainResult, train_sorter

__all__ = [
    "DEFAULT",
    "DISTRIBUTIONS",
    "SODEEP2019",
    "SORTERS",
    "Sorter",
    "SorterCard",
    "TrainConfig",
    "TrainResult",
    "TrainingInterrupted",
    "blackbox_rank",
    "build_sorter",
    "climb",
    "evaluation",
    "exact_rank",
    "generators",
    "import_sodeep2019",
    "laplace_rank",
    "list_sorters",
    "load_sorter",
    "metrics",
    "rank_error",
    "ranks",
    "save_sorter",
    "sigmoid_rank",
    "spearman_corr",
    "straight_through",
    "train_sorter",
    "training",
]
