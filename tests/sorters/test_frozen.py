"""Frozen weights inside frameworks: they survive, or the next forward pass says that they have not."""

import copy
import io
import logging
import pickle
import re
import warnings

import pytest
import torch
from torch import Tensor, nn

import sodeep
from sodeep import EmbeddingLoss, EmbeddingMemory, MAPLoss, RefreshedSorter, SmoothAPLoss, SpearmanLoss
from sodeep.sorters._frozen import MARKER

SHIPPED = ["set", "lstm", "cnn"]
LISTS = torch.randn(4, 100, generator=torch.Generator().manual_seed(0))


def whole(message: str) -> str:
    return f"^{re.escape(message)}$"


def changed(name: str, tensor: str, again: str) -> str:
    return whole(
        f"The weights of this frozen {name} sorter are not what they were when it was frozen ('{tensor}' for one): "
        "something has overwritten them, such as a framework that initialises or materialises whole models. "
        f"{again} after that step. To change weights on purpose, do it between unfreeze() and freeze()."
    )


def set_changed(tensor: str) -> str:
    return changed("set", tensor, "Load it again, load_sorter('set'),")


class Model(nn.Module):
    """What a user builds: a model that holds its losses."""

    def __init__(self, name: str = "set") -> None:
        super().__init__()
        self.head = nn.Linear(4, 100)
        self.loss = SpearmanLoss(sodeep.load_sorter(name))
        self.metric_loss = EmbeddingLoss(SmoothAPLoss(), memory=EmbeddingMemory(50, 4))


def ranks_are_those_of(name: str, model: nn.Module) -> None:
    expected = sodeep.load_sorter(name)(LISTS)
    torch.testing.assert_close(model.loss.rank_fn(LISTS), expected, rtol=0, atol=0)


# ---- transformers ----------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", SHIPPED)
def test_a_transformers_model_leaves_its_sorter_alone(name, tmp_path):
    transformers = pytest.importorskip("transformers")
    logging.getLogger("transformers").setLevel(logging.ERROR)

    class Config(transformers.PretrainedConfig):
        model_type = "tiny"

    class Backbone(transformers.PreTrainedModel):
        config_class = Config

        def __init__(self, config):
            super().__init__(config)
            self.head = nn.Linear(4, 100)
            self.add_losses()
            self.post_init()

        def add_losses(self):
            """A backbone has none."""

        def _init_weights(self, module):
            for weight in module.parameters(recurse=False):
                weight.data.normal_()
            if isinstance(module, nn.BatchNorm1d):
                module.reset_running_stats()

    class WithLosses(Backbone):
        def add_losses(self):
            self.loss = SpearmanLoss(sodeep.load_sorter(name))
            self.metric_loss = EmbeddingLoss(SmoothAPLoss(), memory=EmbeddingMemory(50, 4))

    ranks_are_those_of(name, WithLosses(Config()))
    Backbone(Config()).save_pretrained(tmp_path / "backbone")
    model = WithLosses.from_pretrained(tmp_path / "backbone").train()
    ranks_are_those_of(name, model)
    memory = model.metric_loss.memory
    memory.update(torch.ones(3, 4), [1, 2, 3])
    assert memory.get()[1].tolist() == [1, 2, 3]
    model.save_pretrained(tmp_path / "own")
    again = WithLosses.from_pretrained(tmp_path / "own")
    ranks_are_those_of(name, again)
    assert again.metric_loss.memory.get()[1].tolist() == [1, 2, 3]


