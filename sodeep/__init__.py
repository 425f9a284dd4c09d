"""Differentiable ranks, learned or handcrafted, and the losses and metrics built on them.

Example:
    >>> import torch, sodeep
    >>> loss = sodeep.SpearmanLoss(sodeep.laplace_rank)
    >>> scores = torch.tensor([0.1, 0.9, 0.4], requires_grad=True)
    >>> loss(scores, torch.tensor([3.0, 1.0, 2.0])).backward()
    >>> bool(scores.grad[0] < 0 < scores.grad[1])  # a step down the gradient raises the first, lowers the second
    True
"""

from typing import TYPE_CHECKING

from sodeep._version import __version__ as __version__

if TYPE_CHECKING:
    from sodeep._api import *  # noqa: F403
else:
    # `import sodeep` alone imports no torch: `sodeep --help` answers at once. The first name asked for does.

    def __getattr__(name):
        if name.startswith("__") and name != "__all__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib

        api = importlib.import_module("sodeep._api")
        public = getattr(api, "__all__", ())  # none yet while it is being imported
        if name == "__all__" or name in public:
            globals()[name] = getattr(api, name)
        if name not in globals():  # the submodules that were imported with it are there
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return globals()[name]

    def __dir__():
        return sorted({*globals(), *__getattr__("__all__")})
