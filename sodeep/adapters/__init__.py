"""The losses and metrics in the form that other libraries expect: one module for each, imported by name.

* `sodeep.adapters.pytorch_metric_learning`: losses with the reducers, distances and memory of pytorch-metric-learning.
* `sodeep.adapters.torchmetrics`: metrics as a ``torchmetrics.Metric``.
* `sodeep.adapters.sentence_transformers`: losses for its trainer, on scored pairs and on negatives in the batch.

Each is for the library that it is named after, and says how to install it where it needs it and it is missing.
"""
