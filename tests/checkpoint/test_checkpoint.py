import argparse
import contextlib
import dataclasses
import io
import json
import os
import pickle
import re
import stat
import struct
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import sodeep
from sodeep import checkpoint
from sodeep._core.sealed import header_end, seal
from sodeep.checkpoint.format import list_sorters, load_sorter, read_header, save_sorter
from sodeep.checkpoint.sodeep2019 import import_sodeep2019
from sodeep.ranks import laplace_rank
from sodeep.sorters import SORTERS, build_sorter
from sodeep.sorters.base import Sorter

LENGTH = 40
SMALL = {
    "lstm": {"hidden": 8},
    "lstm-large": {"hidden": 8},
    "lstm-end": {"seq_len": 10},
    "gru-proj": {"hidden": 8, "layers": 2},
    "mlp": {"hidden": 32},
    "set": {"frequencies": [4, 8]},
}


def whole(message: str) -> str:
    """A pattern that matches exactly `message`."""
    return f"^{re.escape(message)}$"


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def small_sorter(name: str, **config: object) -> Sorter:
    """A sorter of few weights, none of them at its initial zero, with batch statistics of real lists."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        sorter = build_sorter(name, **{"seq_len": LENGTH, **SMALL.get(name, {}), **config})
        with torch.no_grad():
            for weight in sorter.parameters():
                weight.add_(0.05 * torch.randn_like(weight))
    sorter(normal(8, sorter.seq_len or LENGTH))
    return sorter


def same_bits(a: Sorter, b: Sorter) -> None:
    scores = normal(5, a.seq_len or LENGTH)
    torch.testing.assert_close(a(scores), b(scores), rtol=0, atol=0)


# ---- save and load ----


@pytest.mark.parametrize("name", SORTERS)
def test_load_gives_the_same_sorter_bit_for_bit(name: str, tmp_path: Path) -> None:
    sorter = small_sorter(name).freeze()
    path = save_sorter(tmp_path / "s.safetensors", sorter)
    loaded = load_sorter(path)
    assert (loaded.name, loaded.config, loaded.seq_len) == (name, sorter.config, sorter.seq_len)
    assert loaded.frozen
    assert next(loaded.parameters()).device.type == "cpu"
    same_bits(loaded, sorter)
    again = save_sorter(tmp_path / "again.safetensors", loaded)
    assert again.read_bytes() == path.read_bytes()


def test_load_in_a_new_process(tmp_path: Path) -> None:
    lists = normal(5, 10)
    ranks = {}
    for name in ("gru", "set"):
        sorter = small_sorter(name, seq_len=10)
        save_sorter(tmp_path / f"{name}.safetensors", sorter)
        ranks[name] = sorter.freeze()(lists)
    torch.save(lists, tmp_path / "lists.pt")
    code = (
        "import torch, sodeep.checkpoint as c; torch.set_num_threads(1); "  # sums as here, in one order
        "lists = torch.load('lists.pt', weights_only=True); "
        "torch.save({n: c.load_sorter(f'{n}.safetensors')(lists) for n in ('gru', 'set')}, 'ranks.pt')"
    )
    root = str(Path(sodeep.__file__).parents[1])
    path = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, check=True)
    torch.testing.assert_close(torch.load(tmp_path / "ranks.pt", weights_only=True), ranks, rtol=0, atol=0)


def test_training_and_header_come_back(tmp_path: Path) -> None:
    training = {
        "seed": 3,
        "steps": 100,
        "lengths": [10, 300],
        "scores": [-1.0, 2.5],
        "errors": {"uniform": 0.004, "normal": 0.005},
    }
    sorter = small_sorter("set")
    path = save_sorter(tmp_path / "mine.safetensors", sorter, training=training)
    loaded = load_sorter(path)
    assert loaded.trained == training
    assert loaded.trained_lengths == (10, 300)
    assert loaded.trained_range == (-1.0, 2.5)
    assert small_sorter("set").trained_lengths is None
    loaded.trained["seed"] = 4
    assert load_sorter(path).trained == training
    card = read_header(path)
    assert card == checkpoint.SorterCard(
        name="mine",
        path=path,
        sorter="set",
        config=sorter.config,
        seq_len=None,
        n_parameters=sum(weight.numel() for weight in sorter.parameters()),
        bytes=path.stat().st_size,
        training=training,
        library_version=sodeep.__version__,
    )
    with safetensors.safe_open(path, "pt") as file:  # readable by anyone
        assert json.loads(file.metadata()["sodeep"])["training"] == training
    # a saved copy keeps the record of the training
    assert load_sorter(save_sorter(tmp_path / "copy.safetensors", loaded)).trained == loaded.trained


def test_each_load_is_independent_and_draws_no_random_number(tmp_path: Path) -> None:
    path = save_sorter(tmp_path / "s.safetensors", small_sorter("set"))
    state = torch.random.get_rng_state()
    first, second = load_sorter(path), load_sorter(path)
    torch.testing.assert_close(torch.random.get_rng_state(), state, rtol=0, atol=0)
    expected = second(normal(2, 9))
    with torch.no_grad():
        for weight in first.parameters():
            weight.zero_()
    torch.testing.assert_close(second(normal(2, 9)), expected, rtol=0, atol=0)
    torch.testing.assert_close(load_sorter(path)(normal(2, 9)), expected, rtol=0, atol=0)


def test_file_is_read_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    read_bytes = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: reads.append(path) or read_bytes(path))
    path = save_sorter(tmp_path / "s.safetensors", small_sorter("gru-sum"), training={"run": 1})
    for _ in range(3):
        load_sorter(path)
    assert len(reads) == 1
    save_sorter(path, small_sorter("gru-sum"), training={"run": 2})
    assert load_sorter(path).trained == {"run": 2}
    assert len(reads) == 2


def test_half_precision_file_is_smaller_and_loads_wide(tmp_path: Path) -> None:
    """Its matrices are rounded, its vectors are not: some cannot bear it, and all of them are few."""
    sorter = small_sorter("mlp").freeze()
    path = save_sorter(tmp_path / "full.safetensors", sorter)
    half = save_sorter(tmp_path / "half.safetensors", sorter, dtype=torch.float16)
    assert half.stat().st_size < 0.7 * path.stat().st_size
    loaded = load_sorter(half)
    for weight, original in zip(loaded.parameters(), sorter.parameters(), strict=True):
        assert weight.dtype == torch.float32
        stored = original.half().float() if original.ndim > 1 else original
        torch.testing.assert_close(weight, stored, rtol=0, atol=0)
    again = save_sorter(tmp_path / "again.safetensors", loaded, dtype=torch.float16)
    assert again.read_bytes() == half.read_bytes()


@pytest.mark.parametrize("name", ["set", "cnn", "gru"])
def test_a_double_sorter_stored_in_single_precision_is_a_single_one(name: str, tmp_path: Path) -> None:
    sorter = small_sorter(name).double().freeze()
    loaded = load_sorter(save_sorter(tmp_path / "s.safetensors", sorter, dtype=torch.float32))
    assert {t.dtype for t in loaded.state_dict().values() if t.is_floating_point()} == {torch.float32}
    scores = normal(5, LENGTH)
    torch.testing.assert_close(loaded(scores), sorter(scores).float(), rtol=0, atol=1e-3)


def test_double_precision_comes_back(tmp_path: Path) -> None:
    sorter = small_sorter("gru").double().freeze()
    loaded = load_sorter(save_sorter(tmp_path / "s.safetensors", sorter))
    scores = normal(2, 9).double()
    torch.testing.assert_close(loaded(scores), sorter(scores), rtol=0, atol=0)


def test_loaded_sorter_can_be_fine_tuned(tmp_path: Path) -> None:
    sorter = load_sorter(save_sorter(tmp_path / "s.safetensors", small_sorter("gru"))).unfreeze()
    optimizer = torch.optim.Adam(sorter.parameters(), lr=0.01)
    before = [weight.clone() for weight in sorter.parameters()]
    sorter(normal(2, 9)).square().mean().backward()
    optimizer.step()
    assert any(not torch.equal(a, b) for a, b in zip(before, sorter.parameters(), strict=True))


def test_a_file_with_the_older_name_of_an_option_loads(tmp_path: Path) -> None:
    sorter = build_sorter("lstm", 5, hidden=8)
    path = save_sorter(tmp_path / "lstm.safetensors", sorter)
    tensors = safetensors.torch.load(path.read_bytes())
    header = checkpoint.format.Header.parse(path, path.read_bytes(), path.stat().st_size).to_json()
    header["config"]["start"] = header["config"].pop("init")
    path.write_bytes(seal(tensors, "sodeep", header))
    scores = torch.randn(3, 5)
    torch.testing.assert_close(load_sorter(path)(scores), sorter.eval()(scores), rtol=0, atol=0)


def test_shipped_sorters_load_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {name: save_sorter(tmp_path / f"{name}.safetensors", small_sorter(name)) for name in ("lstm", "set")}
    monkeypatch.setattr("sodeep.checkpoint.format._shipped", lambda: files)
    assert [(card.name, card.sorter, card.seq_len) for card in list_sorters()] == [
        ("lstm", "lstm", LENGTH),
        ("set", "set", None),
    ]
    assert load_sorter("lstm").name == "lstm"
    assert read_header("set").path == files["set"]
    message = (
        "`name_or_path` must be a sorter file or a shipped sorter (lstm, set), got 'lstn', which is neither. "
        "Did you mean 'lstm'?"
    )
    with pytest.raises(FileNotFoundError, match=whole(message)):
        load_sorter("lstn")
    message = (
        "`name_or_path` must be a sorter file or a shipped sorter (lstm, set), got 'runs/best.safetensors', "
        "which is neither."
    )
    with pytest.raises(FileNotFoundError, match=whole(message)):
        load_sorter("runs/best.safetensors")


def test_what_is_no_name_of_a_sorter() -> None:
    for given, remedy in ((None, ""), (3, ""), (b"set", ""), (laplace_rank, " It is a rank function as it is.")):
        message = f"`name_or_path` must be a name or a path, got {given!r}.{remedy}"
        with pytest.raises(TypeError, match=whole(message)):
            load_sorter(given)  # type: ignore[arg-type]
    for name in ("laplace", "laplace_rank"):
        with pytest.raises(FileNotFoundError, match=r" sodeep\.laplace_rank is a function, and is not loaded\.$"):
            load_sorter(name)


def test_every_shipped_file_loads() -> None:
    for card in list_sorters():
        assert load_sorter(card.name).name == card.sorter


# ---- writing ----


def test_new_file_has_the_permissions_of_a_new_file(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_bytes(b"")
    path = save_sorter(tmp_path / "s.safetensors", small_sorter("gru-sum"))
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["plain", "s.safetensors"]


def test_file_is_whole_whenever_the_writer_is_killed(tmp_path: Path) -> None:
    code = (
        "import torch, itertools; from sodeep.checkpoint import save_sorter; from sodeep.sorters import build_sorter\n"
        "sorter = build_sorter('lstm', seq_len=50)\n"
        "for i in itertools.count(): save_sorter('s.safetensors', sorter, training={'step': i})"
    )
    root = str(Path(sodeep.__file__).parents[1])
    path = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
    file = tmp_path / "s.safetensors"
    with subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}) as writer:
        while not file.exists() and writer.poll() is None:
            time.sleep(0.01)
        time.sleep(0.2)
        writer.kill()
    assert load_sorter(file).seq_len == 50


def test_bad_arguments_of_save(tmp_path: Path) -> None:
    sorter = small_sorter("gru-sum")
    path = tmp_path / "s.safetensors"
    cases = [
        (
            (path, nn.Linear(2, 2)),
            TypeError,
            "`sorter` must be a sodeep Sorter, got Linear. Save the sorter itself, not a compiled or wrapped one.",
        ),
        (
            (path, type("Mine", (Sorter,), {"name": "mine"})()),
            TypeError,
            "`sorter` must be of a class in SORTERS, got Mine, which no file can name. "
            "Add it first: SORTERS['mine'] = Mine.",
        ),
        (
            (path, sorter, {"when": time.gmtime}),
            TypeError,
            "`training` must hold plain JSON values (text, finite numbers, lists, dicts), got {'when': <built-in "
            "function gmtime>}: Object of type builtin_function_or_method is not JSON serializable.",
        ),
        (
            (path, sorter, {}, torch.int8),
            ValueError,
            "`dtype` must be torch.float16, torch.float32, torch.float64 or None, got torch.int8.",
        ),
        (
            (tmp_path / "no" / "s.safetensors", sorter),
            FileNotFoundError,
            f"`path` must be in a folder that exists, got {tmp_path}/no/s.safetensors. Make it first: {tmp_path}/no.",
        ),
        (
            (tmp_path, sorter),
            ValueError,
            f"`path` must be a file, got {tmp_path}, which is a folder. Add a name: {tmp_path}/my.safetensors.",
        ),
    ]
    for arguments, kind, message in cases:
        with pytest.raises(kind, match=whole(message)):
            save_sorter(*arguments)
    with torch.no_grad():
        sorter.rnn.weight_hh_l0[0, :2] = torch.tensor([torch.nan, torch.inf])
    message = (
        "`sorter` must have finite weights, got 2 NaN or infinite of 48 in 'rnn.weight_hh_l0'. "
        "The training diverged (lower the learning rate), or the weights do not fit the dtype."
    )
    with pytest.raises(ValueError, match=whole(message)):
        save_sorter(path, sorter)
    with torch.no_grad():
        sorter.rnn.weight_hh_l0[0, :2] = 1e5
    message = message.replace("l0'", "l0' once stored as float16")
    with pytest.raises(ValueError, match=whole(message)):
        save_sorter(path, sorter, dtype=torch.float16)
    assert list(tmp_path.iterdir()) == []


# ---- files of the wrong kind ----


def saved(tmp_path: Path, **changes: object) -> tuple[bytes, dict[str, object]]:
    """A good file's bytes and header."""
    data = save_sorter(tmp_path / "good.safetensors", small_sorter("gru-sum")).read_bytes()
    with safetensors.safe_open(tmp_path / "good.safetensors", "pt") as file:
        header = json.loads(file.metadata()["sodeep"])
    return data, header


