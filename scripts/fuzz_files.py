#!/usr/bin/env python3
"""Give every reader of sodeep damaged and hostile files, and see that each is one message that names the file.

    scripts/fuzz_files.py --files 10000 --seed 0        # ten minutes or so on one core

Files of every format that sodeep reads are flipped bit by bit, cut, filled in, swapped with others, given huge numbers,
or made to need much memory. A reader must give its data or a ValueError or OSError that names the file, within five
seconds of computing, in no more than 200 MiB beyond the file; nothing in a file may run. Readers are forked, so that a
crash, a hang or too much memory is counted and does not end the script. Linux only.
"""

import argparse
import collections
import csv
import io
import json
import os
import pickle
import random
import re
import resource
import select
import signal
import struct
import sys
import tempfile
import traceback
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import click
import numpy as np
import safetensors.torch
import torch
from PIL import Image

import sodeep
from sodeep import checkpoint, comparison, training
from sodeep._core.sealed import seal
from sodeep.datasets import captions, memorability, multi_label, ranking, retrieval, revisited
from sodeep.datasets.layouts import Layout

SECONDS = 5
MEMORY = 200 * 2**20
Write = Callable[[Path], Path]
"""Writes good files into a folder; the path of the one to be damaged."""
Read = Callable[[Path, Path], object]
"""Reads that path, or its folder."""
Hostile = Callable[[random.Random, Path, bytes], bytes]
"""Makes a hostile file in place of a good one."""

RAN = "ran"  # the file that a hostile pickle makes, if it runs


# ---- good files ------------------------------------------------------------------------------------------------------


def small_sorter() -> sodeep.Sorter:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return sodeep.build_sorter("gru-sum")


def sorter_file(folder: Path) -> Path:
    return sodeep.save_sorter(folder / "s.safetensors", small_sorter(), training={"lengths": [3, 9], "note": "x" * 40})


def old_sorter_file(folder: Path) -> Path:
    path = sorter_file(folder)
    tensors = safetensors.torch.load_file(path)
    with safetensors.safe_open(path, "pt") as file:
        header = json.loads(file.metadata()["sodeep"])
    del header["checksum"]
    path.write_bytes(safetensors.torch.save(tensors, {"sodeep": json.dumps(header)}))
    return path


STATE: dict[str, Any] = {
    "sorter": "gru-sum",
    "steps": 2,
    "validate_every": 1,
    "batch_size": 1,
    "lengths": (3, 6),
    "lr": 1e-3,
}


def state_file(folder: Path) -> Path:
    run = training.run.Run(sodeep.TrainConfig(**STATE, distributions={"normal": 1.0}).resolve())
    run.advance()
    run.validate()
    path = training.state_path(folder / "s.safetensors")
    run.save_state(path)
    return path


def checkpoint_2019(folder: Path, zipped: bool) -> Path:
    weights = {
        f"lstm.{name}": t for name, t in torch.nn.GRU(1, 4, batch_first=True, bidirectional=True).state_dict().items()
    }
    args = argparse.Namespace(model_type="grus", seq_len=10, lr=0.001, dist=None, tags=["a", "b"])
    path = folder / "best.pth.tar"
    state = {"epoch": 17, "state_dict": collections.OrderedDict(weights), "best_rec": 0.01, "args_dict": args}
    torch.save(state, path, _use_new_zipfile_serialization=zipped)
    return path


def scores_csv(folder: Path) -> Path:
    path = folder / "scores.csv"
    path.write_text("0.1,0.5,0.2,0.9\n3,1,2,5\n-1e3,2.5\n")
    return path


def scores_npy(folder: Path) -> Path:
    np.save(folder / "scores.npy", np.arange(12.0).reshape(3, 4))
    return folder / "scores.npy"


