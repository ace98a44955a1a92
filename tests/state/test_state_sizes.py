"""Files that claim huge sizes are refused by name, before memory is allocated.

Each case runs in a process of little memory, so that a claim that is allocated after all ends with another error.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from numpy.lib import format as npy
from torch import nn

import lockstep
from lockstep import PPOConfig
from lockstep.data import SampleBatch, SingleAgentEpisode, write_minari, write_rows
from lockstep.modules import (
    DefaultActorCriticModule,
    DefaultSACModule,
    ModelConfig,
    MultiRLModule,
    RecurrentActorCriticModule,
    RLModule,
    RLModuleSpec,
)
from lockstep.replay import ReplayBuffer
from lockstep.state import read_checkpoint, write_checkpoint
from lockstep_sb3 import PPO as DoorPPO

HUGE = 10**15
ROWS = SampleBatch(obs=np.ones((5, 3), np.float32), n=np.arange(5))
UNDER_A_LIMIT = """
import os, resource, sys
from pathlib import Path
import h5py, minari, pyarrow
import lockstep
from lockstep_sb3 import PPO
from lockstep.data import OfflineDataset, SampleBatch, read_minari
from lockstep.modules import MultiRLModule, RLModule
from lockstep.replay import ReplayBuffer
from lockstep.state import read_checkpoint

def read_folder_of_minari(path):
    os.environ["MINARI_DATASETS_PATH"] = str(Path(path).parent)
    read_minari(Path(path).name)