def rewritten(tmp_path: Path, tensors: dict[str, Tensor] | None = None, **changes: object) -> bytes:
    """A file with valid checksums and layout, but with another header or other tensors."""
    data, header = saved(tmp_path)
    tensors = safetensors.torch.load(data) if tensors is None else tensors
    return seal(tensors, "sodeep", {**header, **changes})


def good_tensors(tmp_path: Path) -> dict[str, Tensor]:
    return safetensors.torch.load(saved(tmp_path)[0])


def with_offsets(tmp_path: Path, offsets: object) -> bytes:
    """A file whose layout puts every tensor at `offsets`."""
    data, _ = saved(tmp_path)
    length = int.from_bytes(data[:8], "little")
    layout = json.loads(data[8 : 8 + length])
    for key, entry in layout.items():
        if key != "__metadata__":
            entry["data_offsets"] = offsets
    text = json.dumps(layout).encode()
    return struct.pack("<Q", len(text)) + text + data[8 + length :]


SUM_KEYS = [f"{kind}_l0{end}" for end in ("", "_reverse") for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
AGAIN = "Get the file again, or train one."
WRONG_FILES = {
    "empty": (lambda folder: b"", f"it is empty. {AGAIN}"),
    "web page": (
        lambda folder: b"\n<!DOCTYPE html><html><body>404</body></html>",
        f"it is a web page, saved by a download that failed. {AGAIN}",
    ),
    "lfs": (
        lambda folder: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12\n",
        f"it is a Git LFS pointer, not the file itself (git lfs pull fetches it). {AGAIN}",
    ),
    "torch zip": (
        lambda folder: b"PK\x03\x04" + bytes(100),
        "it is a pickled PyTorch checkpoint, which is never unpickled here. "
        "If the 2019 training script wrote it: sodeep import-sorter, or import_sodeep2019(path).",
    ),
    "pickle": (
        lambda folder: b"\x80\x02}q\x00." + bytes(100),
        "it is a pickled PyTorch checkpoint, which is never unpickled here. "
        "If the 2019 training script wrote it: sodeep import-sorter, or import_sodeep2019(path).",
    ),
    "text": (lambda folder: b"just some text that is no sorter", f"it is no safetensors file. {AGAIN}"),
    "short": (lambda folder: saved(folder)[0][:5], f"it is no safetensors file. {AGAIN}"),
    "truncated header": (
        lambda folder: saved(folder)[0][:100],
        f"it is truncated or damaged (100 bytes). {AGAIN}",
    ),
    "huge header": (
        lambda folder: struct.pack("<Q", 2**62) + b"{}" + bytes(50),
        f"it is truncated or damaged (60 bytes). {AGAIN}",
    ),
    "broken header": (
        lambda folder: struct.pack("<Q", 9) + b'{"a": nul',
        f"its header is damaged. {AGAIN}",
    ),
    "deep header": (
        lambda folder: struct.pack("<Q", 200_005) + b'{"a":' + 200_000 * b"[",
        f"its header is damaged. {AGAIN}",
    ),
    "another program": (
        lambda folder: safetensors.torch.save({"w": torch.ones(2)}),
        f"it is a safetensors file without a sodeep header, so of another program. {AGAIN}",
    ),
    "another program's metadata": (
        lambda folder: safetensors.torch.save({"w": torch.ones(2)}, metadata={"format": "pt"}),
        f"it is a safetensors file without a sodeep header, so of another program. {AGAIN}",
    ),
    "newer": (
        lambda folder: rewritten(folder, format_version=2),
        f"its format version is 2, and this sodeep ({sodeep.__version__}) reads up to 1. Update sodeep.",
    ),
    "offset that is no number": (lambda folder: with_offsets(folder, [0, "x"]), f"its header is damaged. {AGAIN}"),
    "offset that is nothing": (lambda folder: with_offsets(folder, [0, None]), f"its header is damaged. {AGAIN}"),
    "endless offset": (lambda folder: with_offsets(folder, [0, 1e400]), f"its header is damaged. {AGAIN}"),
    "range of text": (
        lambda folder: rewritten(folder, training={"scores": "ab"}),
        f"its header has no valid 'training' (its 'scores' is not two numbers). {AGAIN}",
    ),
    "one length": (
        lambda folder: rewritten(folder, training={"lengths": 5}),
        f"its header has no valid 'training' (its 'lengths' is not two numbers). {AGAIN}",
    ),
    "field of another type": (
        lambda folder: rewritten(folder, config=[1]),
        f"its header has no valid 'config'. {AGAIN}",
    ),
}
BAD_CONTENT = {
    "unknown network": (
        lambda folder: rewritten(folder, sorter="transformer"),
        f"its network 'transformer' is not one of {', '.join(SORTERS)}. "
        "Update sodeep, or add the class that wrote it to SORTERS.",
    ),
    "unknown option": (
        lambda folder: rewritten(folder, config={"width": 3}),
        "its config does not build a gru-sum sorter: `config of the gru-sum sorter` must be one of seq_len, head, "
        f"hidden, layers, normalize, got 'width'. {AGAIN}",
    ),
    "terabytes": (
        lambda folder: rewritten(folder, config={"hidden": 10**6}),
        "its tensors are not those of this gru-sum sorter: "
        + "; ".join(
            f"rnn.{key}{end} has shape {found} instead of {shape}"
            for end in ("", "_reverse")
            for key, found, shape in (
                ("weight_ih_l0", "(12, 1)", "(3000000, 1)"),
                ("weight_hh_l0", "(12, 4)", "(3000000, 1000000)"),
                ("bias_ih_l0", "(12,)", "(3000000,)"),
                ("bias_hh_l0", "(12,)", "(3000000,)"),
            )
        )
        + f". {AGAIN}",
    ),
    "endless layers": (
        lambda folder: rewritten(folder, config={"layers": 10**12}),
        "its config does not build a gru-sum sorter: `layers` must be a whole number from 1 to 1024, "
        f"got 1000000000000. {AGAIN}",
    ),
    "missing and unexpected": (
        lambda folder: rewritten(
            folder,
            {
                "extra" if key == "rnn.bias_hh_l0" else key: tensor
                for key, tensor in safetensors.torch.load(saved(folder)[0]).items()
            },
        ),
        "its tensors are not those of this gru-sum sorter: rnn.bias_hh_l0 is missing; extra is unexpected. " + AGAIN,
    ),
    "weights of whole numbers": (
        lambda folder: rewritten(folder, {key: tensor.int() for key, tensor in good_tensors(folder).items()}),
        "its tensors are not those of this gru-sum sorter: "
        + "; ".join(f"rnn.{key} has dtype int32" for key in SUM_KEYS)
        + f". {AGAIN}",
    ),
    "weights of bfloat16": (
        lambda folder: rewritten(folder, {key: tensor.bfloat16() for key, tensor in good_tensors(folder).items()}),
        "its tensors are not those of this gru-sum sorter: "
        + "; ".join(f"rnn.{key} has dtype bfloat16" for key in SUM_KEYS)
        + f". {AGAIN}",
    ),
    "complex weights": (
        lambda folder: rewritten(folder, {key: tensor + 0j for key, tensor in good_tensors(folder).items()}),
        "its tensors are not those of this gru-sum sorter: "
        + "; ".join(f"rnn.{key} has dtype complex64" for key in SUM_KEYS)
        + f". {AGAIN}",
    ),
    "weights that are not finite": (
        lambda folder: rewritten(
            folder,
            {key: tensor / 0 if key == "rnn.bias_hh_l0" else tensor for key, tensor in good_tensors(folder).items()},
        ),
        "its tensors are not those of this gru-sum sorter: rnn.bias_hh_l0 has 12 NaN or infinite of 12 values. "
        + AGAIN,
    ),
    "flipped bit": (
        lambda folder: saved(folder)[0][:-1] + bytes([saved(folder)[0][-1] ^ 1]),
        f"its tensors are damaged (the checksum differs). {AGAIN}",
    ),
}


@pytest.mark.parametrize("case", WRONG_FILES)
def test_wrong_files_say_what_they_are(case: str, tmp_path: Path) -> None:
    content, found = WRONG_FILES[case]
    path = tmp_path / "bad.safetensors"
    path.write_bytes(content(tmp_path))
    for read in (load_sorter, read_header):
        with pytest.raises(ValueError, match=whole(f"{path} is not a sorter file: {found}")):
            read(path)


@pytest.mark.parametrize("case", BAD_CONTENT)
def test_files_with_bad_content_say_what_is_wrong(case: str, tmp_path: Path) -> None:
    content, found = BAD_CONTENT[case]
    if case == "complex weights" and torch.complex64 not in vars(safetensors.torch)["_SIZE"]:
        pytest.skip("this version of safetensors cannot write them")
    path = tmp_path / "bad.safetensors"
    path.write_bytes(content(tmp_path))
    with pytest.raises(ValueError, match=whole(f"{path} is not a sorter file: {found}")):
        load_sorter(path)


def resealed(data: bytes, change: Callable[[dict[str, object], dict[str, object]], object]) -> bytes:
    """A file with another header and the checksums it had, as an editor would leave it."""
    end = header_end(data)
    layout = json.loads(data[8:end])
    header = json.loads(layout["__metadata__"]["sodeep"])
    change(layout, header)
    layout["__metadata__"]["sodeep"] = json.dumps(header, sort_keys=True)
    text = json.dumps(layout, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data[end:]


def swap_weights(layout: dict[str, object], header: dict[str, object]) -> None:
    a, b = "rnn.weight_ih_l0", "rnn.weight_ih_l0_reverse"
    layout[a], layout[b] = layout[b], layout[a]


CHANGED_HEADERS = {
    "tensors swapped": swap_weights,
    "another option": lambda layout, header: header["config"].update(normalize=False),
    "another length": lambda layout, header: header["training"].update(lengths=[2, 3]),
    "another version": lambda layout, header: header.update(library_version="0"),
    "another field": lambda layout, header: header.update(more=1),
}


@pytest.mark.parametrize("case", CHANGED_HEADERS)
def test_the_checksum_covers_the_header(case: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.safetensors"
    data = saved(tmp_path)[0]
    path.write_bytes(resealed(data, lambda layout, header: None))
    assert load_sorter(path).name == "gru-sum"
    path.write_bytes(resealed(data, CHANGED_HEADERS[case]))
    message = f"{path} is not a sorter file: its header is damaged (the checksum differs). {AGAIN}"
    for read in (load_sorter, read_header):
        with pytest.raises(ValueError, match=whole(message)):
            read(path)


def test_every_flipped_bit_of_a_header_is_refused_or_changes_nothing(tmp_path: Path) -> None:
    path, data = tmp_path / "bad.safetensors", saved(tmp_path)[0]
    good = read_header(tmp_path / "good.safetensors")
    cards = []
    for place in range(0, header_end(data), 3):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :])
        with contextlib.suppress(ValueError):
            cards.append(read_header(path))
    # without a field of the name "checksum" it is a file of before it existed
    assert len(cards) <= len("checksum")
    assert all(dataclasses.replace(card, name="good", path=good.path) == good for card in cards)


def test_files_without_a_header_checksum_load(tmp_path: Path) -> None:
    path = tmp_path / "old.safetensors"
    path.write_bytes(resealed(saved(tmp_path)[0], lambda layout, header: header.pop("checksum")))
    same_bits(load_sorter(path), load_sorter(tmp_path / "good.safetensors"))
    data = resealed(saved(tmp_path)[0], lambda layout, header: header.update(checksum="0" * 64))
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"its header is damaged \(the checksum differs\)"):
        load_sorter(path)


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("lstm", {"seq_len": 3_000_000}),
        ("cnn", {"seq_len": 3_000_000}),
        ("lstm", {"seq_len": LENGTH, "layers": 1024}),
        ("lstm-end", {"seq_len": 10**9}),
        ("set", {"frequencies": [1024] * 1024}),
        ("set", {"frequencies": [1] * 1024}),
    ],
)
def test_headers_that_ask_for_much_build_nothing(name: str, config: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(rewritten(tmp_path, sorter=name, config=config))
    with pytest.raises(ValueError, match=r"is not a sorter file: its (config|tensors)") as error:
        load_sorter(path)
    assert len(str(error.value)) < 1000


def test_long_headers_are_parsed_only_if_sound(tmp_path: Path) -> None:
    path = tmp_path / "long.safetensors"
    training = {"note": "x" * 5 * 2**20}
    assert load_sorter(save_sorter(path, small_sorter("gru-sum"), training)).trained == training
    path.write_bytes(resealed(path.read_bytes(), lambda layout, header: header["training"].update(note="[" * 2**23)))
    message = f"{path} is not a sorter file: its header is damaged (it is long, and the checksum differs). {AGAIN}"
    with pytest.raises(ValueError, match=whole(message)):
        load_sorter(path)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    data, _ = saved(tmp_path)
    path = tmp_path / "cut.safetensors"
    for size in [*range(0, len(data), 97), len(data) - 1]:
        path.write_bytes(data[:size])
        with pytest.raises(ValueError, match="is not a sorter file"):
            load_sorter(path)


@pytest.mark.parametrize("hidden", [2**31, 2**40, 2**70])
def test_overflowing_sizes_are_refused(hidden: int, tmp_path: Path) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(rewritten(tmp_path, config={"hidden": hidden}))
    with pytest.raises(ValueError, match=r"is not a sorter file: its (config|tensors)"):
        load_sorter(path)


def test_folder_is_no_file(tmp_path: Path) -> None:
    message = f"{tmp_path} is not a sorter file: it is a folder. Give the .safetensors file in it."
    with pytest.raises(ValueError, match=whole(message)):
        load_sorter(tmp_path)


# ---- 2019 checkpoints: the networks as written then, from the published description ----


class Recurrent2019(nn.Module):
    """x -> bidirectional layers -> convolution as wide as the signal, or sum; gruc and grup with sigmoids around."""

    def __init__(self, attribute: str, rnn: nn.Module, length: int | None, sigmoid: bool) -> None:
        super().__init__()
        self.attribute, self.sigmoid = attribute, sigmoid
        setattr(self, attribute, rnn)
        if length is not None:
            self.conv1 = nn.Conv1d(length, length, 2 * rnn.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.sigmoid(x / 2.0 + 1) if self.sigmoid else x
        out, _ = getattr(self, self.attribute)(x[..., None])
        out = self.conv1(out)[..., 0] if hasattr(self, "conv1") else out.sum(2)
        return torch.sigmoid(out) if self.sigmoid else out


class End2019(nn.Module):
    def __init__(self, length: int) -> None:
        super().__init__()
        self.lstm = nn.GRU(length, 5 * length, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        batch, n = x.shape
        tiled = x.repeat(1, n).view(batch, n, n)
        _, state = self.lstm(tiled)
        return state.view(batch, n, 5).sum(2)


class CNN2019(nn.Module):
    def __init__(self, length: int) -> None:
        super().__init__()
        sizes = [1, 8, 16, 32, 64, 96, 128, 256, 256, 128]
        for i, width in enumerate([2, 3, 5, 7, 10, 7, 5, 3, 3]):
            parts = [nn.Conv1d(sizes[i], sizes[i + 1], width)]
            if i in (1, 3, 5, 7):
                parts.append(nn.BatchNorm1d(sizes[i + 1]))
            setattr(self, f"layer{i + 1}", nn.Sequential(*parts, nn.PReLU()))
        self.layer10 = nn.Conv1d(128, length, 64)

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, None]
        for i in range(1, 11):
            x = getattr(self, f"layer{i}")(x)
        return torch.sigmoid(x.view(x.shape[0], -1))


class MLP2019(nn.Module):
    def __init__(self, length: int) -> None:
        super().__init__()
        self.lin1, self.lin2, self.lin3 = nn.Linear(length, 2048), nn.Linear(2048, 2048), nn.Linear(2048, length)

    def forward(self, x: Tensor) -> Tensor:
        return self.lin3(torch.relu(self.lin2(torch.relu(self.lin1(x)))))


def bidirectional(cell: type[nn.RNNBase], hidden: int, layers: int) -> nn.RNNBase:
    return cell(1, hidden, layers, batch_first=True, bidirectional=True)


MODELS_2019 = {
    "cnn": (100, "cnn", lambda n: CNN2019(n)),
    "lstm": (12, "lstm", lambda n: Recurrent2019("lstm", bidirectional(nn.LSTM, 128, 2), n, False)),
    "lstmla": (7, "lstm-large", lambda n: Recurrent2019("lstm", bidirectional(nn.LSTM, 512, 2), n, False)),
    "lstme": (9, "lstm-end", lambda n: End2019(n)),
    "gruc": (12, "gru", lambda n: Recurrent2019("rnn", bidirectional(nn.GRU, 32, 6), None, True)),
    "grup": (12, "gru-proj", lambda n: Recurrent2019("rnn", bidirectional(nn.GRU, 128, 6), n, True)),
    "grus": (12, "gru-sum", lambda n: Recurrent2019("lstm", bidirectional(nn.GRU, 4, 1), None, False)),
    "mlp": (12, "mlp", lambda n: MLP2019(n)),
}


def network_2019(model: str) -> tuple[int, nn.Module]:
    n, _, build = MODELS_2019[model]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = build(n)
    network.train()(normal(16, n, seed=1))  # gives the batch norms statistics
    return n, network.eval()


def checkpoint_2019(network: nn.Module, model: object, n: int | None, prefix: str = "") -> dict[str, object]:
    args = argparse.Namespace(name="model", batch_size=256, lr=0.001, dist=None, model_type=model)
    if n is not None:
        args.seq_len = n
    weights = {prefix + key: tensor for key, tensor in network.state_dict().items()}
    return {"epoch": 17, "state_dict": weights, "best_rec": 0.0123, "args_dict": args}


@pytest.mark.parametrize("model", MODELS_2019)
@pytest.mark.parametrize("zipped", [True, False])
def test_import_gives_the_outputs_of_the_original(model: str, zipped: bool, tmp_path: Path) -> None:
    n, network = network_2019(model)
    path = tmp_path / "best_model.pth.tar"
    torch.save(checkpoint_2019(network, model, n), path, _use_new_zipfile_serialization=zipped)
    sorter = import_sodeep2019(path)
    name = MODELS_2019[model][1]
    assert (sorter.name, sorter.normalize, sorter.frozen) == (name, False, True)
    assert sorter.seq_len == (None if name in ("gru", "gru-sum") else n)
    assert sorter.trained_lengths == (n, n)
    assert sorter.trained_range == (-4.0, 4.0)
    assert (sorter.trained["epoch"], sorter.trained["validation_error"]) == (17, 0.0123)
    scores = normal(3, n, seed=2)
    torch.testing.assert_close(sorter(scores), n * network(scores), rtol=1e-5, atol=1e-5 * n)
    # and through our own file
    again = load_sorter(save_sorter(tmp_path / "s.safetensors", sorter))
    torch.testing.assert_close(again(scores), sorter(scores), rtol=0, atol=0)


def test_import_with_parallel_prefix_plain_args_and_no_length(tmp_path: Path) -> None:
    n, network = network_2019("lstm")
    state = checkpoint_2019(network, "lstm", None, prefix="module.")
    state["args_dict"] = vars(state["args_dict"])
    torch.save(state, tmp_path / "old.pth")
    assert import_sodeep2019(tmp_path / "old.pth").seq_len == n


SHAPE_2019 = (
    "It should be a torch.save file of a dict with the weights, plain values and the argparse.Namespace of the command "
    "line, nothing else. If it was copied, copy it again."
)


class RunsCode:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.marker}",)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("place", ["args", "weights", "inside args"])
def test_import_runs_no_code(zipped: bool, place: str, tmp_path: Path) -> None:
    n, network = network_2019("grus")
    marker, path = tmp_path / "marker", tmp_path / "bad.pth"
    state = checkpoint_2019(network, "grus", n)
    if place == "args":
        state["args_dict"] = RunsCode(marker)
    elif place == "weights":
        state["state_dict"]["lstm.weight_ih_l0"] = RunsCode(marker)
    else:
        state["args_dict"].name = RunsCode(marker)
    torch.save(state, path, _use_new_zipfile_serialization=zipped)
    message = f"{path} is not a 2019 checkpoint: it asks for {os.name}.system, which is not plain data. {SHAPE_2019}"
    with pytest.raises(ValueError, match=whole(message)):
        import_sodeep2019(path)
    assert not marker.exists()


def test_the_loader_points_to_the_importer(tmp_path: Path) -> None:
    n, network = network_2019("grus")
    for zipped in (True, False):
        path = tmp_path / "old.pth"
        torch.save(checkpoint_2019(network, "grus", n), path, _use_new_zipfile_serialization=zipped)
        with pytest.raises(ValueError, match=r"pickled PyTorch checkpoint.*import_sodeep2019\(path\)\.$"):
            load_sorter(path)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda weight: weight.long(), "is not a sorter file: its tensors are not those of this gru-sum sorter: "),
        (
            lambda weight: weight.to_sparse(),
            "is not a 2019 checkpoint: it asks for torch._utils._rebuild_sparse_tensor, which is not plain data. ",
        ),
        (lambda weight: weight.bfloat16(), "is not a 2019 checkpoint: it asks for torch.BFloat16Storage, which is "),
        (
            lambda weight: weight.flatten()[:1].clone().expand(weight.shape),
            "is not a 2019 checkpoint: a tensor of shape (12, 1) is larger than what the file holds of it, 1 numbers. ",
        ),
    ],
)
def test_import_of_weights_that_are_none(change: Callable[[Tensor], Tensor], fault: str, tmp_path: Path) -> None:
    weights = {key: change(tensor) for key, tensor in small_sorter("gru-sum").state_dict().items()}
    path = tmp_path / "old.pth.tar"
    torch.save({"args_dict": argparse.Namespace(model_type="grus"), "state_dict": weights}, path)
    with pytest.raises(ValueError, match=f"^{re.escape(f'{path} {fault}')}"):
        import_sodeep2019(path)