def walk_like_transformers(model: nn.Module, loaded: dict[str, Tensor] | None = None) -> None:
    """What `from_pretrained` and `post_init` do, in few words: memory for what was not loaded, and initial values."""
    if loaded is not None:
        for key in list(model.state_dict()):
            holder, _, name = key.rpartition(".")
            module = model.get_submodule(holder)
            if key in loaded:
                value = loaded[key].clone()
                value = nn.Parameter(value) if name in module._parameters else value
                setattr(value, MARKER, True)
            else:
                old = getattr(module, name)
                value = torch.full_like(old, 77)
                value = nn.Parameter(value, old.requires_grad) if name in module._parameters else value
            setattr(module, name, value)

    def initialise(module: nn.Module) -> None:
        for child in module.children():
            initialise(child)
        if getattr(module, MARKER, False):
            return
        for weight in module.parameters(recurse=False):
            weight.data.normal_()
        for weight in module.parameters():
            if not getattr(weight, MARKER, False):
                nn.init.normal_(weight)

    initialise(model)


@pytest.mark.parametrize("name", SHIPPED)
def test_the_same_walk_without_transformers(name):
    model = Model(name)
    walk_like_transformers(model)
    ranks_are_those_of(name, model)
    walk_like_transformers(model, {"head.weight": torch.ones(100, 4)})
    ranks_are_those_of(name, model)


def test_a_refreshed_sorter_that_a_checkpoint_lacks_is_noticed():
    model = nn.ModuleDict({"ranker": RefreshedSorter(sodeep.load_sorter("set"))})
    walk_like_transformers(model, copy.deepcopy(model.state_dict()))
    model["ranker"](LISTS)
    walk_like_transformers(model, {})
    with pytest.raises(RuntimeError, match=changed("set", "stages.0.filter", "Build it again")):
        model["ranker"](LISTS)


# ---- other frameworks ------------------------------------------------------------------------------------------------


def reset_parameters(model: nn.Module) -> None:
    for module in model.modules():
        if callable(reset := getattr(module, "reset_parameters", None)):
            reset()


def initialise_by_name(model: nn.Module) -> None:
    for name, weight in model.named_parameters():
        (nn.init.ones_ if name.endswith("bias") else nn.init.normal_)(weight)


def write_data(model: nn.Module) -> None:
    for weight in model.parameters():
        weight.data.normal_()


def replace(model: nn.Module) -> None:
    for module in model.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(torch.zeros_like(weight)))


def materialise(model: nn.Module) -> None:
    """Memory without values, module by module."""
    for module in model.modules():
        for holder in (module._parameters, module._buffers):
            for name, tensor in holder.items():
                holder[name] = nn.Parameter(tensor * 0 + 3) if holder is module._parameters else tensor * 0 + 3


OVERWRITE = [reset_parameters, initialise_by_name, write_data, replace, materialise]


@pytest.mark.parametrize("overwrite", OVERWRITE)
@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("used", [False, True])
def test_overwritten_weights_are_noticed_by_the_next_forward(overwrite, name, used):
    model = Model(name)
    if used:
        model.loss(LISTS, LISTS)
    overwrite(model)
    model.train()
    assert model.loss.rank_fn.frozen
    for where in (None, torch.ones_like(LISTS, dtype=torch.bool)):
        with pytest.raises(RuntimeError, match=rf"^The weights of this frozen {name} sorter are not what they were "):
            model.loss(LISTS, LISTS, where)
    model.loss.rank_fn = sodeep.load_sorter(name)
    ranks_are_those_of(name, model)


def test_the_message_names_a_tensor_and_what_to_do():
    model = Model()
    model.loss(LISTS, LISTS)
    nn.init.ones_(model.loss.rank_fn.stages[1].condition[0].bias)  # counted by PyTorch: no train() is needed
    with pytest.raises(RuntimeError, match=set_changed("stages.1.condition.0.bias")):
        model.loss(LISTS, LISTS)
    sorter = sodeep.build_sorter("set").freeze()
    nn.init.ones_(sorter.stages[0].filter)
    for use in (sorter, copy.deepcopy(sorter), sorter.freeze(), MAPLoss(sorter).rank_fn):
        with pytest.raises(RuntimeError, match=changed("set", "stages.0.filter", "Build it again")):
            use(LISTS)