def features(task: str) -> Write:
    def write(folder: Path) -> Path:
        rng = np.random.default_rng(0)
        x = rng.normal(size=(6, 3)).astype("f4")
        labels = np.array([0, 0, 1, 1, 2, 2])
        arrays = {
            "retrieval": {"features": x, "labels": labels},
            "cross-modal": {"images": x, "captions": x, "image_of_caption": labels},
            "memorability": {"features": x, "scores": x[:, 0]},
            "multi-label": {"features": x, "labels": np.eye(6, dtype=int)[:, :3]},
            "ranking": {"features": x, "relevance": labels, "group": labels},
        }[task]
        path = folder / "my.npz"
        save: Callable[..., None] = np.savez if task in ("retrieval", "memorability") else np.savez_compressed
        save(path, **{f"{split}_{name}": array for split in ("train", "test") for name, array in arrays.items()})
        return path

    return write


def read_data(known: Mapping[str, Layout], file: bool = False) -> Read:
    """As ``sodeep compare --data`` reads a folder, or a file."""

    def read(path: Path, folder: Path) -> None:
        place = path if file else folder
        found = [layout for layout in known.values() if layout.matches(place)]
        if not found:
            raise ValueError(f"{place} is of no layout")  # as the tasks say
        found[0].read(place)

    return read


def image_file(path: Path, mode: str = "RGB") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 255, (9, 7, 3), dtype=np.uint8)).convert(mode).save(path)
    return path


def class_folders(suffix: str) -> Write:
    def write(folder: Path) -> Path:
        for name in "abcd":
            for i in range(2):
                path = image_file(folder / name / f"{i}.{suffix}")
        return path

    return write


def cub(which: str) -> Write:
    def write(folder: Path) -> Path:
        names = [f"{c}.bird/{c}_{i}.jpg" for c in range(1, 5) for i in range(2)]
        for name in names:
            image_file(folder / "images" / name)
        (folder / "images.txt").write_text("".join(f"{i} {n}\n" for i, n in enumerate(names, 1)))
        (folder / "image_class_labels.txt").write_text("".join(f"{i + 1} {i // 2 + 1}\n" for i in range(8)))
        (folder / "classes.txt").write_text("".join(f"{c} {c}.bird\n" for c in range(1, 5)))
        return folder / which

    return write


def products(folder: Path) -> Path:
    for part, first in (("train", 1), ("test", 3)):
        lines = ["image_id class_id super_class_id path"]
        for label in (first, first + 1):
            for i in range(2):
                image_file(folder / "chair_final" / f"{label}_{i}.jpg")
                lines.append(f"{2 * label + i} {label} 1 chair_final/{label}_{i}.jpg")
        (folder / f"Ebay_{part}.txt").write_text("\n".join(lines) + "\n")
    return folder / "Ebay_train.txt"


def in_shop(folder: Path) -> Path:
    (folder / "Eval").mkdir()
    lines = ["6", "image_name item_id evaluation_status"]
    for i, (item, part) in enumerate(
        [(1, "train"), (1, "train"), (2, "train"), (2, "train"), (3, "query"), (3, "gallery")]
    ):
        image_file(folder / "img" / f"{i}.jpg")
        lines.append(f"img/{i}.jpg id_{item:08} {part}")
    (folder / "Eval/list_eval_partition.txt").write_text("\n".join(lines) + "\n")
    return folder / "Eval/list_eval_partition.txt"


def karpathy(folder: Path) -> Path:
    images = []
    for i, split in enumerate(["train", "restval", "val", "test"]):
        image_file(folder / "val2014" / f"{i}.jpg")
        sentences = [{"raw": f"a red dog {j} in {i}"} for j in range(5)]
        images.append({"filepath": "val2014", "filename": f"{i}.jpg", "split": split, "sentences": sentences})
    (folder / "dataset_coco.json").write_text(json.dumps({"images": images}))
    return folder / "dataset_coco.json"


def mediaeval(which: str) -> Write:
    def write(folder: Path) -> Path:
        with (folder / "ground-truth_dev-set.csv").open("w") as file:
            rows = csv.writer(file)
            rows.writerow(["video", "short-term_memorability", "nb_short-term_annotations"])
            rows.writerows([f"v{i}.webm", 0.1 * i, 30] for i in range(6))
        (folder / "dev-set_video-captions.txt").write_text("".join(f"v{i}.webm\ta-red-dog-{i}\n" for i in range(6)))
        return folder / which

    return write


def group_table(folder: Path) -> Path:
    path = folder / "mine.csv"
    path.write_text("group,relevance,length\n" + "".join(f"q{i // 3},{i % 3},{i}\n" for i in range(9)))
    return path