def test_import_does_not_allocate_what_the_file_does_not_hold(tmp_path: Path) -> None:
    n = 10**9
    weights = {"lin1.weight": (2048, n), "lin1.bias": (2048,), "lin2.weight": (2048, 2048), "lin2.bias": (2048,)}
    weights |= {"lin3.weight": (n, 2048), "lin3.bias": (n,)}
    path = tmp_path / "bomb.pth.tar"
    state = {key: torch.zeros(1).expand(shape) for key, shape in weights.items()}
    torch.save({"args_dict": argparse.Namespace(model_type="mlp"), "state_dict": state}, path)
    with pytest.raises(ValueError, match="is larger than what the file holds of it"):
        import_sodeep2019(path)
    once = torch.zeros(10**4)  # each fits the file, not all together
    torch.save([once[: 10**4 - i] for i in range(10)], path)
    with pytest.raises(ValueError, match="its tensors together are larger than the file"):
        import_sodeep2019(path)


def test_import_of_weights_that_lie_in_one_storage(tmp_path: Path) -> None:
    """As those of a recurrent network on a GPU do; and one of them transposed."""
    n, network = network_2019("grus")
    state = checkpoint_2019(network, "grus", n)
    weights = state["state_dict"]
    flat, start = torch.cat([weight.flatten() for weight in weights.values()]), 0
    for key, weight in list(weights.items()):
        weights[key] = flat[start : start + weight.numel()].view(weight.shape)
        start += weight.numel()
    key = "lstm.weight_hh_l0"
    weights[key] = weights[key].t().contiguous().t()
    for zipped in (True, False):
        torch.save(state, tmp_path / "old.pth", _use_new_zipfile_serialization=zipped)
        scores = normal(3, n, seed=2)
        torch.testing.assert_close(
            import_sodeep2019(tmp_path / "old.pth")(scores), n * network(scores), rtol=1e-5, atol=1e-5 * n
        )


