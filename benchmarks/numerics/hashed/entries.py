"""The list of entries, the hash of a value, and the small runs that most entries are.

An entry is a function without arguments. It returns its results by name. Each result gets a hash of its own, so that a
comparison says which part of a computation has changed. Entries use public names only: they run with older revisions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

Results = Mapping[str, Any]
ENTRIES: dict[str, Callable[[], Results]] = {}
"""The entries by "group/name", in the order in which they run."""
EXTRA_GROUPS = ("compiled", "ray")
"""The groups that run only when they are asked for: they take minutes, or start other processes with Ray."""

DISCRETE = ("appo", "c51", "dqn", "impala", "iqn", "pqn", "ppo", "a2c", "qrdqn", "rainbow", "reinforce", "trpo")
"""The online algorithms whose small run is on CartPole. The others run on Pendulum."""
OFFLINE_ROWS = 256


def entry(group: str) -> Callable[[Callable[[], Results]], Callable[[], Results]]:
    """Register a function as an entry of `group` under its own name."""

    def register(make: Callable[[], Results]) -> Callable[[], Results]:
        add(group, make.__name__, make)
        return make

    return register


def add(group: str, name: str, make: Callable[[], Results]) -> None:
    """Register an entry. Raises `ValueError` if there is one with the same name."""
    full_name = f"{group}/{name}"
    if full_name in ENTRIES:
        raise ValueError(f"there are two entries {full_name}")
    ENTRIES[full_name] = make


def chosen(only: Sequence[str] = (), extra_groups: Iterable[str] = ()) -> list[str]:
    """Return the names of the entries that have one of `only` in their name. Without `only`: all entries.

    Entries of an extra group are left out unless the group is in `extra_groups`, or `only` begins with its name.
    """
    found = []
    for name in ENTRIES:
        group = name.partition("/")[0]
        asked = [word for word in only if word in name]
        named = any(word.startswith(group) for word in asked)
        if group in EXTRA_GROUPS and group not in extra_groups and not named:
            continue
        if asked or not only:
            found.append(name)
    return found


def hash_of(value: Any) -> str:
    """Return a hash of arrays, tensors, numbers, texts, mappings and sequences, with names, shapes and dtypes."""
    digest = hashlib.sha256()
    _feed(digest, "", value)
    return digest.hexdigest()[:16]


def _feed(digest: Any, name: str, value: Any) -> None:
    if isinstance(value, Mapping):
        digest.update(f"{name} has {len(value)} keys".encode())
        for key in sorted(value, key=str):
            _feed(digest, f"{name}/{key}", value[key])
    elif isinstance(value, list | tuple):
        digest.update(f"{name} has {len(value)} items".encode())
        for position, item in enumerate(value):
            _feed(digest, f"{name}/{position}", item)
    else:
        array = np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)
        digest.update(f"{name} {array.shape} {array.dtype}".encode())
        is_object = array.dtype == object
        digest.update(str(array.tolist()).encode() if is_object else np.ascontiguousarray(array).tobytes())


def small(algorithm: str, env: Any = None, **sections: dict[str, Any]) -> Any:
    """Return a small configuration: networks of 8 units, 32 steps an update, two epochs of 96 steps, an evaluation.

    `sections`: options by section, set last. A wrong name is an error that the entry records.
    """
    from lockstep import get_config

    config = get_config(algorithm)
    model = {"hiddens": (8,), "critic_hiddens": (8,), **sections.pop("model", {})}
    config.rl_module(model_config=model).debugging(seed=3)
    config.evaluation(evaluation_duration=2, evaluation_num_envs=2)
    if config.is_offline:
        continuous = algorithm == "td3_bc"
        config.environment("Pendulum-v1" if continuous else "CartPole-v1")
        config.offline_data(input_=transitions(continuous)).training(train_batch_size=16)
        config.reporting(total_steps=20, steps_per_epoch=10)
    else:
        config.environment(env or ("CartPole-v1" if algorithm in DISCRETE else "Pendulum-v1"))
        config.env_runners(num_envs_per_env_runner=4).training(train_batch_size=32)
        config.reporting(total_steps=192, steps_per_epoch=96)
    if config.is_off_policy:
        config.env_runners(rollout_fragment_length=2).training(train_batch_size=8)
        config.replay(capacity=120, learning_starts=32, update_per_step=0.25)
    if algorithm in ("ppo", "pqn"):
        config.training(minibatch_size=16, num_epochs=2)
    if algorithm in ("c51", "rainbow"):
        config.training(num_atoms=5, v_min=0.0, v_max=40.0)
    if algorithm in ("qrdqn", "iqn", "tqc"):
        config.training(num_quantiles=5)
    for name, options in sections.items():
        getattr(config, name)(**options)
    return config


def transitions(continuous: bool, rows: int = OFFLINE_ROWS) -> Any:
    """Return made-up transitions of episodes of 16 steps in the spaces of CartPole, or of Pendulum if `continuous`."""
    from lockstep import SampleBatch

    rng = np.random.default_rng(5)
    obs = rng.uniform(-1, 1, (rows + 1, 3 if continuous else 4)).astype(np.float32)
    actions = rng.uniform(-2, 2, (rows, 1)).astype(np.float32) if continuous else rng.integers(2, size=rows)
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


def run(config: Any, callbacks: Sequence[Any] = (), **options: Any) -> dict[str, Any]:
    """Train as the configuration says; return the results of the run."""
    return run_trainer(config.build_trainer(callbacks=list(callbacks), **options))


def run_trainer(trainer: Any) -> dict[str, Any]:
    """Run a trainer to its end and close it; return the results of the run."""
    try:
        history = trainer.run().history
        return results_of(trainer, history)
    finally:
        close(trainer)


def close(trainer: Any) -> None:
    """Close a trainer and its learners, which may be in other processes."""
    group = trainer.policy.learner_group
    trainer.close()
    if group.is_remote:
        group.shutdown()


def results_of(trainer: Any, history: Sequence[Any]) -> dict[str, Any]:
    """Return the weights, the states of learner and collector, and what each epoch returned and lost."""
    found: dict[str, Any] = {
        "weights": trainer.policy.learner_group.get_weights(),
        "learner": learner_state(trainer.policy),
        **results_of_epochs(history),
    }
    if getattr(trainer, "train_collector", None) is not None:
        found["collector"] = collector_state(trainer.train_collector)
    return found


def results_of_epochs(history: Sequence[Any]) -> dict[str, Any]:
    """Return the episodes of training and evaluation, and the means of losses and metrics, of each epoch."""
    train = [episodes_of(epoch.train_collect_stat) for epoch in history]
    test = [episodes_of(epoch.test_collect_stat) for epoch in history]
    updates = [epoch.training_stat for epoch in history]
    losses = [None if stats is None else stats.get_loss_stats_dict() for stats in updates]
    return {"train episodes": train, "test episodes": test, "losses": losses}


def episodes_of(stats: Any) -> dict[str, Any] | None:
    """Return the counts and the episodes of a collect, without times."""
    if stats is None or not hasattr(stats, "returns"):
        return None
    names = ("n_collected_steps", "n_collected_episodes", "returns", "lens", "agents", "agent_returns", "agent_modules")
    return {name: _plain(getattr(stats, name)) for name in (*names, "epsilon", "metrics")}


def learner_state(policy: Any) -> dict[str, Any]:
    """Return the state of a policy without the metrics that it logs, which `losses` has."""
    state = dict(policy.get_state())
    group = dict(state["learner_group"])
    learner = dict(group["learner"])
    learner.pop("metrics", None)
    group["learner"] = learner
    state["learner_group"] = group
    return _plain(state)


def collector_state(collector: Any) -> dict[str, Any]:
    """Return the state of a collector without what no seed decides: times, and the ids of single agents' episodes."""
    return _repeatable(_plain(dict(collector.get_state())), within="")


def _repeatable(state: Any, within: str) -> Any:
    if isinstance(state, list):
        return [_repeatable(part, within) for part in state]
    if not isinstance(state, dict):
        return state
    kept = {}
    for name, part in state.items():
        if name == "counters" and isinstance(part, list):
            kept[name] = part[:2]  # steps and episodes; the third one is seconds
        elif "time" not in name and name != "duration_s" and (name != "id_" or "agents" not in within):
            kept[name] = _repeatable(part, f"{within}/{name}")
    return kept


def _plain(value: Any) -> Any:
    """Return mappings, sequences and dataclasses as dicts and lists, so that their kind does not enter the hash.

    Of the library's own classes, "lockstep.FOLDER:CLASS", the name alone is kept: files move.
    """
    if isinstance(value, str) and value.startswith("lockstep.") and ":" in value:
        return value.rpartition(":")[2]
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if hasattr(value, "__dataclass_fields__"):
        return {name: _plain(getattr(value, name)) for name in value.__dataclass_fields__}
    return value
