"""Sorters in files: saving, loading, importing checkpoints of the 2019 code, exporting to ``torch.export`` and ONNX."""

from sodeep.checkpoint.export import export_sorter as export_sorter
from sodeep.checkpoint.format import (
    Header as Header,
    SorterCard as SorterCard,
    list_sorters as list_sorters,
    load_sorter as load_sorter,
    read_header as read_header,
    save_sorter as save_sorter,
)
from sodeep.checkpoint.pretrained import save_pretrained as save_pretrained
from sodeep.checkpoint.sodeep2019 import import_sodeep2019 as import_sodeep2019
