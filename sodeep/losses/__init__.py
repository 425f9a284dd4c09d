"""Losses: each a pure function ``x_loss(scores, target, *, ...)`` and a thin Module ``XLoss(...)`` over it."""