def letor(folder: Path) -> Path:
    path = folder / "all.txt"
    path.write_text("".join(f"{i % 3} qid:{i // 3} 1:0.{i} 4:{i} # d{i}\n" for i in range(9)))
    return path


def table(folder: Path) -> Path:
    path = folder / "mine.csv"
    path.write_text("text,score,length\n" + "".join(f'"a dog, {i}",{0.1 * i},{i}\n' for i in range(8)))
    return path


def voc(which: str) -> Write:
    def write(folder: Path) -> Path:
        (folder / "ImageSets/Main").mkdir(parents=True)
        (folder / "Annotations").mkdir()
        for split, first in (("trainval", 1), ("test", 4)):
            images = [f"{first + i:06}" for i in range(3)]
            (folder / f"ImageSets/Main/{split}.txt").write_text("\n".join(images) + "\n")
            for name in ("cat", "dog"):
                lines = "".join(f"{image} {flag:>2}\n" for image, flag in zip(images, (1, -1, 0), strict=True))
                (folder / f"ImageSets/Main/{name}_{split}.txt").write_text(lines)
            for image in images:
                image_file(folder / "JPEGImages" / f"{image}.jpg")
                entry = "<object><name>cat</name><difficult>0</difficult></object>"
                (folder / f"Annotations/{image}.xml").write_text(f"<annotation>{entry}</annotation>")
        return folder / which

    return write


TRUTH: dict[str, list[Any]] = {
    "imlist": [f"g{i}" for i in range(6)],
    "qimlist": ["q0", "q1"],
    "gnd": [{"easy": [0, 1], "hard": [2], "junk": [], "bbx": [0.0, 1.0, 5.5, 9.0]} for _ in range(2)],
}


def truth(protocol: int | None) -> Write:
    def write(folder: Path) -> Path:
        path = folder / ("gnd.pkl" if protocol is not None else "gnd.json")
        arrays = {**TRUTH, "gnd": [{**entry, "easy": np.array(entry["easy"])} for entry in TRUTH["gnd"]]}
        path.write_bytes(json.dumps(TRUTH).encode() if protocol is None else pickle.dumps(arrays, protocol))
        return path

    return write


def revisited_features(folder: Path) -> Path:
    x = np.random.default_rng(0).normal(size=(6, 3)).astype("f4")
    (folder / "gnd_mine.json").write_text(json.dumps(TRUTH))
    path = folder / "my.npz"
    np.savez(
        path,
        query_features=x[: len(TRUTH["qimlist"])],
        gallery_features=x[: len(TRUTH["imlist"])],
        train_features=x,
        train_labels=np.arange(6) // 2,
    )
    return path


def comparison_folder(which: str) -> Write:
    def write(folder: Path) -> Path:
        (folder / "details").mkdir()
        np.savez_compressed(folder / "details/a.npz", x=np.arange(4.0), names=np.array(["a", "b"]))
        lines = []
        for loss in ("map:laplace", "triplet"):
            for seed in range(2):
                for stage in ("tuning", "test"):
                    figures = {"mAP": 0.5, "R@1": 0.5 + seed / 9}
                    run = comparison.Run(
                        "retrieval", "digits", loss, seed, {"lr": 0.1}, stage, "ok", figures,
                        {"loss": [(1, 0.5), (2, 0.25)]}, steps=10, seconds_per_step=0.1, details="details/a.npz",
                    )  # fmt: skip
                    lines.append(run.to_json())
        (folder / "runs.jsonl").write_text("\n".join(lines) + "\n")
        origin = {
            "task": "retrieval",
            "data": "digits",
            "max_steps": 10,
            "batch_size": 100,
            "sodeep": "0",
            "torch": "2",
        }
        (folder / "comparison.json").write_text(json.dumps(origin))
        return folder / which

    return write


def read_comparison(path: Path, folder: Path) -> None:
    list(comparison.read_comparison(folder).details("x"))


# ---- hostile ones ----------------------------------------------------------------------------------------------------


