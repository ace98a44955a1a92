"""Damaged files of every kind: an error that names the file, or no effect.

Each case writes a valid file of one kind, changes some bytes of it, and hands it to a public function that reads it.
What comes out is a named error, or to the bit what the valid file gives. Only where a file has no checksum may another
value come out; there, too, no error is a bare one of Python, NumPy, torch or another library.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from damage_tools import bits, damage
from parts import fast_if

import lockstep_sb3 as sb3
from lockstep import LearnerGroup, Policy, SampleBatch, get_config, load_policy
from lockstep.analysis import compare_runs, plot_runs
from lockstep.analysis.report import write_report
from lockstep.cli.arguments import read_config_file
from lockstep.data import OfflineDataset, SingleAgentEpisode, read_minari_batch, write_minari, write_rows
from lockstep.data.digests import digest_of_file
from lockstep.data.files.dataset import parquet_batches
from lockstep.diagnosis import doctor
from lockstep.eject.eject import file_text
from lockstep.export import load_export
from lockstep.modules import MultiRLModule, RLModule
from lockstep.recipes.training import find_settings
from lockstep.replay import ReplayBuffer
from lockstep.runs.run import prepare_resume, prepare_run
from lockstep.state import read_checkpoint, write_checkpoint
from lockstep.state.checkpoint import carried_checkpoint
from lockstep.tracking import JsonlLogger, RunFolder, TensorboardLogger, read_metrics
from lockstep.tuning.space import Range, read_space
from lockstep.tuning.study import Search
from lockstep_sb3.common.monitor import load_results
from lockstep_sb3.common.vec_env import DummyVecEnv, VecNormalize

NAMED = (ValueError, OSError)
"""Errors that users are promised; those of Lockstep (CheckpointError, RunFolderError, ...) are subclasses."""

OBSERVATIONS = np.random.default_rng(7).uniform(-1, 1, (4, 4)).astype(np.float32)


@dataclass(frozen=True)
class FileKind:
    """One kind of file: how a valid one is made, and what reads it."""

    write: Callable[[Path], Any]
    """Writes valid files into an empty folder."""
    read: Callable[[Path], Any]
    """Reads the files in a folder with a public function, and returns what they hold as a tree of plain values."""
    files: str = "**/*"
    """Pattern of the files that are damaged."""
    has_checksum: bool = True
    """Whether every byte that has a meaning is covered by a checksum: then no other value comes out in silence."""
    number: int = 24
    """Damaged files in the fast suite; fewer where reading takes long."""
    is_slow: bool = False
    """Whether writing and reading take so long that the fast suite leaves this kind to `make test-long`."""


# -- what is written ---


def small(algorithm: str = "ppo", **environment: Any) -> Any:
    """Return a configuration with networks of 8 units and two epochs of 64 steps."""
    config = get_config(algorithm)
    config.environment("CartPole-v1" if algorithm != "sac" else "Pendulum-v1", **environment)
    config.env_runners(num_envs_per_env_runner=2)
    config.rl_module(model_config={"hiddens": (8,), "critic_hiddens": (8,)})
    if config.is_off_policy:
        config.training(train_batch_size=8).env_runners(rollout_fragment_length=8)
        config.replay(capacity=96, learning_starts=32, update_per_step=0.25)
    else:
        config.training(train_batch_size=32, minibatch_size=16, num_epochs=1)
    config.evaluation(evaluation_duration=2, evaluation_num_envs=2)
    config.reporting(total_steps=128, steps_per_epoch=64).checkpointing(num_to_keep=1)
    return config.debugging(seed=3)


def write_run(folder: Path, algorithm: str = "ppo") -> None:
    config = small(algorithm, normalize_observations=True)
    if config.is_off_policy:
        config.replay(prioritized=True, n_step=2)
    run = prepare_run(config, folder)
    run.finish()
    run.folder.path.rename(folder / "run")


def write_replay_run(folder: Path) -> None:
    write_run(folder, "dqn")


def write_runs(folder: Path) -> None:
    """Two runs on either side of a comparison, one of which is damaged."""
    write_run(folder)
    for name in ("second", "third", "fourth"):
        shutil.copytree(folder / "run", folder / name)


def new_policy() -> Policy:
    return small(normalize_observations=True).build_policy()


def write_locked_run(folder: Path) -> None:
    """A run whose lock a process that was killed has left behind."""
    write_run(folder)
    lock = RunFolder.open(folder / "run").lock
    lock.take()
    content = lock.path.read_bytes()
    lock.release()
    lock.path.write_bytes(content)


def write_plain_config(folder: Path) -> None:
    """The config.json of a run whose options an ejected file can have."""
    (folder / "run").mkdir()
    config = json.loads(get_config("ppo").environment("CartPole-v1").to_json())
    info = {"algo": "ppo", "env": "CartPole-v1", "seed": 0, "config": config}
    (folder / "run" / "config.json").write_text(json.dumps(info))


def write_policy(folder: Path) -> None:
    new_policy().save_to_path(folder / "policy")


def write_pretrained(folder: Path) -> None:
    new_policy().save_pretrained(folder / "hub")


def write_learner(folder: Path) -> None:
    small().build_policy().learner_group.save_to_path(folder / "learner")


def write_export(folder: Path) -> None:
    new_policy().export(folder / "exported")


def write_torch_export(folder: Path) -> None:
    new_policy().export(folder / "exported", format="torch")


def write_modules(folder: Path) -> None:
    module = new_policy().learner_group.learner.module
    module["default_policy"].save_to_path(folder / "single")
    module.save_to_path(folder / "several")


def transitions(rows: int = 24) -> SampleBatch:
    """Return made-up transitions with a nested column and one of texts."""
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(rows + 1, 4)).astype(np.float32)
    ends = np.arange(rows) % 6 == 5
    return SampleBatch(
        obs=obs[:-1],
        actions=rng.integers(2, size=rows),
        rewards=rng.normal(size=rows).astype(np.float32),
        new_obs=obs[1:],
        terminateds=ends,
        truncateds=np.zeros(rows, bool),
        eps_id=np.arange(rows) // 6,
        seen={"place": obs[:-1, :1].copy(), "kind": np.arange(rows, dtype=np.uint8)},
        name=np.array([f"episode {row // 6}" for row in range(rows)]),
    )


def write_buffer(folder: Path) -> None:
    buffer = ReplayBuffer(24, buffer_num=2, seed=5, n_step=2, priorities={"alpha": 0.7, "beta": 0.4})
    batch = transitions(20)
    for row in range(20):
        step = {name: np.stack([batch[name][row]] * 2) for name in ("obs", "actions", "rewards", "new_obs")}
        ends = {name: np.stack([batch[name][row]] * 2) for name in ("terminateds", "truncateds")}
        buffer.add({**step, **ends})
    buffer.save(folder / "buffer")


def write_npz(folder: Path) -> None:
    batch = transitions()
    batch["infos"] = [{"step": step, "from": (1, None)} for step in range(len(batch))]
    batch.to_npz(folder / "data.npz")


def write_parquet(folder: Path) -> None:
    batch = transitions()
    batch["infos"] = [{"step": step} for step in range(len(batch))]
    batch.to_parquet(folder / "data.parquet", row_group_size=10)


def write_tree(folder: Path) -> None:
    """A checkpoint with every kind of value, a nested folder, and a checkpoint that it carries."""
    rng = np.random.default_rng(1)
    tree = {
        "arrays": {"a": rng.normal(size=(3, 4)), "b": np.arange(5, dtype=np.int16)},
        "mixed": {"tuple": (1, 2.5, None, "text"), 3: np.float32(0.5), "inner": {"array": np.ones(3, np.complex64)}},
    }
    write_checkpoint(folder / "carried", {"": {"weights": {"w": rng.normal(size=6)}}})
    carried = {"best": folder / "carried"}
    write_checkpoint(
        folder / "checkpoint", {"": tree, "inner/deep": tree}, metadata={"note": [1, "two"]}, carried=carried
    )
    shutil.rmtree(folder / "carried")


def write_door(folder: Path) -> None:
    normalised = VecNormalize(door_env())
    model = sb3.PPO("MlpPolicy", normalised, seed=1, n_steps=16, batch_size=16, policy_kwargs={"net_arch": [8]})
    model.save(folder / "ppo.zip")
    normalised.save(folder / "statistics.json")


def door_env() -> Any:
    return DummyVecEnv([lambda: gym.make("CartPole-v1")] * 2)


def write_monitor(folder: Path) -> None:
    rows = "".join(f"{number * 1.5},{number + 10},{number * 0.25}\n" for number in range(6))
    (folder / "0.monitor.csv").write_text('#{"t_start": 1.0, "env_id": "CartPole-v1"}\nr,l,t\n' + rows)


def write_digest(folder: Path) -> None:
    (folder / "data.npy").write_bytes(bytes(100))
    digest_of_file(folder / "data.npy")


def write_data_set(folder: Path) -> None:
    rng = np.random.default_rng(3)
    box = gym.spaces.Box(-1, 1, (2,), np.float32)
    episodes = [
        SingleAgentEpisode(
            f"e{number}",
            observations=rng.uniform(-1, 1, (5, 2)).astype(np.float32),
            observation_space=box,
            actions=rng.integers(3, size=4),
            action_space=gym.spaces.Discrete(3),
            rewards=rng.random(4).astype(np.float32),
            terminated=True,
        )
        for number in range(2)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(folder))
        write_minari("own/small-v0", episodes)


def write_tensorboard(folder: Path) -> None:
    logger = TensorboardLogger(folder)
    for step in range(5):
        logger.write("env_step", step, {"train/value": step * 0.5})
    logger.record_save(1, 64, 2, folder)
    logger.finalize()


SPACE = {"training.lr": Range(1e-4, 1e-1, log=True), "training.num_epochs": Range(choices=(1, 2))}


def search_in(folder: Path) -> Search:
    return Search("small", f"sqlite:///{folder / 'study.db'}", folder, small(), SPACE)


def write_study(folder: Path) -> None:
    """The database of a search with one trial that has ended."""
    search = search_in(folder)
    search.open()
    study = search.study()
    trial = study.ask()
    for path, each in SPACE.items():
        each.suggest(trial, path)
    trial.report(2.0, 64)
    study.tell(trial, 3.0)
    shutil.copy(folder / "study.db", folder / "copy.db")  # the connections of this process stay with the first
    os.replace(folder / "copy.db", folder / "study.db")


# -- what reads it ---


def read_policy(policy: Policy) -> Any:
    return {"state": policy.get_state(), "actions": policy.compute_actions(OBSERVATIONS)}


def resumed(folder: Path) -> Any:
    """Return what a run goes on with: its counters, policy and replay buffer."""
    run = prepare_resume(folder / "run", total_steps=192).build()
    trainer = run.trainer
    try:
        replay = {} if not isinstance(trainer.buffer, ReplayBuffer) else trainer.buffer.get_state()
        counters = [trainer.epoch, trainer.env_step, trainer.gradient_step, trainer.best_score]
        best = read_policy(load_policy(folder / "run"))
        return {"counters": counters, "policy": trainer.policy.get_state(), "replay": replay, "best": best}
    finally:
        trainer.close()
        run.folder.lock.release()


def prepared(folder: Path) -> Any:
    """Return how a run goes on by its config.json, and what the folder says."""
    run = RunFolder.open(folder / "run")
    resumption = prepare_resume(folder / "run", total_steps=192)
    return {
        "settings": run.settings(),
        "task": [run.algo, run.env, run.seed, run.task, run.is_offline],
        "config": resumption.config.to_dict(),
        "where": [resumption.step, resumption.is_finished, list(resumption.sources)],
        "ended": run.ended_at(),
    }


def examined(folder: Path) -> Any:
    return doctor(folder / "run", play=False).lines()


def compared(folder: Path) -> Any:
    comparison = compare_runs(
        [folder / "run", folder / "second"], [folder / "third", folder / "fourth"], num_resamples=10
    )
    return comparison.markdown()


def reported(folder: Path) -> Any:
    write_report([folder / "run"], folder / "report.html")
    return None


def drawn(folder: Path) -> Any:
    plot_runs([folder / "run"], folder / "picture.svg")
    return None


def ejected(folder: Path) -> Any:
    """Return the file that `lockstep eject --config run/config.json` writes."""
    path = folder / "run" / "config.json"
    settings = find_settings("ppo", "CartPole-v1", recipe=False, file=(str(path), read_config_file(path)))
    return file_text(settings.config)


def logged(folder: Path) -> Any:
    logger = JsonlLogger(folder / "run" / "metrics.jsonl", resume=True)
    found = [logger.last_checkpoint(), logger.restore_data(), logger.restore_logged_data(logger.path)]
    logger.finalize()
    return found


def read_modules(folder: Path) -> Any:
    modules = {
        "single": RLModule.from_checkpoint(folder / "single"),
        **MultiRLModule.from_checkpoint(folder / "several"),
    }
    return {name: [module.get_state(), module.spec().to_dict()] for name, module in modules.items()}


def read_tree(folder: Path) -> Any:
    path = folder / "checkpoint"
    carried = carried_checkpoint(path, "best")
    return [read_checkpoint(path), carried and read_checkpoint(carried), read_checkpoint(path / "inner" / "deep")]


def read_export(folder: Path) -> Any:
    exported = load_export(folder / "exported")
    return [exported.compute_actions(OBSERVATIONS), exported.card]


def read_door(folder: Path) -> Any:
    model = sb3.PPO.load(folder / "ppo.zip", env=door_env())
    return [model.lockstep.get_state(), model.num_timesteps, model.learning_rate, model.n_steps]


def read_statistics(folder: Path) -> Any:
    found = VecNormalize.load(folder / "statistics.json", door_env())
    return [found.obs_rms.get_state(), found.ret_rms.get_state(), found.epsilon]


def read_data_set(folder: Path) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(folder))
        return read_minari_batch("own/small-v0")


def read_study(folder: Path) -> Any:
    search = search_in(folder)
    search.open()
    rows = search.rows()
    return [rows, search.config_of(rows[0].number, rows[0].values).to_dict()]


def read_events(folder: Path) -> Any:
    logger = TensorboardLogger(folder)
    return [logger.restore_data(), logger.restore_logged_data(folder)]


def options_in(path: Path) -> Any:
    """Return the configuration that `--config` gives."""
    return find_settings("ppo", "CartPole-v1", recipe=False, file=(str(path), read_config_file(path))).config.to_dict()


CHECKPOINTS_OF_A_RUN = "run/checkpoints/**/*"
KINDS: dict[str, FileKind] = {
    # -- with a checksum: SHA-256 in the manifest of a checkpoint, or in the card of an export; CRC-32 in a zip
    "checkpoint": FileKind(write_tree, read_tree, number=60),
    "checkpoint of a run": FileKind(write_run, resumed, CHECKPOINTS_OF_A_RUN, number=6),
    "replay of a run": FileKind(write_replay_run, resumed, "run/checkpoints/**/replay/**/*", number=12),
    "best policy of a run": FileKind(
        write_run, lambda folder: read_policy(load_policy(folder / "run")), "run/best/**/*", number=12
    ),
    "policy": FileKind(
        write_policy,
        lambda folder: read_policy(load_policy(folder / "policy")),
    ),
    "module": FileKind(write_modules, read_modules),
    "learner": FileKind(
        write_learner,
        lambda folder: LearnerGroup.from_checkpoint(folder / "learner").get_state(),
    ),
    "replay buffer": FileKind(write_buffer, lambda folder: ReplayBuffer.load(folder / "buffer").get_state()),
    "pretrained": FileKind(
        write_pretrained,
        lambda folder: read_policy(Policy.from_pretrained(folder / "hub")),
    ),
    "npz": FileKind(write_npz, lambda folder: SampleBatch.from_npz(folder / "data.npz")),
    "export": FileKind(write_export, read_export, "exported/policy.onnx", number=12, is_slow=True),
    "policy of an export": FileKind(
        write_export,
        lambda folder: read_policy(load_policy(folder / "exported")),
        "exported/checkpoint/**/*",
        number=12,
    ),
    "torch export": FileKind(
        # without the word: what torch would evaluate is not even looked at
        write_torch_export,
        read_export,
        "exported/policy.pt2",
        number=12,
        is_slow=True,
    ),
    "archive of the door": FileKind(write_door, read_door, "ppo.zip"),
    # -- without one: text that people edit, and formats of others
    "config.json of a run": FileKind(write_run, prepared, "run/config.json", has_checksum=False, number=30),
    "config.json to eject": FileKind(write_plain_config, ejected, "run/config.json", has_checksum=False, is_slow=True),
    "config.json to compare": FileKind(
        write_runs, compared, "run/config.json", has_checksum=False, number=8, is_slow=True
    ),
    "config.json to examine": FileKind(write_run, examined, "run/config.json", has_checksum=False, number=12),
    "records of a run": FileKind(
        write_run, lambda folder: read_metrics(folder / "run"), "run/metrics.jsonl", has_checksum=False
    ),
    "records to go on with": FileKind(
        write_run, resumed, "run/metrics.jsonl", has_checksum=False, number=5, is_slow=True
    ),
    "records to log": FileKind(write_run, logged, "run/metrics.jsonl", has_checksum=False),
    "records to compare": FileKind(write_runs, compared, "run/metrics.jsonl", has_checksum=False, number=8),
    "records to examine": FileKind(write_run, examined, "run/metrics.jsonl", has_checksum=False, number=12),
    "summary of a run": FileKind(
        write_run, lambda folder: RunFolder.open(folder / "run").read_summary(), "run/summary.json", False
    ),
    "summary to go on with": FileKind(
        write_run, prepared, "run/summary.json", has_checksum=False, number=10, is_slow=True
    ),
    "files to report": FileKind(write_run, reported, "run/*.json*", has_checksum=False, number=12),
    "files to plot": FileKind(write_run, drawn, "run/*.json*", has_checksum=False, number=3, is_slow=True),
    "lock of a run": FileKind(write_locked_run, resumed, "run/lock.json", has_checksum=False, number=4, is_slow=True),
    "rows": FileKind(
        lambda folder: write_rows(folder / "data.npy", transitions()),
        lambda folder: OfflineDataset(folder / "data.npy")[:],
        "data.npy",
        has_checksum=False,
        number=60,
    ),
    "digest of rows": FileKind(
        write_digest, lambda folder: digest_of_file(folder / "data.npy"), ".data.npy.digest.json", has_checksum=False
    ),
    # pages have CRC-32, their headers and the file's footer have none
    "Parquet": FileKind(
        write_parquet,
        lambda folder: SampleBatch.from_parquet(folder / "data.parquet"),
        has_checksum=False,
        number=60,
    ),
    "Parquet in batches": FileKind(
        write_parquet,
        lambda folder: list(parquet_batches(folder / "data.parquet", 10)),
        has_checksum=False,
    ),
    "Minari": FileKind(write_data_set, read_data_set, has_checksum=False),
    "card of an export": FileKind(
        write_export,
        read_export,
        "exported/card.json",
        has_checksum=False,
    ),
    "statistics of the door": FileKind(write_door, read_statistics, "statistics.json", has_checksum=False),
    "episodes of the door": FileKind(
        write_monitor, lambda folder: load_results(folder).to_dict("list"), has_checksum=False
    ),
    "study": FileKind(write_study, read_study, "study.db", has_checksum=False, number=5, is_slow=True),
    "space of a search": FileKind(
        lambda folder: (folder / "space.json").write_text(
            json.dumps({"training.lr": {"low": 1e-5, "high": 0.01, "log": True}, "training.gamma": {"choices": [0.9]}})
        ),
        lambda folder: read_space(folder / "space.json"),
        has_checksum=False,
    ),
    "configuration": FileKind(
        lambda folder: (folder / "options.json").write_text(small().to_json()),
        lambda folder: options_in(folder / "options.json"),
        has_checksum=False,
        number=60,
    ),
    "events of TensorBoard": FileKind(write_tensorboard, read_events, has_checksum=False),
}


# -- the hunt ---


class ValidFiles:
    """Valid files, which are written once, and copies of them to damage."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.work = root / "work"
        """Folder of the copy; always the same, as some files hold paths."""
        self._folders: dict[Callable[[Path], Any], Path] = {}
        self._values: dict[str, bytes] = {}

    def copy(self, kind: FileKind) -> Path:
        """Return a folder with fresh copies of the valid files of a kind."""
        if kind.write not in self._folders:
            folder = self.root / f"valid_{len(self._folders)}"
            folder.mkdir()
            kind.write(folder)
            self._folders[kind.write] = folder
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(self._folders[kind.write], self.work)
        return self.work

    def value(self, name: str) -> bytes:
        """Return what the valid files of a kind hold, as bytes."""
        if name not in self._values:
            first, second = (bits(quietly_read(KINDS[name], self.copy(KINDS[name]))) for _ in range(2))
            assert first == second, "two readings of the same files differ, so that damage cannot be seen"
            self._values[name] = first
        return self._values[name]


