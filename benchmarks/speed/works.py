"""Pieces of work that `revisions.py` times in two checkouts.

A work is a function whose docstring says what is timed. It prepares everything that is not timed, and returns a
function that does the work once. Works use public names only, so that older checkouts can run them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch  # noqa: F401 (so that "import" times only what Lockstep adds)

Work = Callable[[], Any]
Rows = dict[str, np.ndarray]

ENVS = 8
CARTPOLE = "CartPole-v1"


# -- training: epochs of a run ---


def epochs_of(config: Any, steps_per_epoch: int, callbacks: list[Any] | None = None) -> Work:
    """Return a function that trains one epoch, without evaluation."""
    config.evaluation(evaluation_interval=0).debugging(seed=1).framework(num_threads=1)
    config.reporting(total_steps=1_000 * steps_per_epoch, steps_per_epoch=steps_per_epoch)
    trainer = iter(config.build_trainer(callbacks=callbacks or []))
    return lambda: next(trainer)


def ppo_config(env: Any) -> Any:
    """Return PPO with 8 environments of 128 steps, 4 passes in minibatches of 256."""
    from lockstep import PPOConfig

    config = PPOConfig().environment(env).env_runners(num_envs_per_env_runner=ENVS)
    return config.training(train_batch_size=1_024, minibatch_size=256, num_epochs=4)


def ppo() -> Work:
    """One iteration of PPO on CartPole-v1: 8 environments of 128 steps, 4 passes in minibatches of 256."""
    return epochs_of(ppo_config(CARTPOLE).framework(compile=False), 1_024)


def ppo_compiled() -> Work:
    """Two iterations of PPO on CartPole-v1 with compiled updates."""
    return epochs_of(ppo_config(CARTPOLE).framework(compile=True, compile_after=0), 2_048)


def dqn() -> Work:
    """480 steps of DQN on CartPole-v1: 8 environments, one gradient step of 128 rows for every ten steps."""
    from lockstep import DQNConfig

    config = DQNConfig().environment(CARTPOLE).env_runners(num_envs_per_env_runner=ENVS)
    config.replay(learning_starts=256, update_per_step=0.1)
    config.training(train_batch_size=128, huber_delta=1.0, target_update_interval=250)
    # The defaults of older checkouts differ.
    config.rl_module(model_config={"activation": "tanh", "orthogonal_init": True})
    return epochs_of(config.framework(compile=False), 480)


def sac() -> Work:
    """40 steps of SAC on Pendulum-v1 with 64x64 networks: one gradient step of 256 rows for every step."""
    from lockstep import SACConfig

    config = SACConfig().environment("Pendulum-v1").replay(learning_starts=80)
    config.rl_module(model_config={"hiddens": (64, 64)})
    return epochs_of(config.framework(compile=False), 40)


def tensors_ppo() -> Work:
    """Two iterations of PPO on tensor/CartPole-v1 on the CPU: rollouts of 64 environments stay tensors."""
    config = ppo_config("tensor/CartPole-v1").env_runners(num_envs_per_env_runner=64)
    return epochs_of(config.framework(compile=False, device="cpu"), 2_048)


def tensor_replay_config(name: str, env: str) -> Any:
    """Return an off-policy algorithm on tensor environments: 32 of them, one gradient step for every vector step."""
    from lockstep import get_config

    config = get_config(name).environment(env).env_runners(num_envs_per_env_runner=32)
    config.training(train_batch_size=256).rl_module(model_config={"hiddens": (64, 64)})
    config.replay(capacity=32_000, learning_starts=320, update_per_step=1 / 32)
    return config.framework(compile=False, device="cpu")


def tensors_sac() -> Work:
    """25 gradient steps of SAC on tensor/Pendulum-v1 on the CPU, from a uniform tensor replay."""
    return epochs_of(tensor_replay_config("sac", "tensor/Pendulum-v1"), 800)


def tensors_dqn() -> Work:
    """25 gradient steps of DQN on tensor/CartPole-v1 on the CPU, from a prioritised tensor replay."""
    config = tensor_replay_config("dqn", "tensor/CartPole-v1").replay(prioritized=True)
    return epochs_of(config, 800)


# -- several agents ---


class Crowd:
    """Agents that act together for 25 steps, in the form of PettingZoo's `ParallelEnv`.

    A step does nearly nothing, so that a work times Lockstep. Observations are `[18]`, rewards are random.
    """

    def __init__(self, agents: int = 3) -> None:
        self.possible_agents = [f"agent_{i}" for i in range(agents)]
        space = gymnasium.spaces.Box(-np.inf, np.inf, (18,), np.float32)
        self.observation_spaces = dict.fromkeys(self.possible_agents, space)
        self.action_spaces = dict.fromkeys(self.possible_agents, gymnasium.spaces.Discrete(5))
        self.rng = np.random.default_rng()
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode."""
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.steps = 0
        return self._observations(), {}

    def step(self, actions: dict[str, int]) -> tuple[dict[str, Any], ...]:
        """Go one step on, whatever the actions are."""
        self.steps += 1
        rewards = dict(zip(self.possible_agents, self.rng.normal(size=len(self.possible_agents)).tolist()))
        terminated = dict.fromkeys(self.possible_agents, False)
        truncated = dict.fromkeys(self.possible_agents, self.steps == 25)
        return self._observations(), rewards, terminated, truncated, {}

    def _observations(self) -> dict[str, np.ndarray]:
        rows = self.rng.normal(size=(len(self.possible_agents), 18)).astype(np.float32)
        return dict(zip(self.possible_agents, rows))


