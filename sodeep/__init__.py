"""sodeep: differentiable ranks, learned or handcrafted, and the losses and metrics built on them."""

__version__ = "0.1.0"
