"""A user's encoder in place of the small ones: how it is built, what it is given, and how it saves memory.

    def build():
        net = torchvision.models.resnet18(weights="DEFAULT")
        net.fc = torch.nn.Linear(512, 128)
        net.transform = torchvision.models.ResNet18_Weights.DEFAULT.transforms()
        return net

`build` takes no arguments and returns an ``nn.Module`` that turns a batch of inputs into vectors (B, d). It is called
anew for each training. The module may have

* ``transform``: a ``PIL.Image`` in colour -> a tensor. Images are then read from their files at their own size, as they
  are needed. Without it the encoder is given what the small ones are: images as uint8 (B, C, H, W), features (B, d).
* ``train_transform``: the same in training; without it `transform`.
* ``parameter_groups(lr)``: the groups of the optimiser, a list of dicts with "params" and, if other than `lr`, "lr".
* ``backbone`` and ``head``, one after the other: where no weight of the backbone is trained (``requires_grad``), what
  it gives is computed once and kept in the cache folder, and only the head is trained.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from sodeep._core.by_name import attribute, name_of
from sodeep._core.cache import cached_rows
from sodeep._core.checks import check_at_least, check_choice, describe
from sodeep._core.progress import Progress
from sodeep.datasets.image_features import ImageData, image_checksum
from sodeep.datasets.image_files import ImageFiles
from sodeep.datasets.types import Array
from sodeep.tasks.encoders import as_input, chunks_of

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
Build = Callable[[], nn.Module]


class OwnEncoder(nn.Module):
    """A user's encoder, run in chunks or in lower precision if asked for.

    Args:
        net: turns inputs (B, ...) into vectors (B, d).
        chunk_size: inputs at a time in training. What is computed inside is not kept but computed again for the
            gradient, so that memory is that of one chunk. None: all of a batch.
        precision: of `PRECISIONS`; below float32 under autocast, for both training and evaluation.

    Returns:
        (B, d) float32.
    """

    def __init__(self, net: nn.Module, chunk_size: int | None = None, precision: str = "float32") -> None:
        super().__init__()
        self.net = net
        self.chunk_size = chunk_size
        self.precision = precision

    @property
    def chunk(self) -> int:
        """Inputs that an evaluation takes at a time."""
        return self.chunk_size or 64

    def forward(self, inputs: Tensor) -> Tensor:
        """The vectors of inputs."""
        dtype = PRECISIONS[self.precision]
        with torch.autocast(inputs.device.type, dtype, enabled=dtype is not torch.float32):
            if self.chunk_size is None or not (self.training and torch.is_grad_enabled()):
                vectors: Tensor = self.net(inputs)
            else:
                parts = torch.split(inputs, self.chunk_size)
                vectors = torch.cat([checkpoint(self.net, part, use_reentrant=False) for part in parts])
        return vectors.float()

    def parameter_groups(self, rate: float) -> list[dict[str, Any]]:
        """Groups of an optimiser with the learning rate of each: the user's, or all weights as one."""
        own = getattr(self.net, "parameter_groups", None)
        if own is None:
            return [{"params": [*self.net.parameters()], "lr": rate}]
        groups = own(rate)
        if not isinstance(groups, list) or not all(isinstance(group, dict) and "params" in group for group in groups):
            raise TypeError(
                '`parameter_groups` of the encoder must return a list of dicts with "params", as an optimiser of '
                f"torch takes them, got {describe(groups)}."
            )
        return [{"lr": rate, **group, "params": [*group["params"]]} for group in groups]