def module_of(agent: str, episode: Any) -> str:
    """Map the first agent to the module "first", all others to "others"."""
    return "first" if agent == "agent_0" else "others"


def to_main(agent: str, episode: Any) -> str:
    """Map every agent to the module "main"."""
    return "main"


def agents_ppo() -> Work:
    """One iteration of PPO with three agents and two modules: 8 environments of 128 steps."""
    config = ppo_config(Crowd).multi_agent(policies=["first", "others"], policy_mapping_fn=module_of)
    return epochs_of(config.framework(compile=False), 1_024)


def agents_self_play() -> Work:
    """One iteration of PPO against earlier versions, after which a new one joins the pool and an old one leaves."""
    from lockstep.trainer import SelfPlay

    config = ppo_config(Crowd).environment(env_config={"agents": 2})
    config.multi_agent(policies=["main"], policy_mapping_fn=to_main).framework(compile=False)
    # Any share of wins lets a copy join, so every epoch adds one.
    self_play = SelfPlay("main", win_rate_threshold=0.0, window=10, max_pool_size=3)
    return epochs_of(config, 1_024, [self_play])


# -- collection ---


def dqn_config() -> Any:
    """Return DQN on 8 environments of CartPole-v1."""
    from lockstep import DQNConfig

    config = DQNConfig().environment(CARTPOLE).env_runners(num_envs_per_env_runner=ENVS)
    return config.framework(num_threads=1).debugging(seed=1)


def collector() -> Work:
    """5,000 steps of CartPole-v1 by a policy with a 64x64 network, into a replay buffer."""
    from lockstep import Collector
    from lockstep.envs import make_vector
    from lockstep.replay import VectorReplayBuffer

    env = make_vector(CARTPOLE, num_envs=ENVS)
    made = Collector(dqn_config().build_policy(), env, VectorReplayBuffer(50_000, ENVS), seed=1)
    return lambda: made.collect(n_step=5_000)


