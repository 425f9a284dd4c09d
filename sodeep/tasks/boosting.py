"""LightGBM's gradient-boosted trees for ranking, as a model of the ranking task."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sodeep._core.search import Range, Ranges
from sodeep.datasets.types import Array

RANGES: Ranges = {
    "learning_rate": Range(0.003, 0.3, 0.1),
    "num_leaves": Range(2, 63, 31, whole=True),
    "min_data_in_leaf": Range(1, 100, 20, whole=True),
}
"""Searched for LambdaMART; their defaults are LightGBM's."""

ROUNDS = 1000
"""Trees at most."""

PATIENCE = 50
"""Trees without a gain on the validation split after which training ends, and the best number of trees is kept."""


class BoostedTrees(nn.Module):
    """A trained LightGBM model, kept as bytes in a buffer, so that it is saved and loaded like weights.

    Returns:
        (B, 1), of floating point (B, d).
    """

    trees: Tensor

    def __init__(self, text: str) -> None:
        super().__init__()
        self.register_buffer("trees", torch.tensor(list(text.encode()), dtype=torch.uint8))

    def forward(self, features: Tensor) -> Tensor:
        """The scores of items."""
        from lightgbm import Booster

        booster = Booster(model_str=bytes(self.trees.tolist()).decode())
        scores = booster.predict(features.cpu().numpy(), num_threads=1)
        return torch.from_numpy(np.asarray(scores, dtype=np.float64)).to(features).unsqueeze(1)


def lambda_mart(
    train: tuple[Array, Array, Array], val: tuple[Array, Array, Array], seed: int, k: int, **settings: Any
) -> BoostedTrees:
    """LambdaMART, trained until nDCG@k of the validation split stops to rise.

    Args:
        train: features (n, d), whole grades (n,), and the items of each group; items of a group stand together.
        val: the same of the validation split.
        seed: of what is drawn.
        k: cut of the nDCG that trees are counted by.
        **settings: of LightGBM.
    """
    import lightgbm

    options = {
        "objective": "lambdarank",
        "metric": "ndcg",
        "eval_at": [k],
        "label_gain": [2.0**grade - 1 for grade in range(int(max(train[1].max(), val[1].max())) + 1)],
        "seed": seed,
        "deterministic": True,
        "force_row_wise": True,
        "num_threads": 1,
        "verbosity": -1,
        **settings,
    }
    data = lightgbm.Dataset(train[0], train[1], group=train[2], params={"verbosity": -1})
    checked = lightgbm.Dataset(val[0], val[1], group=val[2], reference=data)
    stop = lightgbm.early_stopping(PATIENCE, verbose=False)
    booster = lightgbm.train(options, data, ROUNDS, valid_sets=[checked], callbacks=[stop])
    return BoostedTrees(booster.model_to_string(num_iteration=booster.best_iteration))
