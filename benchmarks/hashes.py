"""Hashes of what the library computes, to show that a change of its shape changes no number.

`python benchmarks/hashes.py -o before.json` in one checkout, the same with `after.json` in another, on one machine, and
`python benchmarks/hashes.py --compare before.json after.json`. Hashed are: the weights of each algorithm after about
twenty updates (eager, compiled, with two learners), runs that were resumed, batches and episodes after a list of
operations. Only public names are used, so that it runs with older revisions: `PYTHONPATH=CHECKOUT`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

BOX_ROWS = 512
ONLINE = {
    "ppo": "CartPole-v1",
    "a2c": "CartPole-v1",
    "impala": "CartPole-v1",
    "appo": "CartPole-v1",
    "trpo": "CartPole-v1",
    "pqn": "CartPole-v1",
    "dqn": "CartPole-v1",
    "c51": "CartPole-v1",
    "qrdqn": "CartPole-v1",
    "iqn": "CartPole-v1",
    "rainbow": "CartPole-v1",
    "sac": "Pendulum-v1",
    "td3": "Pendulum-v1",
}
OFFLINE = {"bc": False, "marwil": False, "iql": False, "cql": False, "td3_bc": True}
"""whether its actions are continuous"""


def hash_of(value: Any) -> str:
    """SHA-256 of arrays, tensors, mappings and sequences of them, with names, shapes and dtypes."""
    digest = hashlib.sha256()

    def add(name: str, item: Any) -> None:
        if isinstance(item, Mapping):
            for key in sorted(item, key=str):
                add(f"{name}/{key}", item[key])
        elif isinstance(item, list | tuple):
            for position, each in enumerate(item):
                add(f"{name}/{position}", each)
        else:
            array = np.ascontiguousarray(item.detach().cpu().numpy() if hasattr(item, "detach") else np.asarray(item))
            digest.update(f"{name} {array.shape} {array.dtype}".encode())
            digest.update(str(array.tolist()).encode() if array.dtype == object else array.tobytes())

    add("", value)
    return digest.hexdigest()[:16]


def offline_rows(continuous: bool) -> Any:
    """Made-up transitions of episodes of 16 steps."""
    from lockstep import SampleBatch

    rng = np.random.default_rng(5)
    rows = BOX_ROWS
    obs = rng.normal(size=(rows + 1, 3)).astype(np.float32)
    actions = rng.uniform(-1, 1, (rows, 2)).astype(np.float32) if continuous else rng.integers(3, size=rows)
    ends = np.arange(rows) % 16 == 15
    return SampleBatch(
        obs=obs[:-1],
        actions=actions,
        rewards=rng.normal(size=rows).astype(np.float32),
        new_obs=obs[1:],
        terminateds=ends,
        truncateds=np.zeros(rows, bool),
        eps_id=np.arange(rows) // 16,
    )


def config_of(algorithm: str, *, compiled: bool = False, num_learners: int = 0) -> Any:
    """A small run of about twenty updates."""
    from gymnasium import spaces

    from lockstep import get_config

    config = get_config(algorithm)
    config.framework(dtype="float32" if compiled or not num_learners else "float64", compile=compiled, compile_after=0)
    config.rl_module(model_config={"hiddens": (16, 16)}).debugging(seed=3).evaluation(evaluation_interval=0)
    config.learners(num_learners=num_learners, num_cpus_per_learner=0)
    if algorithm in OFFLINE:
        box = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        actions = spaces.Box(-1.0, 1.0, (2,), np.float32) if OFFLINE[algorithm] else spaces.Discrete(3)
        config.environment(observation_space=box, action_space=actions)
        config.offline_data(input_=offline_rows(OFFLINE[algorithm]))
        return config.training(train_batch_size=32).reporting(total_steps=20)
    config.environment(ONLINE[algorithm])
    if algorithm in ("dqn", "c51", "qrdqn", "iqn", "rainbow", "sac", "td3"):
        config.training(train_batch_size=32).replay(capacity=1_000, learning_starts=32, update_per_step=0.25)
        return config.env_runners(num_envs_per_env_runner=4).reporting(total_steps=32 + 4 * 20)
    config.training(train_batch_size=64)
    if algorithm in ("ppo", "pqn"):
        config.training(minibatch_size=32, num_epochs=2)
    return config.env_runners(num_envs_per_env_runner=4).reporting(total_steps=64 * 20)


def run_of(algorithm: str, **options: Any) -> str:
    """The hash of the weights at the end."""
    trainer = config_of(algorithm, **options).build_trainer()
    trainer.run()
    group = trainer.policy.learner_group
    weights = group.get_weights()
    if group.is_remote:
        group.shutdown()
    return hash_of(weights)


def resumed_run(algorithm: str) -> str:
    """Half a run in a folder, then the rest from its checkpoint."""
    from lockstep.trainer.run import prepare_run, resume

    config = config_of(algorithm)
    total = config.total_steps
    config.reporting(steps_per_epoch=max(1, total // 4))
    with tempfile.TemporaryDirectory() as root:
        half = prepare_run(config.copy().reporting(total_steps=total // 2), root).finish()
        whole = resume(half.path, total_steps=total)
        return hash_of(whole.policy.learner_group.get_weights())


def operations_on_batches() -> dict[str, Any]:
    """A list of operations on `SampleBatch`, by name."""
    from lockstep import SampleBatch
    from lockstep.data import concat_samples

    batch = offline_rows(False)
    sequences = SampleBatch(obs=np.arange(20.0).reshape(10, 2), seq_lens=np.array([3, 5, 2]), actions=np.arange(10))
    return {
        "concat": concat_samples([batch[:100], batch[300:]]),
        "shuffle": batch.copy().shuffle(np.random.default_rng(1)),
        "split": [dict(part) for part in batch.split_by_episode()],
        "slices": [dict(part) for part in batch.timeslices(size=100)],
        "steps": batch[10:200:7],
        "padded": dict(sequences.copy().right_zero_pad(6)),
        "unpadded": dict(sequences.copy().right_zero_pad(6).unpad()),
        "slice": dict(sequences.slice(3, 8)),
    }


def operations_on_episodes() -> dict[str, Any]:
    """A list of operations on `SingleAgentEpisode` and `MultiAgentEpisode`, by name."""
    from lockstep.data import MultiAgentEpisode, SingleAgentEpisode

    rng = np.random.default_rng(2)
    episode = SingleAgentEpisode(id_="a")
    episode.add_env_reset(rng.normal(size=3).astype(np.float32), {"start": 1})
    for step in range(30):
        obs, extra = rng.normal(size=3).astype(np.float32), {"action_logp": rng.normal()}
        episode.add_env_step(obs, int(rng.integers(3)), float(step), {"t": step}, extra_model_outputs=extra)
    successor = episode.cut(len_lookback_buffer=4)
    successor.add_env_step(np.ones(3, np.float32), 1, 2.0, extra_model_outputs={"action_logp": 0.5}, terminated=True)
    several = MultiAgentEpisode(id_="m")
    several.add_env_reset({"x": np.zeros(2), "y": np.ones(2)})
    observing = np.random.default_rng(3)
    for step in range(10):
        acting = ["x"] if step % 3 else ["x", "y"]
        several.add_env_step(
            {agent: observing.normal(size=2) for agent in (["x"] if (step + 1) % 3 else ["x", "y"])},
            dict.fromkeys(acting, step),
            {agent: float(step) for agent in ("x", "y")},
        )
    parts = several.get_sample_batch().policy_batches
    return {
        "batch": _columns(episode.to_numpy().get_sample_batch()),
        "slice": _columns(episode[5:12].get_sample_batch()),
        "lookback": successor.get_observations([-1, -2], neg_index_as_lookback=True),
        "actions": successor.get_actions(slice(-3, None), fill=0),
        "joined": _columns(episode.concat_episode(successor) or episode.get_sample_batch()),
        "several": {module_id: _columns(part) for module_id, part in parts.items()},
        "cut": [own.get_rewards() for own in several.cut(len_lookback_buffer=2).agent_episodes.values()],
    }


def _columns(batch: Any) -> dict[str, Any]:
    return {name: column for name, column in batch.items() if name not in ("infos", "eps_id", "agent_id", "module_id")}


def cases(compiled: bool, cluster: bool) -> Iterator[tuple[str, Callable[[], str]]]:
    """`(name, function that returns the hash)`."""
    for make in (operations_on_batches, operations_on_episodes):
        for name in make():
            yield f"{make.__name__}/{name}", lambda make=make, name=name: hash_of(make()[name])
    for algorithm in (*ONLINE, *OFFLINE):
        yield f"eager/{algorithm}", lambda a=algorithm: run_of(a)
    for algorithm in ("ppo", "dqn", "sac", "td3"):
        yield f"resumed/{algorithm}", lambda a=algorithm: resumed_run(a)
    for algorithm in (*ONLINE, *OFFLINE) if compiled else ():
        yield f"compiled/{algorithm}", lambda a=algorithm: run_of(a, compiled=True)
    for algorithm in (*ONLINE, *OFFLINE) if cluster else ():
        yield f"two learners/{algorithm}", lambda a=algorithm: run_of(a, num_learners=2)


def compare(before: Path, after: Path) -> int:
    """Prints what differs; returns the number of differences."""
    old, new = json.loads(before.read_text()), json.loads(after.read_text())
    differing = [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
    for name in differing:
        print(f"{name}: {old.get(name)} -> {new.get(name)}")
    print(f"{len(differing)} of {len({*old, *new})} differ")
    return len(differing)


def main() -> None:
    """Writes the hashes, or compares two files of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=Path("hashes.json"))
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("BEFORE", "AFTER"))
    parser.add_argument("--no-compiled", action="store_true", help="leave out compiled runs (minutes)")
    parser.add_argument("--no-cluster", action="store_true", help="leave out runs with two learners on Ray")
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    arguments = parser.parse_args()
    if arguments.compare:
        sys.exit(bool(compare(*arguments.compare)))
    found: dict[str, str] = {}
    for name, make in cases(not arguments.no_compiled, not arguments.no_cluster):
        if arguments.only in name:
            try:
                found[name] = make()
            except Exception as error:
                traceback.print_exc()
                found[name] = f"{type(error).__name__}: {error}"[:200]
            print(f"{name}: {found[name]}", flush=True)
            arguments.output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