def test_not_a_number_is_noticed():
    sorter = sodeep.load_sorter("set")
    sorter.stages[0].filter.data.fill_(torch.nan)
    with pytest.raises(RuntimeError, match=set_changed("stages.0.filter")):
        sorter(LISTS)


@pytest.mark.parametrize("name", SHIPPED)
def test_to_empty_and_apply_leave_frozen_weights_alone(name):
    model = Model(name)
    model.apply(lambda module: [nn.init.zeros_(weight) for weight in module.parameters(recurse=False)])
    model.to_empty(device="cpu")
    ranks_are_those_of(name, model)


def test_weights_that_never_had_values_are_noticed():
    with torch.device("meta"):
        built, loaded = sodeep.build_sorter("set").freeze(), sodeep.load_sorter("set")
    assert not next(loaded.parameters()).is_meta
    built.to_empty(device="cpu")
    with pytest.raises(RuntimeError, match=changed("set", "stages.0.filter", "Build it again")):
        built(LISTS)
    built.load_state_dict(loaded.state_dict())
    torch.testing.assert_close(built(LISTS), loaded(LISTS), rtol=0, atol=0)
    loaded.to("meta").to_empty(device="cpu")
    for weight in loaded.parameters():
        weight.data.zero_()
    with pytest.raises(RuntimeError, match=set_changed("stages.0.filter")):
        loaded(LISTS)


def test_fully_sharded():
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    if not hasattr(fsdp, "fully_shard"):
        pytest.skip("this torch has no fully_shard")
    from torch import distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    class Step(Model):
        def forward(self, x: Tensor) -> Tensor:
            return self.loss(self.head(x), LISTS)

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model, x = Step(), torch.randn(4, 4)
        expected = model(x).detach()
        fsdp.fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        value = model(x)
        value.backward()
        torch.testing.assert_close(value.detach(), expected, rtol=0, atol=0)
        assert [key for key in model.state_dict() if "rank_fn" in key] == []
        del model, value
    finally:
        dist.destroy_process_group()


# ---- what is no change -----------------------------------------------------------------------------------------------