def touching(folder: Path) -> bytes:
    return (
        b"cposix\nsystem\nX"
        + struct.pack("<I", len(f"touch {folder / RAN}"))
        + f"touch {folder / RAN}".encode()
        + b"\x85R."
    )


def pickles(rng: random.Random, folder: Path) -> bytes:
    """Streams that need much memory, or that run something."""
    n = rng.choice([300, 5_000, 100_000, 1_000_000])
    big = b"\x96" + struct.pack("<Q", n) + bytes(n)
    text = b"X" + struct.pack("<I", n) + b"a" * n
    return rng.choice(
        [
            touching(folder),
            b"}X\x01\x00\x00\x00a" + touching(folder)[:-1] + b"s.",
            b"c__builtin__\neval\n" + b"X\x04\x00\x00\x001/0.\x85R.",
            b"ctorch\nTensor\nM\xe8\x03\x85R.",
            b")" + b"\x85" * n + b".",
            b"]" * n + b"a" * (n - 1) + b".",
            b"ccollections\nOrderedDict\n](" + b")" + b"\x85" * min(n, 150_000) + b"K\x01\x86e\x85R.",
            b"}" + b")" + b"\x85" * min(n, 150_000) + b"K\x01s.",
            b"(" * n + b"l" * n + b".",
            b"}" * n + b".",
            b"N" + b"2" * n + b".",
            b"K\x01" + b"q\x00h\x00h\x00\x86" * min(n, 100) + b".",
            b"](" + big + b"q\x01" + b"h\x01" * n + b"e.",
            b"\x8f(" + b"".join(big[:1000] for _ in range(10)) + b"\x90.",
            text + b"q\x00](" + b"c_codecs\nencode\nh\x00X\x06\x00\x00\x00latin1\x86R" * 50 + b"e.",
            text + b"q\x00](" + b"h\x00" * n + b"e.",
            b"\x8b" + struct.pack("<I", n) + b"\x7f" * n + b".",
            b"L" + b"9" * n + b"L\n.",
            b"I" + b"9" * n + b"\n.",
            b"}(" + b"".join(pickle.dumps(i * (2**61 - 1), 2)[2:-1] + b"N" for i in range(min(n, 50_000))) + b"u.",
            b"".join(b"r" + struct.pack("<I", rng.getrandbits(32)) for _ in range(9)),
            b"]" + b"q\x00" + b"h\x00a" * min(n, 1000) + b".",
            b"(" * 3 + b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R.",
            bytes(rng.getrandbits(8) for _ in range(300)),
        ]
    )


def hostile_pickle(rng: random.Random, folder: Path, good: bytes) -> bytes:
    return pickles(rng, folder)


def hostile_truth(rng: random.Random, folder: Path, good: bytes) -> bytes:
    """The right keys over hostile values."""
    stream = pickles(rng, folder)[:-1]
    keys = [b"X" + struct.pack("<I", len(key)) + key for key in (b"imlist", b"qimlist", b"gnd")]
    values = [stream, b"]", b"]"]
    rng.shuffle(values)
    return rng.choice([stream + b".", b"}(" + b"".join(k + v for k, v in zip(keys, values, strict=True)) + b"u."])


def hostile_zip(rng: random.Random, folder: Path, good: bytes) -> bytes:
    data = io.BytesIO()
    method = rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
    with zipfile.ZipFile(data, "w", method) as archive:
        archive.writestr("archive/data.pkl", pickles(rng, folder))
        archive.writestr("archive/data/0", bytes(rng.choice([0, 48, 10**6])))
        if rng.random() < 0.1:
            for i in range(20_000):
                archive.writestr(f"archive/{i}", b"")
    return data.getvalue()


def hostile_legacy(rng: random.Random, folder: Path, good: bytes) -> bytes:
    place = good.index(b"\x80\x02}q\x00(X\x05\x00\x00\x00epoch")
    return good[:place] + pickles(rng, folder) + rng.choice([b"", good[place:]])