readers = {
    "npz": SampleBatch.from_npz,
    "parquet": SampleBatch.from_parquet,
    "rows": OfflineDataset,
    "buffer": ReplayBuffer.load,
    "checkpoint": read_checkpoint,
    "module": RLModule.from_checkpoint,
    "modules": MultiRLModule.from_checkpoint,
    "policy": lockstep.load_policy,
    "door": PPO.load,
    "minari": read_folder_of_minari,
}
pyarrow.set_cpu_count(1)
readers["parquet"](sys.argv[1])  # starts Arrow's thread
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
limit = used + (256 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
for line in sys.stdin:
    name, kind, path = line.split()
    try:
        readers[kind](path)
        said = "was read"
    except BaseException as error:
        said = f"{type(error).__name__}: {error}"
    print(name, said.replace(chr(10), " "), flush=True)
"""


def array_header(shape: tuple[int, ...]) -> bytes:
    """Return the header of an `.npy` file of float32."""
    text = io.BytesIO()
    npy.write_array_header_1_0(text, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return text.getvalue()


def npz_with_huge_header(path: Path) -> str:
    file = ROWS.to_npz(path / "batch")
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("array_9.npy", array_header((HUGE,)))
    return str(file)


def npz_bomb(path: Path) -> str:
    file = ROWS.to_npz(path / "batch")
    count = 1 << 26  # 256 MiB
    with zipfile.ZipFile(file, "a", zipfile.ZIP_DEFLATED) as archive, archive.open("array_9.npy", "w") as member:
        member.write(array_header((count,)))
        zeros = bytes(1 << 24)
        for _ in range(count * 4 // len(zeros)):
            member.write(zeros)
    return str(file)


def parquet_with(change: Callable[[dict], None]) -> Callable[[Path], str]:
    def make(path: Path) -> str:
        import pyarrow.parquet as parquet

        file = ROWS.to_parquet(path / "batch")
        table = parquet.read_table(file)
        note = json.loads(table.schema.metadata[b"lockstep"])
        change(note["columns"])
        parquet.write_table(table.replace_schema_metadata({b"lockstep": json.dumps(note).encode()}), file)
        return str(file)

    return make


def more_rows(columns: dict) -> None:
    columns["obs"]["key"]["shape"][0] = HUGE


def wider_rows(columns: dict) -> None:
    columns["obs"]["key"]["shape"][1] = HUGE


def rows_of_nothing(columns: dict) -> None:
    columns["obs"]["key"] |= {"how": "nothing", "shape": [HUGE, 3]}


def wide_text(columns: dict) -> None:
    columns["n"]["dtype"] = "<U400000000"


def parquet_bomb(path: Path) -> str:
    import pyarrow
    import pyarrow.parquet as parquet

    file = path / "batch.parquet"
    parquet.write_table(pyarrow.table({"a": pyarrow.array(np.zeros(1 << 25))}), file)  # 256 MiB of zeros
    return str(file)


def rows_with_huge_header(path: Path) -> str:
    file = write_rows(path / "rows", ROWS)
    content = file.read_bytes()
    assert content.count(b"(5,)") == 1
    file.write_bytes(content.replace(b"(5,), }" + b" " * 15, f"({HUGE},), }}".encode()))  # the blanks fill the header
    return str(file)


def buffer_of_huge_capacity(path: Path) -> str:
    buffer = ReplayBuffer(8)
    tree = read_checkpoint(buffer.save(path / "buffer"))[""]
    tree["replay"]["size"] = HUGE
    tree["size"][0] = HUGE
    return str(write_checkpoint(path / "buffer", {"": tree}))


def note_of_a_huge_array(path: Path) -> str:
    """Return a checkpoint in whose note an array of text, stored as 8 bytes, has a huge shape."""
    import hashlib

    from lockstep.state.checkpoint import manifest_checksum

    folder = write_checkpoint(path / "checkpoint", {"": {"names": {"a": np.array(["ab"])}}})
    file = folder / "names.safetensors"
    content = file.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    note = json.loads(header["__metadata__"]["lockstep"])
    note["a"]["shape"] = [HUGE]
    header["__metadata__"]["lockstep"] = json.dumps(note)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    content = len(text).to_bytes(8, "little") + text + content[8 + size :]
    file.write_bytes(content)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"]["names.safetensors"] = {
        "size": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    manifest["sha256"] = manifest_checksum(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return str(folder)


def small_module() -> RLModule:
    space = gym.spaces.Box(-1.0, 1.0, (3,))
    return RLModuleSpec(DefaultActorCriticModule, space, gym.spaces.Discrete(2)).build(seed=0)


def module_with(
    change: Callable[[dict], None], made_by: Callable[[], RLModule] = small_module
) -> Callable[[Path], str]:
    def make(path: Path) -> str:
        folder = Path(made_by().save_to_path(path / "module"))
        tree = read_checkpoint(folder)[""]
        change(tree["spec"])
        return str(write_checkpoint(folder, {"": tree}))

    return make


def huge_space(spec: dict) -> None:
    spec["observation_space"]["shape"] = [HUGE]
    spec["observation_space"]["low"], spec["observation_space"]["high"] = -1.0, 1.0


def huge_choice(spec: dict) -> None:
    spec["action_space"]["n"] = HUGE


def huge_network(spec: dict) -> None:
    spec["model_config"]["hiddens"] = [HUGE]


def large_network(spec: dict) -> None:
    spec["model_config"]["hiddens"] = [20_000, 20_000]


def critics() -> RLModule:
    space = gym.spaces.Box(-1.0, 1.0, (3,))
    return RLModuleSpec(DefaultSACModule, space, space, model_config={"critic_hiddens": [4096]}).build(seed=0)


def many_critics(spec: dict) -> None:
    spec["model_config"]["num_critics"] = HUGE


def transformer() -> RLModule:
    space = gym.spaces.Box(-1.0, 1.0, (3,))
    config = {"attention": {"size": 256, "num_heads": 1}}
    return RLModuleSpec(RecurrentActorCriticModule, space, gym.spaces.Discrete(2), model_config=config).build(seed=0)


def many_layers(spec: dict) -> None:
    """Claim layers each of which is small."""
    spec["model_config"]["attention"]["num_layers"] = HUGE


def huge_network_of_two(path: Path) -> str:
    folder = Path(MultiRLModule({"a": small_module(), "b": small_module()}).save_to_path(path / "modules"))
    trees = read_checkpoint(folder)
    huge_network(trees["b"]["spec"])
    return str(write_checkpoint(folder, trees))


def small_run(path: Path) -> Path:
    config = PPOConfig().environment("CartPole-v1").training(train_batch_size=64, minibatch_size=32, num_epochs=1)
    config.env_runners(num_envs_per_env_runner=2).evaluation(evaluation_interval=0)
    config.reporting(total_steps=64, steps_per_epoch=64).rl_module(model_config={"hiddens": [8]})
    return Path(lockstep.train(config, root=path).path)


def policy_of_a_huge_network(path: Path) -> str:
    folder = Path(lockstep.load_policy(small_run(path)).save_to_path(path / "policy"))
    trees = read_checkpoint(folder)
    huge_network(trees["policy"]["state"]["config"]["rl_module"])
    return str(write_checkpoint(folder, trees))


def model_of_the_door(path: Path) -> str:
    model = DoorPPO("MlpPolicy", "CartPole-v1")
    vars(model)["policy_kwargs"] = {"net_arch": [HUGE]}  # a model refuses the assignment
    model.save(path / "model")
    return str(path / "model.zip")


def minari_of_zeros(path: Path) -> str:
    import h5py

    episode = SingleAgentEpisode(observation_space=gym.spaces.Box(-1.0, 1.0, (3,)), action_space=gym.spaces.Discrete(2))
    episode.add_env_reset(np.zeros(3, np.float32))
    episode.add_env_step(np.zeros(3, np.float32), 1, 0.0, terminated=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(path))
        folder = write_minari("zeros-v0", [episode])
    with h5py.File(folder / "data" / "main_data.hdf5", "a") as file:
        group = file["episode_0"]
        del group["rewards"]
        group.create_dataset("rewards", (HUGE,), "f8", chunks=(1 << 20,), compression="gzip")
    return str(folder)


CASES: dict[str, tuple[str, Callable[[Path], str]]] = {
    "npz_header": ("npz", npz_with_huge_header),
    "npz_bomb": ("npz", npz_bomb),
    "parquet_rows": ("parquet", parquet_with(more_rows)),
    "parquet_width": ("parquet", parquet_with(wider_rows)),
    "parquet_nothing": ("parquet", parquet_with(rows_of_nothing)),
    "parquet_text": ("parquet", parquet_with(wide_text)),
    "parquet_bomb": ("parquet", parquet_bomb),
    "rows_header": ("rows", rows_with_huge_header),
    "buffer_capacity": ("buffer", buffer_of_huge_capacity),
    "tensor_note": ("checkpoint", note_of_a_huge_array),
    "module_space": ("module", module_with(huge_space)),
    "module_choice": ("module", module_with(huge_choice)),
    "module_network": ("module", module_with(huge_network)),
    "module_large": ("module", module_with(large_network)),
    "module_critics": ("module", module_with(many_critics, critics)),
    "module_layers": ("module", module_with(many_layers, transformer)),
    "modules": ("modules", huge_network_of_two),
    "policy": ("policy", policy_of_a_huge_network),
    "door": ("door", model_of_the_door),
    "minari": ("minari", minari_of_zeros),
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """What a process of little memory said of each file, and the file."""
    paths = {}
    for name, (_, make) in CASES.items():
        paths[name] = make(tmp_path_factory.mktemp(name))
    lines = "".join(f"{name} {CASES[name][0]} {path}\n" for name, path in paths.items())
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    small = ROWS.to_parquet(tmp_path_factory.mktemp("small") / "small")
    command = [sys.executable, "-c", UNDER_A_LIMIT, str(small)]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    return {name: (said[name], path) for name, path in paths.items()}


@pytest.mark.skipif(sys.platform != "linux", reason="the limit of memory is Linux's")
@pytest.mark.parametrize("name", CASES)
def test_a_huge_claim_is_refused_before_memory_is_taken(name, answers):
    said, path = answers[name]
    assert said.startswith(("ValueError", "CheckpointError", "ClaimedSizeError")), said
    assert path in said
    assert any(word in said for word in ("claim", "rows need little more")), said


def test_a_mostly_empty_buffer_loads_again(tmp_path):
    """Memory of rows that are not written is not used: such a buffer may be larger than the machine."""
    row_of_obs = 8 * 40
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    buffer = ReplayBuffer(machine * 7 // 10 // row_of_obs)  # for each of two columns
    row = {"obs": np.ones(40), "new_obs": np.ones(40), "actions": 1.0, "rewards": 1.0}
    row |= {"terminateds": False, "truncateds": False}
    buffer.add({name: np.asarray([value]) for name, value in row.items()})
    assert len(ReplayBuffer.load(buffer.save(tmp_path / "buffer"))) == 1


def test_networks_of_the_user_are_not_counted():
    """Only a file's networks are: nothing is between torch and a network that the user types."""
    seen = []

    class Watched(DefaultActorCriticModule):
        def __init__(self, *arguments, **options):
            seen.append(torch.overrides._get_current_function_mode())
            super().__init__(*arguments, **options)

    space = gym.spaces.Box(-1.0, 1.0, (3,))
    RLModuleSpec(Watched, space, gym.spaces.Discrete(2)).build(seed=0)
    assert seen == [None]


class CompiledEncoder(nn.Module):
    """An encoder that finds its width by a compiled pass."""

    def __init__(self, space: gym.Space) -> None:
        super().__init__()
        self.layer = nn.Linear(space.shape[0], 4)
        self.output_size = torch.compile(self.layer, backend="eager")(torch.zeros(1, space.shape[0])).shape[1]

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.layer(obs)


@pytest.mark.long
def test_an_encoder_that_compiles_is_built_from_a_file(tmp_path):
    space = gym.spaces.Box(-1.0, 1.0, (3,))
    spec = RLModuleSpec(
        DefaultActorCriticModule, space, gym.spaces.Discrete(2), model_config=ModelConfig(encoder=CompiledEncoder)
    )
    module = spec.build(seed=0)
    built = RLModule.from_checkpoint(module.save_to_path(tmp_path / "module"), trust=True)
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, built.state_dict()[name])