def old_file(stream: bytes, zipped: bool) -> bytes:
    """A file of `torch.save` that holds `stream` in place of its pickle."""
    buffer = io.BytesIO()
    if not zipped:
        torch.save(0, buffer, _use_new_zipfile_serialization=False)
        data = buffer.getvalue()
        start = data.index(pickle.dumps(0, 2), 100)
        return data[:start] + stream + data[start + len(pickle.dumps(0, 2)) :]
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", stream)
    return buffer.getvalue()


BIG = b"\x96" + (10**6).to_bytes(8, "little") + bytes(10**6)
HOSTILE_2019 = {
    "deep tuples": (b")" + b"\x85" * 100_000 + b".", "it has more than 100 lists, dicts and tuples in each other"),
    "a million levels": (b")" + b"\x85" * 10**6 + b".", "it has more than 200,000 dicts, lists, tuples and arrays"),
    "bomb": (
        b"K\x01" + b"q\x00h\x00h\x00\x87" * 40 + b".",
        "it would be much larger than the file, which uses the same parts over and over",
    ),
    "set of byte arrays": (b"\x8f(" + BIG + b"\x90.", "it uses EMPTY_SET, which plain data does not need"),
    "uninitialised weights": (
        b"ctorch\nTensor\n(M\xe8\x03tR.",
        "it asks for torch.Tensor, which is not plain data",
    ),
    "an object without __init__": (
        b"cargparse\nNamespace\n)\x81K\x01b.",
        "it is damaged (a int where a dict belongs)",
    ),
    "a deep tuple to be hashed": (
        b"ccollections\nOrderedDict\n](" + b")" + b"\x85" * 150_000 + b"K\x01\x86e\x85R.",
        "it is no pickle, or a damaged one (",
    ),
    "numbers from nowhere": (
        b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuJ\x00\x00\x00\x7ftQ.",
        "it holds _Storage(key='0', dtype=torch.float32, count=2130706432), which is not plain data",
    ),
    "no end": (b"}q\x00", "it is no pickle, or a damaged one ("),
}


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("case", HOSTILE_2019)
def test_import_of_pickles_that_ask_for_too_much(case: str, zipped: bool, tmp_path: Path) -> None:
    stream, found = HOSTILE_2019[case]
    path = tmp_path / "bad.pth"
    path.write_bytes(old_file(stream, zipped))
    if case == "numbers from nowhere" and not zipped:
        found = "it is truncated or damaged (the numbers are not those that its tensors name)"
    with pytest.raises(ValueError, match=f"^{re.escape(f'{path} is not a 2019 checkpoint: {found}')}"):
        import_sodeep2019(path)