class Encoder:
    """What makes an `OwnEncoder` for a task, and what that is given.

    Args:
        given: ``module:attribute``, or the callable itself.
        chunk_size: see `OwnEncoder`.
        precision: see `OwnEncoder`.
        workers: processes that read images; see `ImageFiles`.
    """

    def __init__(
        self,
        given: str | Build,
        chunk_size: int | None = None,
        precision: str | None = None,
        workers: int | None = None,
    ) -> None:
        self.build, self.name = _build_of(given)
        self.chunk_size = None if chunk_size is None else check_at_least(chunk_size, 1, "chunk_size")
        self.precision = check_choice(precision or "float32", PRECISIONS, "precision")
        self.workers = check_at_least(workers or 0, 0, "workers")
        self.frozen = False

    @property
    def source(self) -> str:
        """The code of the module that it is in; empty where that is not to be had."""
        module = inspect.getmodule(self.build)
        try:
            return "" if module is None else inspect.getsource(module)
        except (OSError, TypeError):  # made in a shell
            return ""

    @property
    def title(self) -> str:
        """In the name of the data: what changes a result."""
        chunks = "" if self.chunk_size is None else f" in chunks of {self.chunk_size}"
        return self.name + chunks + (f" in {self.precision}" if self.precision != "float32" else "")

    def model(self) -> OwnEncoder:
        """A new one, of the head alone where the backbone is frozen."""
        net = self._new()
        return OwnEncoder(net.head if self.frozen else net, self.chunk_size, self.precision)  # type: ignore[arg-type]

    def inputs(self, data: ImageData) -> Tensor | ImageFiles:
        """What the encoder is given of a data set: its items, their files, or what a frozen backbone makes of them.

        Raises:
            ValueError: a transform for data without images; an encoder that gives no vectors, or has nothing to train.
        """
        items = np.asarray(data.items)
        found: Tensor | ImageFiles = as_input(items)
        net = self._new()
        transform = getattr(net, "transform", None)
        if transform is not None:
            if items.dtype != np.uint8:
                raise ValueError(
                    f"`encoder` must not have a transform for data without images, got {self.name} with one for "
                    f"{data.name}."
                )
            sources = items if data.files is None else data.files
            found = ImageFiles(sources, transform, getattr(net, "train_transform", None), self.workers)
        backbone, head = getattr(net, "backbone", None), getattr(net, "head", None)
        if isinstance(backbone, nn.Module) and isinstance(head, nn.Module) and not _is_trained(backbone):
            self.frozen = True
            file = f"encoder-{image_checksum(items, data.files, self._code(backbone, transform))}.npy"
            found = torch.from_numpy(cached_rows(file, len(items), partial(self._computed, backbone, found)))
            net = head
        if not _is_trained(net):
            raise ValueError(
                f"`encoder` must have weights to train, got {self.name} without a parameter that requires_grad. "
                "Give it a trainable head, or compute its features and compare losses on these."
            )
        self._check_vectors(net, found)
        return found

    def _code(self, backbone: nn.Module, transform: object) -> str:
        """All that the features of a frozen backbone depend on, but the images: its code, weights and precision."""
        digest = hashlib.sha256()
        for name, value in backbone.state_dict().items():
            digest.update(name.encode())
            digest.update(value.cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        shown = re.sub(r" at 0x[0-9a-f]+", "", repr(transform))
        return "\n".join([digest.hexdigest(), self.precision, shown, self.source])

    @torch.no_grad()
    def _computed(self, backbone: nn.Module, items: Tensor | ImageFiles) -> Iterator[Array]:
        """What the backbone gives for all images, with a progress line."""
        net = OwnEncoder(backbone, None, self.precision).eval()
        progress = Progress(f"{self.name} of {len(items)} images")
        done = 0
        for inputs in chunks_of(items, torch.arange(len(items)), net.chunk):
            yield net(inputs).contiguous().numpy()
            done += len(inputs)
            progress.update(done / len(items))
        progress.close()

    def _new(self) -> nn.Module:
        net = self.build()
        if not isinstance(net, nn.Module):
            raise TypeError(f"`encoder` must return a torch.nn.Module, got {describe(net)} from {self.name}.")
        return net

    def _check_vectors(self, net: nn.Module, items: Tensor | ImageFiles) -> None:
        """Raise if two inputs do not become two vectors."""
        few = torch.arange(min(2, len(items)))
        inputs = next(chunks_of(items, few, 2))
        training = net.training
        with torch.no_grad():
            vectors = OwnEncoder(net, None, self.precision).eval()(inputs)
        net.train(training)
        if vectors.ndim != 2 or len(vectors) != len(few):
            raise ValueError(
                f"`encoder` must turn inputs {tuple(inputs.shape)} into vectors ({len(few)}, d), got shape "
                f"{tuple(vectors.shape)} from {self.name}."
            )


def _is_trained(net: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in net.parameters())


def _build_of(given: str | Build) -> tuple[Build, str]:
    """The callable, and its name."""
    if isinstance(given, str):
        module, colon, rest = given.partition(":")
        if not (module and colon and rest):
            raise ValueError(f"`encoder` must be module:callable, got {given!r}.")
        return attribute(module, rest, "encoder"), given
    if not callable(given):
        raise TypeError(
            "`encoder` must be module:callable, or a callable without arguments that returns an nn.Module, got "
            f"{describe(given)}."
        )
    if isinstance(given, nn.Module):
        raise TypeError("`encoder` must be a callable that builds the module anew for each training, got a module.")
    return given, name_of(given)


def own_encoder(
    given: str | Build | None,
    image_features: str | None,
    chunk_size: int | None,
    precision: str | None,
    workers: int | None,
) -> Encoder | None:
    """The `Encoder` that the options of a task ask for; None without `encoder`, which the others need."""
    if given is None:
        for name, value in (("chunk_size", chunk_size), ("precision", precision), ("workers", workers)):
            if value is not None:
                raise ValueError(f"`encoder` must be given with `{name}`, got None. Name yours: module:callable.")
        return None
    if image_features is not None:
        raise ValueError(
            f"`image_features` must not be given with an encoder of your own, got {image_features!r}. Give one of them."
        )
    return Encoder(given, chunk_size, precision, workers)
