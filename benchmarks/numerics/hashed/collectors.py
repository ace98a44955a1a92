"""Collectors by hand, asynchronous ones, env runners in this process, tensors, and evaluation."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from hashed import games
from hashed.agents import SEPARATE, SHARED, config_of
from hashed.algorithms import GRU, add_runs, run_of
from hashed.entries import Results, close, collector_state, entry, episodes_of, run_trainer, small

# -- collectors by hand ---


def collected(config: Any, amounts: Sequence[dict[str, Any]]) -> Results:
    """Collect several times; return the episodes, the rows and the state after each collect."""
    trainer = config.build_trainer()  # it gives the collector its buffer
    collector = trainer.train_collector
    found: dict[str, Any] = {"episodes": [], "rows": [], "states": []}
    try:
        for amount in amounts:
            found["episodes"].append(episodes_of(collector.collect(**amount)))
            found["rows"].append(rows_of(collector.buffer))
            if not config.is_off_policy:
                collector.reset_buffer()
            found["states"].append(collector_state(collector))
        return found
    finally:
        close(trainer)


def rows_of(buffer: Any) -> Any:
    """Return what a buffer or a rollout has stored."""
    if hasattr(buffer, "buffers"):
        return {module_id: rows_of(own) for module_id, own in buffer.buffers.items()}
    if hasattr(buffer, "all"):
        return numbers_of(buffer.all())
    episodes = buffer.episodes()
    return [numbers_of(episode.get_sample_batch()) for episode in episodes if hasattr(episode, "get_sample_batch")]


def numbers_of(batch: Any) -> Any:
    """Return the columns of a batch that hold numbers, of each module."""
    if hasattr(batch, "policy_batches"):
        return {module_id: numbers_of(part) for module_id, part in batch.policy_batches.items()}
    skipped = ("infos", "eps_id", "agent_id", "module_id")
    return {name: column for name, column in batch.items() if name not in skipped}


STEPS = ({"n_step": 40}, {"n_step": 40, "random": True}, {"n_step": 21})
EPISODES = ({"n_episode": 5}, {"n_step": 40}, {"n_episode": 3})

add_runs(
    "collectors",
    {
        "vector_steps": lambda: collected(small("ppo", games.Target), STEPS),
        "vector_episodes": lambda: collected(small("ppo", games.Choice), EPISODES),
        "vector_replay": lambda: collected(small("dqn"), STEPS),
        "vector_memory": lambda: collected(small("ppo", games.Choice, model=GRU), STEPS),
        "vector_subprocesses": lambda: collected(
            small("ppo", env_runners={"vectorize_mode": "async", "num_envs_per_env_runner": 2}), STEPS
        ),
        "vector_gymnasium_sync": lambda: collected(small("ppo", env_runners={"vectorize_mode": "sync"}), STEPS),
        "vector_gymnasium_vector": lambda: collected(small("ppo", env_runners={"vectorize_mode": "vector"}), STEPS),
        "agents_parallel": lambda: collected(config_of("ppo", games.Parallel, SEPARATE), STEPS[:1] + STEPS[2:]),
        "agents_turns": lambda: collected(config_of("ppo", games.Turns, SHARED), EPISODES),
        "agents_random": lambda: collected(config_of("dqn", games.Parallel, SEPARATE), STEPS),
        "agents_dicts_replay": lambda: collected(
            config_of("dqn", games.ByDict, {"policies": ["first", "others"], "policy_mapping_fn": games.by_space}),
            EPISODES,
        ),
    },
)


@entry("collectors")
def trainer_by_hand() -> Results:
    """Collectors and a trainer made by hand, without a configuration's section for them."""
    from lockstep import Collector, OffpolicyTrainer
    from lockstep.envs import make_vector
    from lockstep.replay import VectorReplayBuffer

    policy = small("dqn").build_policy()
    replay = VectorReplayBuffer(200, 4, n_step=2, gamma=0.99)
    trainer = OffpolicyTrainer(
        policy,
        train_collector=Collector(policy, make_vector("CartPole-v1", num_envs=4), replay, exploration_noise=True),
        test_collector=Collector(policy, make_vector("CartPole-v1", num_envs=2)),
        max_epoch=2,
        step_per_epoch=96,
        step_per_collect=8,
        update_per_step=0.5,
        batch_size=8,
        episode_per_test=3,
        learning_starts=32,
        seed=1,
    )
    return run_trainer(trainer)