def hostile_safetensors(key: str) -> Hostile:
    def make(rng: random.Random, folder: Path, good: bytes) -> bytes:
        n = rng.choice([10, 10_000, 3_000_000, 10**9, 2**62])
        tensors = safetensors.torch.load(good)
        end = 8 + int.from_bytes(good[:8], "little")
        header = json.loads(json.loads(good[8:end])["__metadata__"][key])
        options: dict[str, Callable[[], object]] = {
            "network": lambda: header.update(sorter=rng.choice(list(sodeep.SORTERS)), config={"seq_len": n}),
            "layers": lambda: header.update(sorter="gru", config={"layers": min(n, 1024)}),
            "hidden": lambda: header.update(sorter="lstm", config={"seq_len": 5, "hidden": n}),
            "stages": lambda: header.update(sorter="set", config={"frequencies": [1] * min(n, 1024)}),
            "training": lambda: header.update(training={"lengths": [n, -n], "scores": [1e308, -1e308]}),
            "field": lambda: header.update(
                {rng.choice(list(header)): rng.choice([None, True, -n, "x", [], {}, [[]] * 9])}
            ),
            "config": lambda: (
                isinstance(header["config"], dict)
                and header["config"].update(
                    {rng.choice(list(header["config"])): rng.choice([None, True, n, "x", [], {}])}
                )
            ),
            "rename": lambda: tensors.update(x=tensors.pop(rng.choice(list(tensors)))),
            "shape": lambda: tensors.update({rng.choice(list(tensors)): torch.zeros(3, 1)}),
            "dtype": lambda: tensors.update({rng.choice(list(tensors)): torch.zeros(2, dtype=torch.int8)}),
            "nan": lambda: [t.fill_(torch.nan) for t in tensors.values() if t.is_floating_point()],
        }
        if key == "sodeep_run":  # the config of a sound state is the user's own: it may be as large as they like
            del options["config"]
        if rng.random() < 0.2:
            text = b"[" * min(n, 10**7) if rng.random() < 0.5 else b'{"a":' + b"[]," * min(n, 10**6) + b"1}"
            return struct.pack("<Q", rng.choice([len(text), n])) + b"{" + text
        options[rng.choice(list(options))]()
        return seal(tensors, key, header)

    return make


def npy(shape: object, dtype: object = "<f8", data: bytes = bytes(96), version: bytes = b"\x01\x00") -> bytes:
    text = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY" + version + struct.pack("<H", len(text)) + text + data


def hostile_npy(rng: random.Random, folder: Path, good: bytes) -> bytes:
    n = rng.choice([10, 10**6, 10**9, 10**12, 2**63])
    shape = rng.choice([(n, 4), (3, n), (n, 0), (0, n), (-n, 2), (n,), (), (2**32, 2**32), (3, 4)])
    dtype = rng.choice(["<f8", "|O", "<U999999999", "|S0", "|V9", "<M8[D]", [("a", "<f8")], "<c16", "|b1"])
    return rng.choice(
        [
            npy(shape),
            npy((3, 4), dtype),
            npy(shape, dtype, pickles(rng, folder)),
            npy("(" * 500 + "3" + ")" * 500),
            npy((3, 4), version=b"\x09\x00"),
            hostile_zip(rng, folder, good),
            pickles(rng, folder),
        ]
    )


def hostile_npz(rng: random.Random, folder: Path, good: bytes) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(good)) as old:
        members = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        chosen = rng.choice(list(members))
        n = rng.choice([6, 10**6, 10**9])
        bomb = npy((10**8, 1), "|i1", bytes(10**8)) if rng.random() < 0.02 else npy((n, 3))
        members[chosen] = rng.choice([hostile_npy(rng, folder, good), bomb])
        for name, content in members.items():
            archive.writestr(name, content)
    return data.getvalue()


def hostile_json(rng: random.Random, folder: Path, good: bytes) -> bytes:
    n = rng.choice([10, 1000, 200_000])
    return rng.choice(
        [
            b"[" * n,
            b'{"a":' * n,
            b"9" * n,
            b"null",
            b"[]",
            b'"x"',
            b"3",
            b"{}",
            b"NaN",
            re.sub(rb"\d+", lambda m: rng.choice([m[0], b"1e999", b"null", b"[]", b'"x"', b"-7", b"9" * 400]), good),
            re.sub(rb'"[^"]*"', lambda m: rng.choice([m[0]] * 9 + [b'"\\ud800"', b'""', b'"x"']), good),
        ]
    )