def test_import_of_an_archive_that_is_not_ours(tmp_path: Path) -> None:
    path = tmp_path / "bad.pth"

    def archive(parts: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> None:
        with zipfile.ZipFile(path, "w", method) as file:
            for name, data in parts.items():
                file.writestr(name, data)

    stream = pickle.dumps({}, 2)
    cases = [
        (({"a/data.pkl": bytes(10**6)}, zipfile.ZIP_DEFLATED), "it is a compressed archive, which torch.save does not"),
        (({"a/data.pkl": stream, "b/data.pkl": stream},), "it is an archive of another program than torch.save"),
        (({"word/document.xml": b""},), "it is an archive of another program than torch.save"),
        (({"a/data.pkl": stream, "a/byteorder": b"big"},), "it was written on a machine of another byte order"),
    ]
    for arguments, found in cases:
        archive(*arguments)
        with pytest.raises(ValueError, match=f"^{re.escape(f'{path} is not a 2019 checkpoint: {found}')}"):
            import_sodeep2019(path)


@pytest.mark.parametrize("zipped", [True, False])
def test_every_truncation_of_a_2019_checkpoint_says_so(zipped: bool, tmp_path: Path) -> None:
    n, network = network_2019("grus")
    path = tmp_path / "old.pth"
    torch.save(checkpoint_2019(network, "grus", n), path, _use_new_zipfile_serialization=zipped)
    data = path.read_bytes()
    for size in [*range(1, len(data), 101), len(data) - 1]:
        path.write_bytes(data[:size])
        with pytest.raises(ValueError, match=rf"is not a 2019 checkpoint: it is .*\. {re.escape(SHAPE_2019)}$"):
            import_sodeep2019(path)


def test_import_of_a_key_that_is_no_text(tmp_path: Path) -> None:
    weights = {**small_sorter("gru-sum").state_dict(), 3: torch.ones(1)}
    path = tmp_path / "old.pth.tar"
    torch.save({"args_dict": argparse.Namespace(model_type="grus"), "state_dict": weights}, path)
    with pytest.raises(ValueError, match="3 is unexpected"):
        import_sodeep2019(path)


def test_pipes_and_devices_are_no_files(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for read in (load_sorter, read_header):  # would wait for ever
        with pytest.raises(
            ValueError,
            match=whole(f"{pipe} is not a sorter file: it is a device or a pipe. Give the .safetensors file."),
        ):
            read(pipe)
    with pytest.raises(
        ValueError,
        match=whole(f"`path` must be a regular file, got {pipe}, a device or a pipe. Choose another name."),
    ):
        save_sorter(pipe, small_sorter("gru-sum"))
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_import_of_other_files(tmp_path: Path) -> None:
    path = tmp_path / "old.pth"
    for data, found in (
        (b"", "it is empty."),
        (b"<html></html>", "it is a web page, saved by a download that failed."),
        (b"PK\x03\x04 cut short", "it is an archive that is truncated or damaged (File is not a zip file)."),
        (b"text", "it is no pickle, or a damaged one (pop from empty list)."),
        (pickle.dumps(5), "it was not written by torch.save."),
    ):
        path.write_bytes(data)
        with pytest.raises(ValueError, match=whole(f"{path} is not a 2019 checkpoint: {found} {SHAPE_2019}")):
            import_sodeep2019(path)
    with pytest.raises(
        FileNotFoundError, match=whole(f"`path` must be a 2019 checkpoint, got {tmp_path}, not a file.")
    ):
        import_sodeep2019(tmp_path)

    n, network = network_2019("grus")
    good = checkpoint_2019(network, "grus", n)
    for state, message in (
        (
            network.state_dict(),
            f"{path} is not a 2019 checkpoint: it should be a dict with 'args_dict' and 'state_dict', found "
            f"dict with {sorted(network.state_dict())[:8]}. Use the file that the training script wrote, "
            "not the bare weights.",
        ),
        (
            [1, 2],
            f"{path} is not a 2019 checkpoint: it should be a dict with 'args_dict' and 'state_dict', found list. "
            "Use the file that the training script wrote, not the bare weights.",
        ),
        (
            {**good, "args_dict": argparse.Namespace(model_type="exa")},
            f"{path} must hold one of the models cnn, lstm, lstmla, lstme, gruc, grup, grus, mlp, got 'exa'. "
            "The 2019 'exa' has no weights: use sigmoid_rank.",
        ),
        (
            {**good, "args_dict": [1]},
            f"{path} is not a 2019 checkpoint: its 'args_dict' or 'state_dict' is of another type.",
        ),
        (
            {**good, "state_dict": {"lstm.weight_ih_l0": torch.ones(2)}},
            f"{path} is not a sorter file: its tensors are not those of this gru-sum sorter: "
            "rnn.weight_hh_l0 is missing; rnn.bias_ih_l0 is missing; rnn.bias_hh_l0 is missing; "
            "rnn.weight_ih_l0_reverse is missing; rnn.weight_hh_l0_reverse is missing; "
            "rnn.bias_ih_l0_reverse is missing; rnn.bias_hh_l0_reverse is missing; "
            "rnn.weight_ih_l0 has shape (2,) instead of (12, 1). Get the file again, or train one.",
        ),
    ):
        torch.save(state, path)
        with pytest.raises(ValueError, match=whole(message)):
            import_sodeep2019(path)


def test_a_sorter_loaded_in_inference_mode_can_be_trained_through(tmp_path):
    save_sorter(tmp_path / "s.safetensors", build_sorter("set"))
    with torch.inference_mode():
        sorter = load_sorter(tmp_path / "s.safetensors")
    scores = torch.randn(2, 9, requires_grad=True, generator=torch.Generator().manual_seed(0))
    for ranker in (sorter, load_sorter(tmp_path / "s.safetensors")):
        (gradient,) = torch.autograd.grad(ranker(scores).square().sum(), scores)
        assert gradient.abs().sum() > 0