@entry("collectors")
def trainer_by_episodes() -> Results:
    """An on-policy trainer whose collects are counted in episodes, with observations of a reward metric."""
    from lockstep import Collector, OnpolicyTrainer

    config = small("ppo", games.Target)
    policy = config.build_policy()
    trainer = OnpolicyTrainer(
        policy,
        train_collector=Collector(policy, config.make_envs(3), exploration_noise=True),
        max_epoch=2,
        step_per_epoch=60,
        episode_per_collect=6,
        repeat_per_collect=2,
        batch_size=16,
        seed=1,
    )
    return run_trainer(trainer)


# -- ready environments first ---


def ready_first(algorithm: str, env: Any, num_envs: int, rows: int) -> Results:
    """Collect from environments in processes of their own, whichever is ready.

    One environment is always the one that is ready. Of several, how far each has come depends on the machine, and so do
    drawn actions; the first rows of each with the most likely actions do not. Only these are hashed.
    """
    from lockstep import AsyncCollector
    from lockstep.envs import make_vector
    from lockstep.replay import VectorReplayBuffer

    policy = small(algorithm, env).build_policy()
    with make_vector(env, num_envs=num_envs, mode="async") as workers:
        replay = VectorReplayBuffer(20_000 * num_envs, num_envs)
        collector = AsyncCollector(policy, workers, replay, exploration_noise=num_envs == 1, seed=5)
        found: dict[str, Any] = {}
        if num_envs == 1:
            found["episodes"] = [episodes_of(collector.collect(n_step=n)) for n in (33, 20)]
            found["episodes"].append(episodes_of(collector.collect(n_episode=2)))
            found["episodes"].append(episodes_of(collector.collect(n_step=9, random=True)))
            found["rows"] = numbers_of(replay.all())
            return found
        while min(len(part) for part in parts_of(replay)) < rows:
            collector.collect(n_step=10)
        found["rows"] = [numbers_of(replay[part[:rows]]) for part in parts_of(replay)]
        return found