def collector_rollout() -> Work:
    """5,000 steps of CartPole-v1 by PPO's policy, into a rollout: the loop of a collect and nothing else."""
    from lockstep import Collector, PPOConfig, RolloutStore
    from lockstep.envs import make_vector

    policy = PPOConfig().environment(CARTPOLE).framework(num_threads=1).debugging(seed=1).build_policy()
    env = make_vector(CARTPOLE, num_envs=ENVS)
    store = RolloutStore(5_000 // ENVS, ENVS, env.observation_space, env.action_space)
    made = Collector(policy, env, store, exploration_noise=True, seed=1)

    def work() -> None:
        made.collect(n_step=5_000)
        store.clear()

    return work


def collector_episodes() -> Work:
    """600 episodes of CartPole-v1 without a buffer, as evaluation collects them."""
    from lockstep import Collector
    from lockstep.envs import make_vector

    made = Collector(dqn_config().build_policy(), make_vector(CARTPOLE, num_envs=ENVS), seed=1)
    return lambda: made.collect(n_episode=600)


def collector_agents() -> Work:
    """600 steps of three agents with two modules in 8 environments, into a replay buffer for each module."""
    config = dqn_config().environment(Crowd)
    made = config.multi_agent(policies=["first", "others"], policy_mapping_fn=module_of).build_collector()
    return lambda: made.collect(n_step=600)


def collector_ready() -> Work:
    """2,000 steps of whichever of 8 environments in processes of their own are ready, into a replay buffer."""
    from lockstep import AsyncCollector
    from lockstep.envs import make_vector
    from lockstep.replay import VectorReplayBuffer

    env = make_vector(CARTPOLE, num_envs=ENVS, mode="async")
    made = AsyncCollector(dqn_config().build_policy(), env, VectorReplayBuffer(50_000, ENVS), seed=1)
    return lambda: made.collect(n_step=2_000)


def collector_runners() -> Work:
    """5,000 steps of an env runner in this process, through its group and into a replay buffer."""
    from lockstep.replay import VectorReplayBuffer
    from lockstep.rollout import GroupCollector

    config = dqn_config()
    made = GroupCollector(config.build_policy(), config.build_env_runner_group(), VectorReplayBuffer(50_000, ENVS))
    return lambda: made.collect(n_step=5_000)


def collector_runners_on_ray() -> Work:
    """5,000 steps of two env runners in Ray actors, into a replay buffer."""
    config = dqn_config().env_runners(num_env_runners=2, num_envs_per_env_runner=4, num_cpus_per_env_runner=0)
    made = config.build_collector()
    return lambda: made.collect(n_step=5_000)


def collector_tensors() -> Work:
    """200 vector steps of 64 environments tensor/CartPole-v1 on the CPU, into a rollout of tensors."""
    config = ppo_config("tensor/CartPole-v1").env_runners(num_envs_per_env_runner=64, rollout_fragment_length=200)
    made = config.framework(num_threads=1, device="cpu").debugging(seed=1).build_collector()
    return lambda: made.collect(n_step=12_800)


# -- learners ---


def made_up_batch(rows: int = 2_000) -> Any:
    """Return a train batch of PPO on CartPole."""
    from lockstep import SampleBatch

    rng = np.random.default_rng(0)
    return SampleBatch(
        obs=rng.normal(size=(rows, 4)).astype(np.float32),
        actions=rng.integers(2, size=rows),
        action_logp=np.full(rows, -0.69, np.float32),
        advantages=rng.normal(size=rows).astype(np.float32),
        value_targets=rng.normal(size=rows).astype(np.float32),
    )


def made_up_episodes() -> list[Any]:
    """Return ten episodes of CartPole of 200 steps each."""
    from lockstep.data import SingleAgentEpisode

    rng = np.random.default_rng(0)
    episodes = []
    for _ in range(10):
        episode = SingleAgentEpisode(
            observations=rng.normal(size=(201, 4)).astype(np.float32),
            actions=rng.integers(2, size=200),
            rewards=np.ones(200, np.float32),
            terminated=True,
        )
        episodes.append(episode.to_numpy())
    return episodes


def learner_config() -> Any:
    """Return PPO on CartPole-v1 for updates of 2,000 steps."""
    from lockstep import PPOConfig

    config = PPOConfig().environment(CARTPOLE).framework(num_threads=1)
    return config.training(train_batch_size=2_000, minibatch_size=250)


PASSES = {"num_epochs": 4, "minibatch_size": 250, "shuffle_batch_per_epoch": True}


def learner_episodes() -> Work:
    """Two updates of PPO from episodes of 2,000 steps, 4 passes in minibatches of 250."""
    learner, episodes = learner_config().build_learner(), made_up_episodes()
    return lambda: [learner.update_from_episodes(episodes, **PASSES) for _ in range(2)]


def learner_batch() -> Work:
    """Two updates of PPO from a batch of 2,000 steps, 4 passes in minibatches of 250."""
    learner, batch = learner_config().build_learner(), made_up_batch()
    return lambda: [learner.update_from_batch(batch, **PASSES) for _ in range(2)]


def learners_on_ray() -> Work:
    """Two updates of PPO from a batch of 2,000 steps by two learners in Ray actors."""
    config = learner_config().learners(num_learners=2, num_cpus_per_learner=0)
    group, batch = config.training(minibatch_size=500).build_learner_group(), made_up_batch()
    return lambda: [group.update_from_batch(batch, num_epochs=4, minibatch_size=500) for _ in range(2)]


# -- samples from replay buffers ---


def fill(buffer: Any, vector_steps: int = 2_500, goals: bool = False) -> Any:
    """Add vector steps of 8 environments, whose episodes have about 50 steps; return the buffer."""
    rng = np.random.default_rng(0)

    def observations() -> Any:
        rows = rng.normal(size=(ENVS, 4)).astype(np.float32)
        if not goals:
            return rows
        return {"observation": rows, "achieved_goal": rows[:, :2], "desired_goal": rows[:, 2:]}

    for _ in range(vector_steps):
        buffer.add(
            {
                "obs": observations(),
                "actions": rng.integers(2, size=ENVS),
                "rewards": np.ones(ENVS, np.float32),
                "terminateds": rng.random(ENVS) < 0.02,
                "truncateds": np.zeros(ENVS, bool),
                "new_obs": observations(),
            }
        )
    return buffer


def draws(buffer: Any, number: int, rows: int = 256) -> Work:
    """Return a function that draws so many samples."""

    def work() -> None:
        for _ in range(number):
            buffer.sample(rows)

    return work


def replay_uniform() -> Work:
    """4,000 uniform samples of 256 rows from 20,000."""
    from lockstep.replay import VectorReplayBuffer

    return draws(fill(VectorReplayBuffer(20_000, ENVS)), 4_000)


def replay_prioritized() -> Work:
    """2,000 samples of 256 rows by priority from 20,000, each followed by new priorities."""
    from lockstep.replay import PrioritizedVectorReplayBuffer

    buffer = fill(PrioritizedVectorReplayBuffer(20_000, ENVS, alpha=0.6, beta=0.4))

    def work() -> None:
        for _ in range(2_000):
            batch = buffer.sample(256)
            buffer.update_weight(batch["batch_indexes"], np.abs(batch["rewards"]) + 0.1)

    return work


def replay_n_step() -> Work:
    """3,000 samples of 256 rows with sums over three steps."""
    from lockstep.replay import VectorReplayBuffer

    return draws(fill(VectorReplayBuffer(20_000, ENVS, n_step=3)), 3_000)


def replay_stacks() -> Work:
    """2,000 samples of 256 stacks of four observations, each stored once."""
    from lockstep.replay import VectorReplayBuffer

    return draws(fill(VectorReplayBuffer(20_000, ENVS, stack_num=4, ignore_obs_next=True)), 2_000)


def replay_sequences() -> Work:
    """2,000 samples of 32 sequences of up to 20 rows."""
    from lockstep.replay import VectorReplayBuffer

    return draws(fill(VectorReplayBuffer(20_000, ENVS, sequence_length=20)), 2_000, rows=32)


def distance(achieved: Any, desired: Any, info: Any) -> Any:
    """Return the reward of reaching a goal: 0 nearby, otherwise -1."""
    return -(np.abs(achieved - desired).max(-1) > 0.1).astype(np.float32)


def replay_hindsight() -> Work:
    """500 samples of 256 rows, four of five with a goal that was reached later."""
    from lockstep.replay import HERVectorReplayBuffer

    return draws(fill(HERVectorReplayBuffer(20_000, ENVS, compute_reward=distance), goals=True), 500)


def replay_agents() -> Work:
    """2,000 samples of 256 rows of each of two modules, which act for three agents."""
    from lockstep.replay import MultiAgentReplayBuffer, VectorReplayBuffer

    agents = {"first": ["agent_0"], "others": ["agent_1", "agent_2"]}
    made = MultiAgentReplayBuffer(agents, ENVS, lambda module_id, number: VectorReplayBuffer(20_000, number))
    config = dqn_config().environment(Crowd)
    filling = config.multi_agent(policies=["first", "others"], policy_mapping_fn=module_of).build_collector()
    filling.buffer = made
    filling.collect(n_step=4_000)
    return draws(made, 2_000)


# -- data and import ---


def data() -> Work:
    """20 rounds of concatenation, slices, splits by episode, and an episode grown step by step."""
    from lockstep import SampleBatch
    from lockstep.data import SingleAgentEpisode, concat_samples

    columns = {f"c{k}": np.zeros((200, 4), np.float32) for k in range(9)}
    fragments = [SampleBatch(columns | {"eps_id": np.full(200, i)}) for i in range(100)]

    def work() -> None:
        for _ in range(20):
            whole = concat_samples(fragments)
            for start in range(0, 20_000, 100):
                whole[start : start + 100]
            whole.split_by_episode()
            episode = SingleAgentEpisode()
            episode.add_env_reset(np.zeros(4, np.float32))
            for _ in range(200):
                episode.add_env_step(np.zeros(4, np.float32), 1, 1.0)
            episode.to_numpy()

    return work


def importing() -> Work:
    """`import lockstep` in a process that has imported numpy, torch and gymnasium."""

    def work() -> None:
        child = os.fork()
        if child == 0:
            import lockstep  # noqa: F401

            os._exit(0)
        if os.waitpid(child, 0)[1]:
            raise RuntimeError("import lockstep failed")

    return work


WORKS: dict[str, Callable[[], Work]] = {
    "ppo": ppo,
    "ppo compiled": ppo_compiled,
    "dqn": dqn,
    "sac": sac,
    "tensors, ppo": tensors_ppo,
    "tensors, sac": tensors_sac,
    "tensors, dqn": tensors_dqn,
    "agents, ppo": agents_ppo,
    "agents, self-play": agents_self_play,
    "collector": collector,
    "collector, rollout": collector_rollout,
    "collector, episodes": collector_episodes,
    "collector, agents": collector_agents,
    "collector, ready": collector_ready,
    "collector, runners": collector_runners,
    "collector, runners on Ray": collector_runners_on_ray,
    "collector, tensors": collector_tensors,
    "learner, episodes": learner_episodes,
    "learner, batch": learner_batch,
    "learners on Ray": learners_on_ray,
    "replay, uniform": replay_uniform,
    "replay, prioritized": replay_prioritized,
    "replay, n-step": replay_n_step,
    "replay, stacks": replay_stacks,
    "replay, sequences": replay_sequences,
    "replay, hindsight": replay_hindsight,
    "replay, agents": replay_agents,
    "data": data,
    "import": importing,
}
"""Works by name, in the order of the table."""
