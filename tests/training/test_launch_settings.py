"""What `launch` says before a process starts: shares of a pass, refusals by name, accelerate's settings, the plan, the key."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate.utils import DeepSpeedPlugin
from pydantic import ValidationError

from finery.errors import InputError, StageError
from finery.ranks import CONFIG_FILE
from finery.schemas.launch import Launch
from finery.schemas.sft import SftStage
from finery.schemas.stage import KINDS
from finery.training.accelerating import accelerate_config, check_packages, check_shared, write_config
from finery.training.collate import IGNORED, Feed
from finery.training.distributed import Ranks, Share
from finery.training.encode import Encoded

TWO = {"processes": 2}
FSDP = {"processes": 2, "strategy": "fsdp"}
DPO: dict[str, Any] = {
    "kind": "dpo", "model": "base", "data": "p", "max_steps": 4, "per_device_train_batch_size": 2,
    "learning_rate": 1e-3, "optim": "sgd", "save_steps": 50, "logging_steps": 1, "max_length": 64,
}  # fmt: skip


def _sft(**changes: Any) -> SftStage:
    given = {"kind": "sft", "model": "m", "data": "d", "max_steps": 1}
    return SftStage.model_validate(given | changes)


def _encoded(lengths: list[int]) -> Encoded:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    ids = np.arange(offsets[-1], dtype=np.int32)
    return Encoded(ids, ids.copy(), offsets, [str(i) for i in range(len(lengths))])


@pytest.mark.parametrize("processes", [2, 3])
def test_shares_of_a_pass_are_the_pass(processes: int) -> None:
    rows, replay = _encoded([3, 5, 2, 7, 4, 6, 3, 8, 2, 5, 4, 6, 2]), _encoded([2, 3, 4])

    def feed() -> Feed:
        return Feed(rows, 2, 7, replay=replay, replay_batch_size=1)

    whole, shares = feed(), [Share(feed(), Ranks(rank, processes, "ddp")) for rank in range(processes)]
    assert {len(share) for share in shares} == {-(-len(whole) // processes)}
    for epoch in (0, 1):
        for each in (whole, *shares):
            each.set_epoch(epoch)
        taken = [shares[place % processes][place // processes] for place in range(len(shares[0]) * processes)]
        for got, wanted in zip(taken, (whole[i] for i in range(len(whole))), strict=False):
            assert [part["input_ids"].tolist() for part in got["own"] + got["replay"]] == [
                part["input_ids"].tolist() for part in wanted["own"] + wanted["replay"]
            ]
        for spare in taken[len(whole) :]:
            assert all(bool((part["labels"] == IGNORED).all()) for part in spare["own"] + spare["replay"])
        assert len(taken) > len(whole)


def test_full_rounds_only_where_rows_are_given() -> None:
    share = Share(Feed(_encoded([2] * 11), 2, 7), Ranks(1, 2, "ddp"), rows=11)
    assert len(share) == 2
    with pytest.raises(InputError, match=r"3 processes of 4 rows need 12, and there are 11; give fewer processes"):
        Share(Feed(_encoded([2] * 11), 4, 7), Ranks(0, 3, "ddp"), rows=11)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"launch": {"processes": 1}}, "leave launch out"),
        ({"launch": {"processes": 1, "strategy": "fsdp"}}, "give at least 2"),
        ({"launch": TWO, "resources": {"gpus": 1}}, "each process trains on one GPU"),
        ({"resources": {"gpus": 2}}, r"2 GPUs need as many processes; add launch: \{processes: 2\}, or give 1"),
        ({"launch": TWO | {"strategy": "deepspeed_zero2"}}, r"needs GPUs \(resources.gpus: 2\); on a CPU take ddp or"),
        ({"launch": TWO | {"offload": "optimizer"}}, "optimizer is not for ddp, which takes none"),
        ({"launch": FSDP | {"offload": "optimizer"}}, "optimizer is not for fsdp, which takes none, parameters"),
        ({"launch": FSDP | {"offload": "parameters"}}, "a CPU's memory is the host's already"),
        ({"launch": FSDP, "optim": "adafactor"}, "adafactor does not work on weights or state that are shared out"),
        ({"launch": FSDP, "kl_weight": 0.1}, "needs the whole model in each process, which fsdp shares out"),
        ({"launch": FSDP, "lora": {}, "quantization": {}}, "needs the whole model in each process"),
        # each process of ZeRO-2 has the whole model, so the reason is another one
        (
            {"launch": TWO | {"strategy": "deepspeed_zero2"}, "resources": {"gpus": 2}, "kl_weight": 0.1},
            "was never tried with deepspeed_zero2",
        ),
        ({"launch": TWO | {"threads": 3}}, "Extra inputs are not permitted"),
    ],
)
def test_what_a_strategy_lacks_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        _sft(**changes)


def test_dpo_takes_given_pairs_and_ddp() -> None:
    dpo = KINDS["dpo"]
    with pytest.raises(ValidationError, match="dpo trains with ddp so far; fsdp is sft's and pretrain's"):
        dpo.model_validate(DPO | {"launch": FSDP})
    made = {name: value for name, value in DPO.items() if name != "data"}
    made |= {"prompts": "d", "rewards": [{"kind": "answer"}], "launch": TWO}
    with pytest.raises(ValidationError, match="is for pairs that are given"):
        dpo.model_validate(made)


def test_deepspeed_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from finery.training import accelerating

    monkeypatch.setattr(accelerating, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"deepspeed_zero3 needs the package deepspeed.*pip install deepspeed"):
        check_packages(Launch(processes=2, strategy="deepspeed_zero3"))
    check_packages(Launch(processes=2))


GPUS = {"resources": {"gpus": 2}}
ZERO = {
    # https://www.deepspeed.ai/docs/config-json/: the keys that finery's settings become, and their values
    ("deepspeed_zero2", "none"): {"stage": 2, "offload_optimizer": {"device": "none", "nvme_path": None}},
    ("deepspeed_zero2", "optimizer"): {"stage": 2, "offload_optimizer": {"device": "cpu", "nvme_path": None}},
    ("deepspeed_zero3", "optimizer"): {"stage": 3, "offload_param": {"device": "none", "nvme_path": None}},
    ("deepspeed_zero3", "parameters"): {"stage": 3, "offload_param": {"device": "cpu", "nvme_path": None}},
}
DOCUMENTED = {
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping",
    "zero_optimization", "steps_per_print", "bf16", "fp16", "zero_allow_untested_optimizer",
}  # fmt: skip


@pytest.fixture
def launched_environment() -> Callable[[Path], dict[str, str]]:
    """What accelerate's launcher makes of a settings file for its ranks."""
    from accelerate.commands import launch

    def read(path: Path) -> dict[str, str]:
        arguments = launch.launch_command_parser().parse_args(["--config_file", str(path), "script.py"])
        arguments, defaults, _ = launch._validate_launch_command(arguments)
        names = list(defaults.deepspeed_config)
        arguments.deepspeed_fields_from_accelerate_config = ",".join(names)
        return dict(launch.prepare_deepspeed_cmd_env(arguments)[1])

    return read