def parts_of(replay: Any) -> list[np.ndarray]:
    """Return the places of the rows of each environment, in the order in which they came."""
    places = np.asarray(replay.indices())
    each = replay.maxsize // replay.buffer_num
    return [places[places // each == part] for part in range(replay.buffer_num)]


@entry("async")
def ready_first_run() -> Results:
    """A run that learns from what one environment, which is always ready, gives."""
    from lockstep import AsyncCollector, OffpolicyTrainer
    from lockstep.envs import make_vector
    from lockstep.replay import VectorReplayBuffer

    policy = small("dqn").build_policy()
    with make_vector("CartPole-v1", num_envs=1, mode="async") as workers:
        trainer = OffpolicyTrainer(
            policy,
            train_collector=AsyncCollector(policy, workers, VectorReplayBuffer(200, 1), exploration_noise=True),
            max_epoch=2,
            step_per_epoch=64,
            step_per_collect=7,
            update_per_step=0.5,
            batch_size=8,
            learning_starts=16,
            seed=1,
        )
        return run_trainer(trainer)


add_runs(
    "async",
    {
        "ready_first_one": partial(ready_first, "dqn", "CartPole-v1", 1, 0),
        "ready_first_three": partial(ready_first, "dqn", "CartPole-v1", 3, 12),
        "ready_first_continuous": partial(ready_first, "sac", "Pendulum-v1", 1, 0),
    },
)

# -- env runners in this process ---


class RunnersHere:
    """A backend of several env runners in this process. `order`: a generator that draws whose fragment is ready."""

    is_local = False

    def __init__(self, build: Callable[..., Any], number: int, order: np.random.Generator | None = None) -> None:
        self.build = build
        self.order = order
        self.runners = [build(index=index, num_runners=number, generation=0) for index in range(number)]
        self.calls: list[tuple[int, Callable[..., Any], Any, Any]] = []

    def __len__(self) -> int:
        return len(self.runners)

    def put(self, value: Any) -> Any:
        return copy.deepcopy(value)

    def call(self, index: int, func: Callable[..., Any], *args: Any, **options: Any) -> int:
        self.calls.append((index, func, copy.deepcopy(args), options))
        return len(self.calls) - 1

    def wait(self, calls: Sequence[int], timeout_s: float) -> list[int]:
        if self.order is None:
            return list(calls)
        first: dict[int, int] = {}
        for call in calls:  # a runner works off its calls in order
            first.setdefault(self.calls[call][0], call)
        ready = list(first.values())
        return [ready[self.order.integers(len(ready))]]

    def result(self, call: int) -> Any:
        index, func, args, options = self.calls[call]
        return copy.deepcopy(func(self.runners[index], *args, **options))

    def replace(self, index: int, generation: int) -> None:
        self.runners[index] = self.build(index=index, num_runners=len(self), generation=generation)

    def process_ids(self) -> list[int]:
        return []

    def shutdown(self) -> None:
        for runner in self.runners:
            runner.close()


def runners_of(config: Any, with_logp: bool = False, order: np.random.Generator | None = None) -> Any:
    """Return a group of two env runners in this process, each with half of the environments."""
    from lockstep.rollout import EnvRunnerGroup

    each = config.copy()
    each.env_runners(num_envs_per_env_runner=config.env_runners.num_envs_per_env_runner // 2)
    policy = config.build_policy()
    build = partial(each.build_env_runner, (policy.observation_space, policy.action_space), with_logp)
    return EnvRunnerGroup(RunnersHere(build, 2, order), each.env_runners)


def in_step(config: Any) -> Results:
    """Train with env runners that wait for each update."""
    from lockstep import OffpolicyTrainer, OnpolicyTrainer
    from lockstep.rollout import GroupCollector

    policy = config.build_policy()
    collector = GroupCollector(policy, runners_of(config))
    given: dict[str, Any] = {"max_epoch": 2, "step_per_epoch": 96}
    if not config.is_off_policy:
        minibatch = getattr(config.training, "minibatch_size", None)
        passes = {"repeat_per_collect": config.training.num_epochs, "batch_size": minibatch}
        trainer = OnpolicyTrainer(policy, train_collector=collector, step_per_collect=32, **passes, **given)
        return run_trainer(trainer)
    if policy.is_multi_agent:
        collector.buffer = config.build_replay_buffers(collector.agents_of_modules, collector.num_envs)
    else:
        collector.buffer = config.build_replay_buffer(collector.num_envs)
    trainer = OffpolicyTrainer(
        policy,
        train_collector=collector,
        step_per_collect=8,
        update_per_step=0.5,
        learning_starts=32,
        batch_size=8,
        **given,
    )
    return run_trainer(trainer)


def while_learning(config: Any, *, fixed: bool, max_lag: int = 1) -> Results:
    """Train with env runners that collect while the learner learns; without a fixed lag in an order that is drawn."""
    from lockstep import OnpolicyTrainer
    from lockstep.rollout import AsyncGroupCollector

    config.training(max_lag=max_lag, fixed_lag=fixed)
    order = None if fixed else np.random.default_rng(7)
    collector = AsyncGroupCollector(
        config.build_policy(),
        runners_of(config, with_logp=max_lag > 0, order=order),
        fragment_length=8,
        fragments_per_batch=2,
        max_lag=max_lag,
        fixed_lag=fixed,
    )
    trainer = OnpolicyTrainer(
        collector.policy,
        train_collector=collector,
        max_epoch=2,
        step_per_epoch=96,
        step_per_collect=collector.steps_per_collect,
        repeat_per_collect=1,
        batch_size=None,
    )
    return run_trainer(trainer)


NORMALISED = {"normalize_observations": True, "normalize_rewards": True}
add_runs(
    "runners",
    {
        "ppo_in_step": lambda: in_step(small("ppo", environment=NORMALISED)),
        "a2c_lstm_in_step": lambda: in_step(small("a2c", model=GRU)),
        "dqn_in_step": lambda: in_step(small("dqn")),
        "sac_in_step": lambda: in_step(small("sac")),
        "ppo_agents_in_step": lambda: in_step(config_of("ppo", games.Parallel, SEPARATE)),
        "dqn_agents_in_step": lambda: in_step(config_of("dqn", games.Turns, SEPARATE)),
        "impala_fixed_lag": lambda: while_learning(small("impala", environment=NORMALISED), fixed=True),
        "impala_fixed_lag_2": lambda: while_learning(small("impala"), fixed=True, max_lag=2),
        "impala_in_turn": lambda: while_learning(small("impala"), fixed=True, max_lag=0),
        "appo_fixed_lag": lambda: while_learning(small("appo"), fixed=True),
        "appo_ready_fragments_first": lambda: while_learning(small("appo"), fixed=False),
        "impala_agents_fixed_lag": lambda: while_learning(config_of("impala", games.Parallel, SEPARATE), fixed=True),
        "impala_agents_ready_first": lambda: while_learning(config_of("impala", games.Turns, SHARED), fixed=False),
    },
)

# -- tensors ---

POLES, PENDULUM = "tensor/CartPole-v1", "tensor/Pendulum-v1"
ONE_EPISODE = {"evaluation_duration": 1, "evaluation_num_envs": 1}
PRIORITIES = {"prioritized": True, "beta": [[0, 0.4], [192, 1.0]]}
HAS_ALLOW_HOST = hasattr(small("ppo").env_runners, "allow_host")
ON_HOST = {"env_runners": {"allow_host": True}} if HAS_ALLOW_HOST else {}
"""Options of runs whose steps are copied to the host; older revisions copy them without being asked."""


def tensor_run(algorithm: str, env: str, **sections: Any) -> Results:
    """Train on tensor environments on the CPU."""
    return run_of(algorithm, env, evaluation=ONE_EPISODE, **sections)


add_runs(
    "tensors",
    {
        "ppo": partial(tensor_run, "ppo", POLES),
        "ppo_continuous": partial(tensor_run, "ppo", PENDULUM),
        "ppo_normalised": partial(tensor_run, "ppo", POLES, environment=NORMALISED),
        "ppo_lstm": partial(tensor_run, "ppo", POLES, model=GRU, **ON_HOST),
        "a2c": partial(tensor_run, "a2c", POLES),
        "impala": partial(tensor_run, "impala", POLES),
        "pqn": partial(tensor_run, "pqn", POLES, **ON_HOST),
        "dqn": partial(tensor_run, "dqn", POLES),
        "dqn_prioritized": partial(tensor_run, "dqn", POLES, replay=PRIORITIES),
        "dqn_n_step": partial(tensor_run, "dqn", POLES, replay={"n_step": 3}),
        "c51": partial(tensor_run, "c51", POLES),
        "sac": partial(tensor_run, "sac", PENDULUM),
        "sac_prioritized_n_step": partial(tensor_run, "sac", PENDULUM, replay={**PRIORITIES, "n_step": 2}),
        "td3": partial(tensor_run, "td3", PENDULUM),
        "tqc": partial(tensor_run, "tqc", PENDULUM),
    },
)

# -- evaluation ---


def evaluated(config: Any) -> Results:
    """Evaluate an untrained policy several times; return the episodes, and the collector's state."""
    policy = config.build_policy()
    collector = config.build_test_collector(policy)
    amounts = ({"n_episode": 5}, {"n_step": 60}, {"n_episode": 1})
    found: dict[str, Any] = {"episodes": [episodes_of(collector.collect(**amount)) for amount in amounts]}
    found["state"] = collector_state(collector)
    collector.close()
    return found


THREE = {"evaluation_num_envs": 3}
add_runs(
    "evaluation",
    {
        "greedy": lambda: evaluated(small("ppo", evaluation=THREE)),
        "drawn": lambda: evaluated(small("ppo", evaluation={**THREE, "evaluation_explore": True})),
        "epsilon": lambda: evaluated(small("dqn", evaluation={**THREE, "epsilon": 0.3})),
        "memory": lambda: evaluated(small("ppo", games.Choice, model=GRU, evaluation=THREE)),
        "gsde": lambda: evaluated(
            small(
                "ppo",
                games.Target,
                env_runners={"exploration": "gsde"},
                evaluation={**THREE, "evaluation_explore": True},
            )
        ),
        "agents_parallel": lambda: evaluated(config_of("ppo", games.Parallel, SEPARATE, evaluation=THREE)),
        "agents_turns": lambda: evaluated(config_of("dqn", games.Turns, SHARED, evaluation={**THREE, "epsilon": 0.3})),
        "timesteps": partial(
            run_of, "ppo", evaluation={"evaluation_duration": 400, "evaluation_duration_unit": "timesteps"}
        ),
        "beside_training": partial(run_of, "dqn", evaluation={"evaluation_parallel_to_training": True}),
        "other_settings": partial(
            run_of,
            "dqn",
            environment={"env": "lockstep/BitFlipping-v0", "env_config": {"num_bits": 4}},
            evaluation={"evaluation_config": {"environment.env_config": {"num_bits": 4}, "env_runners.explore": True}},
        ),
        "short_episodes": partial(run_of, "ppo", evaluation={"max_episode_steps": 7}),
        "stop_return": partial(run_of, "ppo", evaluation={"stop_return": 5.0}),
    },
)
