"""Training of sorters: a network learns the rank function on synthetic score lists."""

from sodeep.training.config import ResolvedConfig as ResolvedConfig, TrainConfig as TrainConfig
from sodeep.training.objective import VALUE_LOSSES as VALUE_LOSSES, sorter_loss as sorter_loss
from sodeep.training.refresh import RefreshedSorter as RefreshedSorter, RefreshResult as RefreshResult
from sodeep.training.run import TrainResult as TrainResult
from sodeep.training.train import (
    TrainingInterrupted as TrainingInterrupted,
    saved_config as saved_config,
    state_path as state_path,
    train_sorter as train_sorter,
)