def hostile_text(rng: random.Random, folder: Path, good: bytes) -> bytes:
    n = rng.choice([10, 1000, 100_000])
    return rng.choice(
        [
            b",".join([b"1"] * n),
            b"1,2\n" * n,
            b"\n" * n,
            b" " * n,
            b'"' * n,
            b'"' + b"x" * (2 * n),
            b"\x00" * n,
            good.replace(b"\n", b"\r"),
            good.decode().encode("utf-16"),
            good + b"9" * n + b"\n",
            good.replace(b"1", b"1e999"),
            good.replace(b"1", b"nan"),
            good.replace(b" ", b"\t"),
            good.replace(b",", b";"),
            good.replace(b"/", b"/../"),
            good.replace(b"\n", b"\n" + b"x," * n + b"\n", 1),
        ]
    )


def hostile_xml(rng: random.Random, folder: Path, good: bytes) -> bytes:
    levels = "".join(f'<!ENTITY l{i + 1} "{f"&l{i};" * 10}">' for i in range(9))
    return rng.choice(
        [
            f'<!DOCTYPE a [<!ENTITY l0 "lol">{levels}]><a>&l9;</a>'.encode(),
            b"<a>" * rng.choice([100, 100_000]),
            b'<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a><object><name>&x;</name></object></a>',
            good.replace(b"cat", b"&cat;"),
        ]
    )


def hostile_image(rng: random.Random, folder: Path, good: bytes) -> bytes:
    size = rng.choice([10, 20_000, 2**31 - 1])
    header = b"\x89PNG\r\n\x1a\n" + b"\x00\x00\x00\rIHDR" + struct.pack(">II", size, size) + b"\x08\x02\x00\x00\x00"
    return rng.choice(
        [
            header + good[29:],
            b"BM" + struct.pack("<IIIIiiHH", 99, 0, 54, 40, size, size, 1, 24) + bytes(40),
            b"GIF89a" + bytes(99),
        ]
    )


# ---- damage ----------------------------------------------------------------------------------------------------------


def damaged(rng: random.Random, good: bytes, others: Sequence[bytes]) -> bytes:
    """`good` flipped, cut, filled in, overwritten or swapped."""
    data = bytearray(good)
    damage = rng.choice(["flip", "flip", "cut", "insert", "remove", "overwrite", "swap", "repeat", "number", "zero"])
    start = rng.randrange(len(data))
    end = min(len(data), start + rng.choice([1, 4, 8, 64, 1000]))
    noise = bytes(rng.getrandbits(8) for _ in range(end - start))
    if damage == "flip":
        for _ in range(rng.choice([1, 1, 2, 8])):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif damage == "cut":
        del data[start:]
    elif damage == "insert":
        data[start:start] = noise
    elif damage == "remove":
        del data[start:end]
    elif damage == "overwrite":
        data[start:end] = noise
    elif damage == "swap":
        other = rng.choice(others)
        data[:start] = other[: rng.choice([8, 64, len(other)])]
    elif damage == "repeat":
        data[start:start] = data[start:end] * rng.choice([1, 2, 50])
    elif damage == "zero":
        data[start:end] = bytes(end - start)
    else:
        numbers = list(re.finditer(rb"\d+", data))
        if numbers:
            chosen = rng.choice(numbers)
            data[chosen.start() : chosen.end()] = rng.choice(
                [b"0", b"-1", b"99999999999", b"9" * 30, b"1e400", b"null"]
            )
    return bytes(data)