@pytest.mark.parametrize("strategy", ZERO)
def test_deepspeeds_settings_become_its_documented_keys(
    strategy: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launched_environment: Any
) -> None:
    launch = {"processes": 2, "strategy": strategy[0], "offload": strategy[1]}
    config = _sft(launch=launch, gradient_accumulation_steps=3, max_grad_norm=0.5, bf16=True, **GPUS)
    assert config.launch is not None
    write_config(accelerate_config(config.launch, config), tmp_path / CONFIG_FILE)
    for name, value in launched_environment(tmp_path / CONFIG_FILE).items():
        if name.startswith("ACCELERATE_"):
            monkeypatch.setenv(name, value)
    made = DeepSpeedPlugin().deepspeed_config
    assert made.keys() <= DOCUMENTED
    assert made["gradient_accumulation_steps"] == 3 and made["gradient_clipping"] == 0.5
    for name, value in ZERO[strategy].items():
        assert made["zero_optimization"][name] == value
    assert made["zero_optimization"]["offload_optimizer"]["device"] == ("none" if strategy[1] == "none" else "cpu")


def test_a_key_that_accelerate_does_not_know_is_refused(tmp_path: Path) -> None:
    settings = accelerate_config(Launch(processes=2, strategy="fsdp"), _sft(launch=FSDP))
    write_config(settings, tmp_path / CONFIG_FILE)
    for wrong in ({"fsdp_config": {"fsdp_shards": 2}}, {"procesess": 2}):
        with pytest.raises(InputError, match=r"fsdp_shards|procesess"):
            write_config(settings | wrong, tmp_path / CONFIG_FILE)


def test_a_model_that_would_train_alone_in_each_process_is_refused() -> None:
    """Where nothing joins the gradients, each process would end in weights of its own, and say nothing."""
    for strategy, wrapper in (("ddp", "DistributedDataParallel"), ("fsdp", "FSDPModule")):
        with pytest.raises(StageError, match=rf"a Linear and no {wrapper}, so that 2 processes would train a model"):
            check_shared(Ranks(0, 2, strategy), torch.nn.Linear(1, 1))
    check_shared(Ranks(), torch.nn.Linear(1, 1))


def test_the_plan_shows_processes_and_what_cores_they_share() -> None:
    assert _sft(launch=TWO).notes() == [
        "launch: 2 processes, ddp",
        "2 processes on 1 core; resources.cpus: 2 holds one for each",
    ]
    words, crowded = _sft(launch=TWO, lora={"r": 4}).notes()  # the method has them already
    assert "2 processes, ddp" in words and crowded.startswith("2 processes on 1 core")
    assert _sft(launch=FSDP, resources={"cpus": 2}).notes() == ["launch: 2 processes, fsdp"]
    zero = TWO | {"strategy": "deepspeed_zero3", "offload": "optimizer"}
    wanted = "launch: 2 processes, deepspeed_zero3, optimizer state in the host's memory"
    assert _sft(launch=zero, resources={"gpus": 2}).notes() == [wanted]


def test_ranks_are_in_the_key() -> None:
    one, two, other = _sft(), _sft(launch=TWO), _sft(launch=FSDP)
    dumped = [stage.model_dump(mode="json", exclude_defaults=True) for stage in (one, two, other)]
    assert "launch" not in dumped[0] and dumped[1]["launch"] != dumped[2]["launch"]
    assert "deepspeed" in _sft(launch=TWO | {"strategy": "deepspeed_zero3"}, **GPUS).packages_in_use()
    assert "deepspeed" not in two.packages_in_use()


def test_one_process_talks_to_nobody() -> None:
    alone = Ranks()
    values = torch.tensor([1.0, 2.0])
    assert alone.total(values) is values and alone.most(3, torch.device("cpu")) == 3
    assert alone.means({"loss": [1.0, 3.0]}) == {"loss": [1.0, 3.0]}
