"""Retrieval with Lightning: the loss is one line of `training_step`, the metrics one of the end of the epoch.

    pip install lightning
    python examples/lightning_retrieval.py

With several devices, ``EmbeddingLoss(..., gather=True)`` compares the embeddings of all processes.
"""

import click
import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

import sodeep


def module():
    """The model and the trainer. Lightning is imported here: sodeep does not need it."""
    import lightning

    class Retrieval(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.encoder = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 64))
            self.loss = sodeep.EmbeddingLoss(sodeep.SmoothAPLoss(tau=0.05))

        def training_step(self, batch, _):
            return self.loss(self.encoder(batch[0]), batch[1])

        def validation_step(self, batch, _):
            scores, relevant = sodeep.pairwise_scores(self.encoder(batch[0]), batch[1])
            self.log("mAP@R", sodeep.map_at_r(scores, relevant).mean(), batch_size=len(scores))

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=1e-3)

    return Retrieval(), lightning.Trainer


@click.command()
@click.option("--epochs", default=10, show_default=True)
def main(epochs):
    """Train on half of scikit-learn's digits, and print mAP@R on the other half before and after."""
    torch.manual_seed(0)
    x, y = (torch.tensor(a, dtype=t) for a, t in zip(load_digits(return_X_y=True), (torch.float32, int), strict=True))
    seen, x = torch.arange(len(y)) % 2 == 0, x / 16
    sampler = sodeep.BalancedBatchSampler(y[seen], classes_per_batch=10, samples_per_class=10)
    train = DataLoader(TensorDataset(x[seen], y[seen]), batch_sampler=sampler)
    test = DataLoader(TensorDataset(x[~seen], y[~seen]), batch_size=1000)  # one batch: the whole gallery
    model, trainer_class = module()
    quiet = {f"enable_{part}": False for part in ("checkpointing", "progress_bar", "model_summary")}
    trainer = trainer_class(max_epochs=epochs, accelerator="cpu", logger=False, **quiet)
    click.echo(f"before: mAP@R {trainer.validate(model, test, verbose=False)[0]['mAP@R']:.3f}")
    trainer.fit(model, train, test)
    click.echo(f"after:  mAP@R {trainer.validate(model, test, verbose=False)[0]['mAP@R']:.3f}")


if __name__ == "__main__":
    main()