# name: (writes good files and returns the one to damage, reads it, makes hostile ones)
FORMATS: dict[str, tuple[Write, Read, Hostile]] = {
    "sorter": (sorter_file, lambda path, folder: sodeep.load_sorter(path), hostile_safetensors("sodeep")),
    "sorter header": (
        sorter_file,
        lambda path, folder: checkpoint.read_header(path),
        hostile_safetensors("sodeep"),
    ),
    "old sorter": (old_sorter_file, lambda path, folder: sodeep.load_sorter(path), hostile_safetensors("sodeep")),
    "state": (
        state_file,
        lambda path, folder: sodeep.train_sorter(out=folder / "s.safetensors", resume=True),
        hostile_safetensors("sodeep_run"),
    ),
    "2019 zip": (
        lambda folder: checkpoint_2019(folder, True),
        lambda path, folder: sodeep.import_sodeep2019(path),
        hostile_zip,
    ),
    "2019 legacy": (
        lambda folder: checkpoint_2019(folder, False),
        lambda path, folder: sodeep.import_sodeep2019(path),
        hostile_legacy,
    ),
    "scores csv": (scores_csv, lambda path, folder: sodeep.generators.read_scores_file(path), hostile_text),
    "scores npy": (scores_npy, lambda path, folder: sodeep.generators.read_scores_file(path), hostile_npy),
    **{
        f"features {task}": (features(task), read_data(known, file=True), hostile_npz)
        for task, known in (
            ("retrieval", retrieval.RETRIEVAL),
            ("cross-modal", captions.CROSS_MODAL),
            ("memorability", memorability.MEMORABILITY),
            ("multi-label", multi_label.MULTI_LABEL),
            ("ranking", ranking.RANKING),
        )
    },
    **{
        f"images {suffix}": (class_folders(suffix), read_data(retrieval.RETRIEVAL), hostile_image)
        for suffix in ("png", "jpg", "tif", "gif", "webp", "bmp")
    },
    **{
        f"CUB {name}": (cub(name), read_data(retrieval.RETRIEVAL), hostile_text)
        for name in ("images.txt", "image_class_labels.txt", "classes.txt")
    },
    "products": (products, read_data(retrieval.RETRIEVAL), hostile_text),
    "in-shop": (in_shop, read_data(retrieval.RETRIEVAL), hostile_text),
    "captions json": (karpathy, read_data(captions.CROSS_MODAL), hostile_json),
    **{
        f"MediaEval {name}": (mediaeval(name), read_data(memorability.MEMORABILITY), hostile_text)
        for name in ("ground-truth_dev-set.csv", "dev-set_video-captions.txt")
    },
    "group table csv": (group_table, read_data(ranking.RANKING, file=True), hostile_text),
    "LETOR txt": (letor, read_data(ranking.RANKING, file=True), hostile_text),
    "table csv": (table, read_data(memorability.MEMORABILITY, file=True), hostile_text),
    **{
        f"VOC {name}": (voc(f"ImageSets/Main/{name}"), read_data(multi_label.MULTI_LABEL), hostile_text)
        for name in ("trainval.txt", "cat_test.txt")
    },
    "VOC xml": (
        voc("Annotations/000001.xml"),
        lambda path, folder: multi_label.read_voc(folder, source="xml"),
        hostile_xml,
    ),
    **{
        f"revisited pickle {protocol}": (
            truth(protocol),
            lambda path, folder: revisited.read_revisited(path),
            hostile_truth,
        )
        for protocol in (0, 2, 4)
    },
    "revisited json": (truth(None), lambda path, folder: revisited.read_revisited(path), hostile_json),
    "revisited npz": (revisited_features, read_data(retrieval.RETRIEVAL), hostile_npz),
    "runs jsonl": (comparison_folder("runs.jsonl"), read_comparison, hostile_json),
    "comparison json": (comparison_folder("comparison.json"), read_comparison, hostile_json),
    "details npz": (comparison_folder("details/a.npz"), read_comparison, hostile_npz),
}


# ---- one file, in a process of its own -------------------------------------------------------------------------------


def memory(field: str) -> int:
    """Of this process, in bytes: VmHWM is the most so far, VmSize the address space."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024


def try_file(read: Read, path: Path, folder: Path) -> str:
    """The fault of a reader on a file: "" if there is none."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = memory("VmHWM")
    fault = ""
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        read(path, folder)
    except (ValueError, OSError) as error:
        if path.name not in str(error) and folder.name not in str(error):
            fault = f"a message that does not name the file: {type(error).__name__}: {error}"
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        fault = f"traceback: {type(error).__name__} at {where.name}: {error}"
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    more = memory("VmHWM") - before - path.stat().st_size if path.exists() else 0
    if more > MEMORY:
        fault = f"memory: {more / 2**20:.0f} MiB beyond the file"
    if (folder / RAN).exists():
        fault = "it ran"
    return fault.replace("\n", " ")[:300]


