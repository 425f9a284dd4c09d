"""Retrieval with Lightning: the loss is one line of `training_step`, the metrics one of the end of the epoch.

Run it with ``pip install lightning && python examples/lightning_retrieval.py --devices 2``.
"""
# ruff: noqa: D101

import click
import lightning
import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

import sodeep


class Retrieval(lightning.LightningModule):
    def __init__(self, data):
        super().__init__()
        self.data = data
        self.encoder = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 64))
        self.loss = sodeep.EmbeddingLoss(sodeep.SmoothAPLoss(tau=0.05), gather=True)  # compares those of all processes

    def train_dataloader(self):  # asked for in every process; each gets other classes
        size, rank = self.trainer.world_size, self.trainer.global_rank
        sampler = sodeep.BalancedBatchSampler(self.data.tensors[1], 10 // size, 10, num_replicas=size, rank=rank)
        return DataLoader(self.data, batch_sampler=sampler)

    def training_step(self, batch, _):
        return self.loss(self.encoder(batch[0]), batch[1])

    def validation_step(self, batch, _):
        scores, relevant = sodeep.pairwise_scores(self.encoder(batch[0]), batch[1])
        self.log("mAP@R", sodeep.map_at_r(scores, relevant).mean(), batch_size=len(scores), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


@click.command()
@click.option("--epochs", default=10, show_default=True)
@click.option("--devices", default=1, show_default=True)
def main(epochs, devices):
    """Train on half of scikit-learn's digits, and print mAP@R on the other half before and after."""
    torch.manual_seed(0)
    x, y = (torch.tensor(a, dtype=t) for a, t in zip(load_digits(return_X_y=True), (torch.float32, int), strict=True))
    seen, x = torch.arange(len(y)) % 2 == 0, x / 16
    test = DataLoader(TensorDataset(x[~seen], y[~seen]), batch_size=1000)  # one batch: the whole gallery
    # Lightning's sampler would deal single items, and cut the gallery
    off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary", "use_distributed_sampler")
    trainer = lightning.Trainer(max_epochs=epochs, accelerator="cpu", devices=devices, **dict.fromkeys(off, False))
    model = Retrieval(TensorDataset(x[seen], y[seen]))
    before = trainer.validate(model, test, verbose=False)[0]["mAP@R"]
    trainer.fit(model, val_dataloaders=test)
    after = trainer.validate(model, test, verbose=False)[0]["mAP@R"]
    trainer.print(f"before: mAP@R {before:.3f}\nafter:  mAP@R {after:.3f}")


if __name__ == "__main__":
    main()