def saved_and_loaded(sorter: sodeep.Sorter) -> sodeep.Sorter:
    buffer = io.BytesIO()
    torch.save(sorter, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


def with_average_weights(sorter: sodeep.Sorter) -> sodeep.Sorter:
    average = torch.optim.swa_utils.AveragedModel(sorter)
    for _ in range(3):
        average.update_parameters(sorter)
    return average.module


def through_functional_call(sorter: sodeep.Sorter) -> sodeep.Sorter:
    weights = {name: 2 * weight for name, weight in sorter.named_parameters()}
    torch.func.functional_call(sorter, weights, (LISTS,))
    torch.func.vmap(sorter)(LISTS)
    torch.func.grad(lambda scores: sorter(scores).sum())(LISTS)
    return sorter


def made_in_inference_mode(sorter: sodeep.Sorter) -> sodeep.Sorter:
    with torch.inference_mode():
        other = copy.deepcopy(sorter)
        other(LISTS)
    return other


def rounded(sorter: sodeep.Sorter) -> sodeep.Sorter:
    """Mixed precision that casts weights itself."""
    other = copy.deepcopy(sorter)
    for weight in other.parameters():
        weight.data = weight.data.bfloat16().float()
    other(LISTS)
    return sorter


def trained_on(sorter: sodeep.Sorter) -> sodeep.Sorter:
    before = copy.deepcopy(sorter.state_dict())
    write_data(sorter.unfreeze())
    sorter.freeze()(LISTS)
    write_data(sorter.unfreeze())
    sorter.load_state_dict(before)
    return sorter.freeze()


def loaded_from_another(sorter: sodeep.Sorter) -> sodeep.Sorter:
    sorter.load_state_dict(sodeep.build_sorter("set").state_dict(), strict=True)
    sorter(LISTS)
    sorter.load_state_dict(sodeep.load_sorter("set").state_dict(), assign=True)
    return sorter


NO_CHANGE = {
    "double and float": lambda s: s.double().float(),
    "half": lambda s: s.half(),
    "bfloat16": lambda s: s.to(torch.bfloat16),
    "share_memory": lambda s: s.share_memory(),
    "deepcopy": copy.deepcopy,
    "pickle": lambda s: pickle.loads(pickle.dumps(s)),
    "torch.save": saved_and_loaded,
    "average weights": with_average_weights,
    "functional_call": through_functional_call,
    "inference mode": made_in_inference_mode,
    "rounded weights": rounded,
    "fine-tuned": trained_on,
    "load_state_dict": loaded_from_another,
    "requires_grad": lambda s: [w.requires_grad_() for w in s.parameters()] and s,
    "train and eval": lambda s: s.train().eval(),
    "refreshed": lambda s: RefreshedSorter(s).sorter,
}


@pytest.mark.parametrize("how", NO_CHANGE)
@pytest.mark.parametrize("used", [False, True])
def test_what_is_no_change_raises_nothing(how, used):
    sorter = sodeep.load_sorter("set")
    if used:
        sorter(LISTS)
    sorter = NO_CHANGE[how](sorter)
    for _ in range(2):
        torch.testing.assert_close(sorter(LISTS), sodeep.load_sorter("set")(LISTS), rtol=0, atol=1e-4)
    assert sorter.frozen
    assert not any(weight.requires_grad for weight in sorter.parameters())


def test_an_unfrozen_sorter_is_anybodys():
    sorter = sodeep.load_sorter("set").unfreeze()
    assert not any(MARKER in vars(x) for x in (*sorter.modules(), *sorter.parameters(), *sorter.buffers()))
    write_data(sorter)
    sorter(LISTS)


def test_a_second_look_costs_no_comparison(monkeypatch):
    """In a loop of forward passes the numbers of the weights are read once."""
    sorter = sodeep.load_sorter("set")
    sorter(LISTS)
    monkeypatch.setattr("sodeep.sorters._frozen._sample", lambda tensor: pytest.fail("the weights were read again"))
    for _ in range(3):
        sorter(LISTS)


# ---- checkpoints -----------------------------------------------------------------------------------------------------


def test_a_sorter_of_a_file_adds_nothing_to_a_checkpoint():
    for criterion in (Model().loss, SpearmanLoss(sodeep.straight_through(sodeep.load_sorter("lstm")))):
        assert criterion.state_dict() == {}
        criterion.load_state_dict({}, strict=True)
    sorter = sodeep.load_sorter("set")
    assert len(sorter.state_dict()) == 21
    with pytest.raises(RuntimeError, match="Missing key"):
        sorter.load_state_dict({}, strict=True)


def fine_tuned() -> sodeep.Sorter:
    sorter = sodeep.load_sorter("set").unfreeze()
    with torch.no_grad():
        sorter.stages[0].filter.mul_(1.5)
    return sorter


@pytest.mark.parametrize(
    "make",
    [
        lambda: SpearmanLoss(sodeep.build_sorter("set")),
        lambda: SpearmanLoss(fine_tuned()),
        lambda: nn.Sequential(fine_tuned()),
        lambda: SpearmanLoss(RefreshedSorter(sodeep.load_sorter("set"))),
    ],
)
def test_weights_that_are_in_no_file_are_saved(make):
    module = make()
    state = copy.deepcopy(module.state_dict())
    assert len(state) == 21
    other = make()
    with torch.no_grad():
        for weight in state.values():
            weight.mul_(1.01)
    other.load_state_dict(state, strict=True)
    for key, weight in other.state_dict().items():
        torch.testing.assert_close(weight, state[key], rtol=0, atol=0)
    if isinstance(module, SpearmanLoss):
        other(LISTS, LISTS)


@pytest.mark.parametrize(
    "rank_fn", [lambda: RefreshedSorter(sodeep.load_sorter("set")), lambda: sodeep.build_sorter("set")]
)
def test_a_sorter_that_is_saved_is_loaded_as_any_module(rank_fn):
    criterion = SpearmanLoss(rank_fn())
    with pytest.raises(RuntimeError, match="Missing key"):
        criterion.load_state_dict({}, strict=True)
    state = criterion.state_dict()
    with pytest.raises(RuntimeError, match="Unexpected key"):
        criterion.load_state_dict({**state, f"{next(iter(state))}.more": torch.zeros(3)}, strict=True)
    with pytest.raises(RuntimeError, match="size mismatch"):
        criterion.load_state_dict({name: torch.ones(1, 1) for name in state}, strict=True)


@pytest.mark.parametrize("fill", [torch.randn_like, lambda tensor: torch.full_like(tensor, torch.nan)])
def test_weights_that_do_not_rank_take_no_sorters_place(fill):
    """As a framework left them before they were saved with the model."""
    criterion = SpearmanLoss(sodeep.load_sorter("set"))
    expected = criterion.rank_fn(LISTS)
    ruined = {name: fill(tensor) for name, tensor in old_state(criterion.rank_fn).items()}
    module = nn.ModuleDict({"loss": criterion})
    with pytest.warns(
        UserWarning, match=r"^The checkpoint has weights for this frozen set sorter with which it does not"
    ):
        module.load_state_dict(ruined, strict=True)
    torch.testing.assert_close(criterion.rank_fn(LISTS), expected, rtol=0, atol=0)
    assert criterion.rank_fn.source == "set"
    assert module.state_dict() == {}


def old_state(rank_fn: nn.Module) -> dict[str, Tensor]:
    """As a criterion of an earlier version saved it."""
    return {f"loss.rank_fn.{name}": tensor.clone() for name, tensor in dict(named(rank_fn)).items()}


def named(module: nn.Module) -> list[tuple[str, Tensor]]:
    return [*module.named_parameters(), *module.named_buffers()]


RANK_FNS = {
    "laplace": lambda: sodeep.laplace_rank,
    "set": lambda: sodeep.load_sorter("set"),
    "lstm": lambda: sodeep.load_sorter("lstm"),
    "straight set": lambda: sodeep.straight_through(sodeep.load_sorter("set")),
    "straight laplace": lambda: sodeep.straight_through(sodeep.laplace_rank),
    "built": lambda: sodeep.build_sorter("gru-sum"),
}


@pytest.mark.parametrize("before", RANK_FNS)
@pytest.mark.parametrize("after", [name for name in RANK_FNS if name != "built"])
def test_a_checkpoint_loads_whatever_the_rank_function_was(before, after):
    was = RANK_FNS[before]()
    now = nn.ModuleDict({"head": nn.Linear(2, 2), "loss": SpearmanLoss(RANK_FNS[after]())})
    expected = now["loss"](LISTS, LISTS.flip(-1))
    old = old_state(was) if isinstance(was, nn.Module) else {}
    new = nn.ModuleDict({"loss": SpearmanLoss(was)}).state_dict()
    head = {f"head.{name}": tensor + 1 for name, tensor in now["head"].state_dict().items()}
    for state in (old, new):
        for assign in (False, True):
            keys = now.load_state_dict({**head, **state}, strict=True, assign=assign)
            assert keys == ([], [])
            torch.testing.assert_close(now["loss"](LISTS, LISTS.flip(-1)), expected, rtol=0, atol=0)
    torch.testing.assert_close(now["head"].weight, head["head.weight"], rtol=0, atol=0)


def test_an_old_checkpoint_gives_back_the_sorter_it_holds():
    criterion, other = SpearmanLoss(sodeep.load_sorter("set")), fine_tuned().freeze()
    module = nn.ModuleDict({"loss": criterion})
    module.load_state_dict(old_state(other), strict=True)
    torch.testing.assert_close(criterion.rank_fn(LISTS), other(LISTS), rtol=0, atol=0)
    assert criterion.rank_fn.source is None
    assert module.state_dict().keys() == old_state(other).keys()  # they are in no file, and so are saved


def test_what_is_wrong_in_a_checkpoint_is_still_an_error():
    module = nn.ModuleDict({"loss": SpearmanLoss(sodeep.laplace_rank)})
    with pytest.raises(RuntimeError, match="Unexpected key"):
        module.load_state_dict({"loss.other": torch.zeros(1)})
    own = nn.ModuleDict({"loss": SpearmanLoss(nn.Linear(100, 100))})
    with pytest.raises(RuntimeError, match="Missing key"):
        own.load_state_dict({})
    with pytest.raises(RuntimeError, match="size mismatch"):
        sodeep.load_sorter("lstm").load_state_dict({"head.bias": torch.zeros(3)}, strict=False)


def test_loading_what_does_not_fit_is_not_taken_for_a_change():
    sorter = sodeep.load_sorter("lstm")
    with pytest.raises(RuntimeError, match="size mismatch"):
        sorter.load_state_dict({"head.bias": torch.zeros(3)}, strict=False)
    sorter(LISTS)


def test_a_checkpoint_does_not_vouch_for_weights_it_lacks():
    module = nn.ModuleDict({"loss": SpearmanLoss(sodeep.load_sorter("set"))})
    write_data(module)
    module.load_state_dict({}, strict=True)
    with pytest.raises(RuntimeError, match=set_changed("stages.0.filter")):
        module["loss"](LISTS, LISTS)


def test_save_and_load_sorter_go_on(tmp_path):
    path = tmp_path / "mine.safetensors"
    for sorter in (sodeep.load_sorter("set"), fine_tuned(), fine_tuned().freeze()):
        again = sodeep.load_sorter(sodeep.save_sorter(path, sorter))
        torch.testing.assert_close(dict(again.state_dict()), dict(sorter.state_dict()), rtol=0, atol=0)
        assert again.source == str(path)


# ---- memories --------------------------------------------------------------------------------------------------------

EMPTY = (
    "The EmbeddingMemory is empty: its buffers came without values, as to_empty leaves them, and from_pretrained where "
    "the checkpoint has none."
)


@pytest.mark.parametrize("seen", [1, 17, 50, 2**40, -(2**62), 2**63 - 1])
@pytest.mark.parametrize("filled", [False, True])
def test_a_memory_without_values_is_empty(seen, filled):
    criterion = EmbeddingLoss(SmoothAPLoss(), memory=EmbeddingMemory(20, 2))
    memory, rows, labels = criterion.memory, torch.randn(4, 2), [0, 0, 1, 1]
    expected = criterion(rows, labels)
    if not filled:
        memory = EmbeddingMemory(20, 2)
    for name, buffer in list(memory.named_buffers()):
        setattr(memory, name, torch.full_like(buffer, seen))
    with pytest.warns(UserWarning, match=whole(EMPTY)):
        given = memory.get()
    assert [len(x) for x in given] == [0, 0]
    criterion.memory = memory
    with pytest.warns(UserWarning, match=whole(EMPTY)):
        torch.testing.assert_close(criterion(rows, labels), expected, rtol=0, atol=0)
    assert memory.get()[1].tolist() == labels


def test_a_memory_keeps_its_count_through_what_is_no_change():
    memory = EmbeddingMemory(3, 2)
    memory.update(torch.ones(5, 2), [1, 2, 3, 4, 5])
    old = {name: tensor for name, tensor in memory.state_dict().items() if name != "seal"}
    again = EmbeddingMemory(3, 2)
    again.load_state_dict(old, strict=True)  # of an earlier version
    for other in (memory, copy.deepcopy(memory).double().half(), pickle.loads(pickle.dumps(memory)), again):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert other.get()[1].tolist() == [3, 4, 5]