def make(name: str, number: int, seed: int, temporary: str, goods: Mapping[str, bytes]) -> tuple[Path, Path]:
    """The damaged file of this number: its path and folder."""
    rng = random.Random(f"{seed} {name} {number}")
    write, _, hostile = FORMATS[name]
    folder = Path(tempfile.mkdtemp(dir=temporary))
    path = write(folder)
    good = goods[name]
    data = hostile(rng, folder, good) if rng.random() < 0.3 else damaged(rng, good, list(goods.values()))
    path.write_bytes(data)
    return path, folder


def work(
    name: str, numbers: Sequence[int], seed: int, temporary: str, goods: Mapping[str, bytes], pipe: TextIO
) -> None:
    """In a child: try the files of these numbers, and report each before and after."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    size = memory("VmSize")
    for number in numbers:
        path, folder = make(name, number, seed, temporary, goods)
        pipe.write(f"{number}\n")
        pipe.flush()
        resource.setrlimit(resource.RLIMIT_AS, (size + 4 * 2**30, resource.RLIM_INFINITY))
        fault = try_file(FORMATS[name][1], path, folder)
        pipe.write(f"{number} {fault}\n")
        pipe.flush()
        for entry in sorted(folder.rglob("*"), reverse=True):
            entry.rmdir() if entry.is_dir() else entry.unlink()
        folder.rmdir()


def results(
    name: str, numbers: Iterable[int], seed: int, temporary: str, goods: Mapping[str, bytes]
) -> Iterator[tuple[int, str]]:
    """(number, fault) of each file; a child that dies or hangs is followed by another."""
    left = list(numbers)
    while left:
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(read_end)
            try:
                with os.fdopen(write_end, "w") as pipe:
                    work(name, left, seed, temporary, goods, pipe)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        os.close(write_end)
        begun = None
        with os.fdopen(read_end, "rb", buffering=0) as pipe:
            text = b""
            while True:
                if not select.select([pipe], [], [], 20 * SECONDS)[0]:
                    os.kill(pid, signal.SIGKILL)
                    break
                more = pipe.read(65536)
                if not more:
                    break
                *lines, text = (text + more).split(b"\n")
                for line in lines:
                    number, space, fault = line.decode().partition(" ")
                    begun = int(number)
                    if space:
                        left.remove(begun)
                        yield begun, fault
                        begun = None
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if begun is not None:
            left.remove(begun)
            hung = status in (-signal.SIGVTALRM, -signal.SIGKILL)
            yield begun, f"hang: more than {SECONDS} s" if hung else f"crash: ended with {status}"
        elif status:
            raise click.ClickException(f"The files of {name} could not be made (see above).")


@click.command()
@click.option("--files", default=10_000, show_default=True, type=click.IntRange(1))
@click.option("--seed", default=0, show_default=True)
@click.option("--format", "names", multiple=True, type=click.Choice(list(FORMATS)), help="Repeatable.  [default: all]")
def main(files: int, seed: int, names: tuple[str, ...]) -> None:
    """Try FILES damaged files, as many of each format."""
    torch.set_num_threads(1)
    chosen = list(names or FORMATS)
    faults = 0
    with tempfile.TemporaryDirectory() as temporary:
        goods = {}
        for name in FORMATS:
            folder = Path(tempfile.mkdtemp(dir=temporary))
            path = FORMATS[name][0](folder)
            goods[name] = path.read_bytes()
            FORMATS[name][1](path, folder)  # a good one is read; and what is imported on the way, here
        for place, name in enumerate(chosen):
            numbers = range(place, files, len(chosen))
            faulty = [(number, fault) for number, fault in results(name, numbers, seed, temporary, goods) if fault]
            faults += len(faulty)
            click.echo(f"{name:<40}{len(numbers):>6} files {len(faulty):>5} faults")
            first = collections.Counter(fault[:60] for _, fault in faulty)
            for number, fault in faulty:
                if first.pop(fault[:60], None):
                    click.echo(f"    file {number}: {fault}")
    click.echo(f"{files} files, {faults} faults")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
