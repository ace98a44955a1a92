"""Time replay buffers and collectors of ``lockstep`` or ``tianshou`` for ``replay_speed.py``.

Steps of 8 environments as of CartPole (float32 observations of 4 numbers, an integer action), ready in arrays; buffers
of 100,000 transitions, full; 256 rows drawn. Collectors: 8 CartPole-v1 stepped in one process into such a buffer, with
random actions or with a Q network of two layers of 64 and epsilon 0.1.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import protocol

w = protocol.read(__doc__)

OURS = w.library == "lockstep"
if OURS:
    from lockstep import Collector, DQNConfig, __version__
    from lockstep.envs import make_vector
    from lockstep.replay import PrioritizedVectorReplayBuffer, ReplayBuffer, VectorReplayBuffer
else:
    import gymnasium as gym
    from tianshou import __version__
    from tianshou.algorithm import DQN
    from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Batch, Collector, PrioritizedVectorReplayBuffer, ReplayBuffer, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv
    from tianshou.utils.net.common import Net

ENVS, SIZE, LARGE, BATCH, STEPS = 8, 100_000, 1_000_000, 256, 1_000
FRAME_SIZE, FRAMES = (84, 84), 20_000
ENVIRONMENT, HIDDENS, EPSILON, COLLECTED = "CartPole-v1", (64, 64), 0.1, 2_048


def step_of(obs: Any, act: Any, rew: Any, terminated: Any, obs_next: Any) -> Any:
    """Return a vector step as the library takes it."""
    truncated = np.zeros(len(obs), bool)
    if OURS:
        ends = {"terminateds": terminated, "truncateds": truncated}
        return {"obs": obs, "actions": act, "rewards": rew, **ends, "new_obs": obs_next}
    columns = {"obs": obs, "act": act, "rew": rew, "terminated": terminated, "truncated": truncated}
    return Batch(**columns, obs_next=obs_next, info=Batch())


def make_steps() -> list[Any]:
    """Return vector steps."""
    rng = np.random.default_rng(0)
    return [
        step_of(
            rng.random((ENVS, 4), dtype=np.float32),
            rng.integers(0, 2, ENVS),
            np.ones(ENVS, np.float32),
            rng.random(ENVS) < 0.02,
            rng.random((ENVS, 4), dtype=np.float32),
        )
        for _ in range(STEPS)
    ]


def make_frames() -> list[Any]:
    """Return steps of one environment that shows frames; Tianshou's plain buffer takes them without its axis."""
    shown = np.random.default_rng(0).integers(0, 256, (STEPS + 1, 1, *FRAME_SIZE), dtype=np.uint8)
    steps = [
        step_of(shown[k], np.array([k % 6]), np.ones(1, np.float32), np.array([k % 250 == 249]), shown[k + 1])
        for k in range(STEPS)
    ]
    return steps if OURS else [step[0] for step in steps]


def full(buffer: Any, steps: list[Any]) -> Any:
    """Fill a buffer and return it."""
    while len(buffer) < buffer.maxsize:
        for step in steps:
            buffer.add(step)
    return buffer


def make_collector() -> Any:
    """Return a collector with 8 environments, a Q network, a buffer."""
    if OURS:
        config = DQNConfig().environment(ENVIRONMENT).training(epsilon=EPSILON)
        acting = config.rl_module(model_config={"hiddens": HIDDENS, "activation": "relu"}).build_policy()
        environments = make_vector(ENVIRONMENT, num_envs=ENVS)
    else:
        environments = DummyVectorEnv([lambda: gym.make(ENVIRONMENT) for _ in range(ENVS)])
        action_space, observation_space = environments.action_space[0], environments.observation_space[0]
        policy = DiscreteQLearningPolicy(
            model=Net(state_shape=observation_space.shape, action_shape=action_space.n, hidden_sizes=HIDDENS),
            action_space=action_space,
            observation_space=observation_space,
            eps_training=EPSILON,
            eps_inference=EPSILON,
        )
        acting = DQN(policy=policy, optim=AdamOptimizerFactory(lr=1e-3))
    made = Collector(acting, environments, VectorReplayBuffer(SIZE, ENVS), exploration_noise=True)
    made.reset()
    return made


def num_bytes(state: Any) -> int:
    """Return the bytes of all arrays in a state."""
    parts = state.values() if isinstance(state, dict) else state if isinstance(state, list) else []
    return state.nbytes if isinstance(state, np.ndarray) else sum(map(num_bytes, parts))


def main() -> None:
    """Fill the buffers, and measure the processor's seconds for one call of each work."""
    steps, frames = make_steps(), make_frames()
    rng = np.random.default_rng(1)
    errors = itertools.cycle([rng.random(BATCH) for _ in range(50)])
    uniform = full(VectorReplayBuffer(SIZE, ENVS), steps)
    large = full(VectorReplayBuffer(LARGE, ENVS), steps)
    prioritized = full(PrioritizedVectorReplayBuffer(SIZE, ENVS, alpha=0.6, beta=0.4), steps)
    stacked = full(ReplayBuffer(FRAMES, stack_num=4, ignore_obs_next=True), frames)

    def add_all(buffer: Any, rows: list[Any]) -> None:
        for step in rows:
            buffer.add(step)

    def sample_and_update() -> None:
        sample = prioritized.sample(BATCH)
        prioritized.update_weight(sample["batch_indexes"] if OURS else sample[1], next(errors))

    least, by_random, by_network = protocol.least_seconds, make_collector(), make_collector()
    seconds = {
        "add": least(lambda: add_all(uniform, steps), calls=len(steps)),
        "add_prioritized": least(lambda: add_all(prioritized, steps), calls=len(steps)),
        "add_frames": least(lambda: add_all(stacked, frames), calls=len(frames)),
        "sample": least(lambda: uniform.sample(BATCH)),
        "sample_large": least(lambda: large.sample(BATCH)),
        "sample_prioritized": least(sample_and_update),
        "sample_frames": least(lambda: stacked.sample(BATCH)),
        "collect_random": least(lambda: by_random.collect(n_step=COLLECTED, random=True)),
        "collect_network": least(lambda: by_network.collect(n_step=COLLECTED)),
    }
    facts = {}
    if OURS:
        n_step = full(VectorReplayBuffer(SIZE, ENVS, n_step=3), steps)
        seconds["sample_n_step"] = least(lambda: n_step.sample(BATCH))
        facts["bytes_for_a_frame_row"] = num_bytes(stacked.get_state()) / len(stacked)
    protocol.print_line(w.library, __version__, seconds=seconds, **facts)


main()
