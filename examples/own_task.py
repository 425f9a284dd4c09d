"""A task of your own for `sodeep compare`: reviews are ordered by the stars that they gave.

python examples/own_task.py
sodeep compare own_task:Stars --loss mse --loss spearman:laplace   # in this folder; --data my.npz for your arrays
"""

import numpy as np
import torch

import sodeep
from sodeep.comparison import compare, summarise
from sodeep.report.text import text_table
from sodeep.tasks import Task


class Stars(Task):
    """Features of reviews, and the stars of each, 1 to 5."""

    metrics = {"Kendall": True, "within one star": True}  # the first chooses settings; True: higher is better

    @staticmethod
    def generated(seed):
        """Where no data are given: 500 made-up reviews."""
        rng = np.random.default_rng(seed)
        features = rng.normal(size=(500, 10))
        stars = np.digitize(features[:, :3].sum(1) + rng.normal(size=500), [-2, -1, 0, 1]) + 1.0
        return {"name": "made-up reviews", "features": features, "stars": stars}

    def model(self):
        return torch.nn.Linear(self.features.shape[1], 1)

    def forward(self, model, batch):
        scores = model(self.features[batch]).squeeze(1)
        return {"target": lambda loss: loss(scores, self.stars[batch])}

    def evaluate(self, model, split):
        scores, stars = model(self.features[self.index[split]]).squeeze(1), self.stars[self.index[split]]
        near = (scores - stars).abs() < 1.5
        return {"Kendall": sodeep.kendall_tau(scores, stars), "within one star": near.float().mean()}


def main(out="runs/stars", **options):
    """Compare squared error with a loss on ranks; started again, it goes on with what is missing."""
    task = Stars(Stars.generated(seed=0))
    runs = compare(task, ["mse", "spearman:laplace"], out=out, **options)
    print(text_table(summarise(runs)))


if __name__ == "__main__":
    main()