@pytest.fixture(scope="module")
def valid_files(tmp_path_factory: pytest.TempPathFactory) -> ValidFiles:
    return ValidFiles(tmp_path_factory.mktemp("files"))


def quietly_read(kind: FileKind, folder: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return kind.read(folder)


def fault_of(name: str, valid_files: ValidFiles, rng: np.random.Generator) -> str:
    """Damage a file of a kind and read it; return what is wrong with the outcome, or "" where nothing is."""
    kind, value = KINDS[name], valid_files.value(name)
    folder = valid_files.copy(kind)
    files = sorted(file for file in folder.glob(kind.files) if file.is_file())
    file = files[rng.integers(len(files))]
    done = damage(file, rng)
    if not done:
        return ""
    what = f"{file.relative_to(folder)}: {done}"
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            found = bits(kind.read(folder))
    except Exception as error:
        if isinstance(error, NAMED) and (str(folder) in str(error) or file.name in str(error)):
            return ""
        return f"{what}\n    {type(error).__name__}: {str(error)[:300]}"
    if kind.has_checksum and found != value and not any(str(folder) in str(each.message) for each in warned):
        return f"{what}\n    another value in silence"
    return ""


def faults_of(name: str, valid_files: ValidFiles, seed: int, number: int) -> list[str]:
    rng = np.random.default_rng([seed, *name.encode()])
    faults = (fault_of(name, valid_files, rng) for _ in range(number))
    return [fault for fault in faults if fault]


@pytest.mark.parametrize("name", fast_if(lambda name: not KINDS[name].is_slow, KINDS))
def test_a_damaged_file_is_named_or_has_no_effect(name: str, valid_files: ValidFiles) -> None:
    faults = faults_of(name, valid_files, 0, KINDS[name].number)
    assert not faults, "\n".join(faults)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(1, 11))
@pytest.mark.parametrize("name", KINDS)
def test_many_damaged_files_are_named_or_have_no_effect(name: str, seed: int, valid_files: ValidFiles) -> None:
    faults = faults_of(name, valid_files, seed, 4 * KINDS[name].number)
    assert not faults, "\n".join(faults)
