"""What is in the jar: how each case was written, and what continues from its files.

`write(folder)` is for the old code only. `go_on(folder)` is for every code: it loads the files, continues with them,
and returns arrays by name, which the stored numbers are compared with.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from past_parts import (
    Choice,
    CountEpisodes,
    Duel,
    Guests,
    HalfObs,
    OwnEncoder,
    Picture,
    SmallNovelty,
    Target,
    Turns,
    half_way,
    main_module,
    module_of,
    remembering,
)

import lockstep_sb3 as sb3
from lockstep import ALGORITHMS, Collector, OnpolicyTrainer, Policy, SampleBatch, get_config, load_policy
from lockstep.algorithms.ppo import PPOLearner
from lockstep.data import MultiAgentBatch, OfflineDataset, SingleAgentEpisode, write_rows
from lockstep.export import load_export
from lockstep.learner import LearnerGroup
from lockstep.modules import MultiRLModule, MultiRLModuleSpec, RLModule, RLModuleSpec
from lockstep.modules.encoders import FlatFeatures
from lockstep.replay import Hindsight, ReplayBuffer
from lockstep.trainer import Callback, SelfPlay
from lockstep.trainer.run import prepare_resume, prepare_run, resume
from lockstep_sb3.common.vec_env import DummyVecEnv, VecNormalize

Numbers = dict[str, np.ndarray]
SINGLE, DOUBLE = 1e-5, 1e-10
"""largest difference from the stored numbers, of float32 and of float64"""

FIRST = "b3639942"
"""version 0.2, which wrote most of the jar"""
REDRAWN = "2dd00802"
"""the last revision before the redraw of issue 47: its files have signatures of what must be trusted, and attempts"""


@dataclass(frozen=True)
class Case:
    """One archive of the jar."""

    write: Callable[[Path], None]
    go_on: Callable[[Path], Numbers]
    tolerance: float = SINGLE
    trusts: bool = False
    """the files name a function, or hold what torch evaluates: `LOCKSTEP_TRUST=1` is needed (contract/trust.md)"""
    starts_ray: bool = False
    revision: str = FIRST
    """the revision that wrote the archive"""


# -- runs ---


class Interrupt(Callback):
    """Ends a run in the middle of an epoch, or at its end, as Ctrl-C does."""

    def __init__(self, step: int, at_epoch_end: bool) -> None:
        self.step = step
        self.at_epoch_end = at_epoch_end

    def on_update_end(self, event: Any) -> None:
        if not self.at_epoch_end and (event.env_step or event.gradient_step) >= self.step:
            raise KeyboardInterrupt

    def on_epoch_end(self, event: Any) -> None:
        if self.at_epoch_end and event.env_step >= self.step:
            raise KeyboardInterrupt


def small(algorithm: str, env: Any, **sections: dict[str, Any]) -> Any:
    """Return a configuration with networks of 8 units, 32 steps an update, and three epochs of 64 steps."""
    config = get_config(algorithm)
    options = sections.pop("environment", {})
    config.environment(env, **options)
    config.env_runners(num_envs_per_env_runner=2)
    config.rl_module(model_config={"hiddens": (8,), "critic_hiddens": (8,)})
    config.training(train_batch_size=32 if not config.is_off_policy else 8)
    if config.is_off_policy:
        config.env_runners(rollout_fragment_length=8)
        config.replay(capacity=96, learning_starts=32, update_per_step=0.25)
    config.evaluation(evaluation_duration=2, evaluation_num_envs=2)
    config.reporting(total_steps=192, steps_per_epoch=64)
    config.checkpointing(num_to_keep=1)
    config.debugging(seed=3)
    for name, given in sections.items():
        getattr(config, name)(**given)
    return config


def run_case(
    make_config: Callable[[Path], Any],
    *,
    interrupt_at: int = 96,
    at_epoch_end: bool = False,
    callbacks: Callable[[], list[Callback]] = list,
    **options: Any,
) -> Case:
    """Return the case of a run that was interrupted in the middle of its second epoch and is resumed to its end."""

    def write(folder: Path) -> None:
        config = make_config(folder)
        run = prepare_run(config, folder, callbacks=[*callbacks(), Interrupt(interrupt_at, at_epoch_end)])
        run.finish()
        (run.folder.path / "curve.png").unlink(missing_ok=True)
        run.folder.path.rename(folder / "run")

    def go_on(folder: Path) -> Numbers:
        # Not `resume`, which draws a curve at the end: that would take half of the time of all cases.
        run = prepare_resume(folder / "run").build(callbacks())
        trainer = run.trainer
        try:
            info = trainer.run()
            trainer.policy.bring_home()
        finally:
            trainer.close()
        numbers = weights_of(trainer.policy)
        for epoch in info.history:
            for kind, stats in {"train": epoch.train_collect_stat, "test": epoch.test_collect_stat}.items():
                if stats is not None:
                    numbers[f"epoch {epoch.epoch}/{kind} returns"] = np.asarray(stats.returns, np.float64)
                    numbers[f"epoch {epoch.epoch}/{kind} lengths"] = np.asarray(stats.lens)
        numbers["steps"] = np.array([info.train_step or 0, info.gradient_step])
        return numbers

    return Case(write, go_on, **options)


def weights_of(policy: Policy) -> Numbers:
    """Return the weights of all modules by name."""
    found = policy.learner_group.get_weights()
    return {f"{module_id}/{name}": np.array(array) for module_id, part in found.items() for name, array in part.items()}


def ppo_lstm(folder: Path) -> Any:
    config = small("ppo", "CartPole-v1", environment={"normalize_observations": True, "normalize_rewards": True})
    config.rl_module(model_config={"hiddens": (8,), "recurrent": "lstm", "recurrent_size": 4, "max_seq_len": 4})
    config.callbacks([CountEpisodes])
    return config.training(minibatch_size=4, num_epochs=2, lr=[[0, 1e-3], [192, 1e-4]])


def ppo_double(folder: Path, **learners: Any) -> Any:
    config = small("ppo", "CartPole-v1", environment={"normalize_observations": True}, learners=learners)
    config.framework(dtype="float64").env_runners(num_envs_per_env_runner=4)
    return config.training(minibatch_size=16, num_epochs=2)


def ppo_own_parts(folder: Path) -> Any:
    """A learner, an encoder, an optimizer and a connector, each named by its class."""
    config = small("ppo", Target)
    config.env_runners(env_to_module_connector=HalfObs, exploration="gsde")
    config.rl_module(model_config={"hiddens": (8,), "encoder": OwnEncoder, "encoder_config": {"size": 6}})
    config.training(learner_class=PPOLearner, optimizer=torch.optim.RMSprop, optimizer_kwargs={"alpha": 0.9})
    return config.training(minibatch_size=16, num_epochs=1)


def ppo_remembering(folder: Path) -> Any:
    """Connectors with a memory, made by a function."""
    config = small("ppo", "CartPole-v1").env_runners(env_to_module_connector=remembering)
    return config.training(minibatch_size=16, num_epochs=1)


def a2c_novelty(folder: Path) -> Any:
    return small("a2c", "CartPole-v1").training(intrinsic_reward=SmallNovelty)


def ppo_attention(folder: Path) -> Any:
    config = small("ppo", Choice)
    attention = {"size": 4, "num_heads": 2, "memory": 3, "hidden_size": 4, "num_layers": 1}
    config.rl_module(model_config={"hiddens": (8,), "attention": attention, "max_seq_len": 4})
    return config.training(minibatch_size=4, num_epochs=1)


def a2c_frames(folder: Path) -> Any:
    config = small("a2c", Picture, environment={"frame_stack": 3})
    return config.rl_module(model_config={"conv_filters": ((2, 4, 2),), "image_hiddens": (8,)})


def dqn_priorities(folder: Path) -> Any:
    config = small("dqn", "CartPole-v1", environment={"normalize_observations": True})
    config.replay(prioritized=True, n_step=3, beta=[[0, 0.4], [192, 1.0]])
    config.rl_module(model_config={"hiddens": (8,), "encoder": FlatFeatures})
    return config.training(target_update_interval=5, grad_clip=10.0)


def dqn_memory(folder: Path) -> Any:
    """Sequences with burn-in from files, whose next observations are stored once."""
    config = small("dqn", "CartPole-v1")
    config.replay(storage="memmap", ignore_obs_next=True, sequence_length=4, burn_in=2)
    config.rl_module(model_config={"hiddens": (8,), "recurrent": "gru", "recurrent_size": 4})
    return config.training(target_update_interval=5)


def dqn_frames(folder: Path) -> Any:
    """Frame stacks that the buffer makes."""
    config = small("dqn", Picture, environment={"frame_stack": 3})
    config.rl_module(model_config={"conv_filters": ((2, 4, 2),), "image_hiddens": (8,)})
    return config.replay(ignore_obs_next=True).env_runners(exploration="noisy")


def dqn_hindsight(folder: Path) -> Any:
    config = small("dqn", "lockstep/BitFlipping-v0", environment={"env_config": {"num_bits": 4}})
    return config.replay(her=True)


def sac(folder: Path) -> Any:
    return small("sac", "Pendulum-v1", environment={"normalize_rewards": False}).replay(prioritized=True)


def td3_double(folder: Path) -> Any:
    config = small("td3", Target, framework={"dtype": "float64"})
    return config.env_runners(exploration="ou").replay(n_step=2)


def of_algorithm(name: str) -> Callable[[Path], Any]:
    """Return what makes the smallest run of an algorithm."""

    def make(folder: Path) -> Any:
        config = get_config(name)
        if config.is_offline:
            return offline(folder, name)
        config = small(name, "CartPole-v1" if name in DISCRETE else Target)
        if name in ("c51", "rainbow"):
            config.training(num_atoms=5, v_min=0.0, v_max=40.0)
        if name in ("qrdqn", "iqn"):
            config.training(num_quantiles=5)
        if name == "pqn":
            config.training(minibatch_size=16)
        return config

    return make


DISCRETE = ("appo", "c51", "dqn", "impala", "iqn", "pqn", "qrdqn", "rainbow", "reinforce", "trpo")


def offline(folder: Path, name: str) -> Any:
    """The data lie beside the run, and are named from the working directory."""
    config = get_config(name)
    data = transitions(continuous=True)
    if name == "marwil":  # rewards count as the returns of whole episodes
        data["discounts"] = np.zeros(len(data), np.float32)
    write_rows(folder / "data.npy", data)
    config.environment(Target).debugging(seed=3)
    config.rl_module(model_config={"hiddens": (8,), "critic_hiddens": (8,)})
    config.offline_data(input_="data.npy").training(train_batch_size=8)
    config.evaluation(evaluation_duration=2, evaluation_num_envs=2).checkpointing(num_to_keep=1)
    return config.reporting(total_steps=24, steps_per_epoch=8)


def transitions(rows: int = 60, *, continuous: bool = False, seed: int = 0) -> SampleBatch:
    """Return made-up transitions of episodes of 6 steps in the spaces of `Target`, or with two actions."""
    rng = np.random.default_rng(seed)
    obs = rng.uniform(-1, 1, (rows + 1, 2)).astype(np.float32)
    actions = rng.uniform(-1, 1, (rows, 1)).astype(np.float32) if continuous else rng.integers(2, size=rows)
    ends = np.arange(rows) % 6 == 5
    return SampleBatch(
        obs=obs[:-1],
        actions=actions,
        rewards=rng.normal(size=rows).astype(np.float32),
        new_obs=obs[1:],
        terminateds=ends & (np.arange(rows) % 12 == 5),
        truncateds=ends & (np.arange(rows) % 12 != 5),
        eps_id=np.arange(rows) // 6,
    )


def guests(algorithm: str, **more: Any) -> Callable[[Path], Any]:
    def make(folder: Path) -> Any:
        config = small(algorithm, Guests, **more)
        config.multi_agent(policies=["first", "others"], policy_mapping_fn=module_of)
        if algorithm == "ppo":
            config.training(minibatch_size=8, num_epochs=2)
        return config

    return make


def duel(folder: Path) -> Any:
    config = small("ppo", Duel).multi_agent(policies=["main"], policy_mapping_fn=main_module)
    return config.training(minibatch_size=8, num_epochs=2, lr=3e-2)


def self_play() -> list[Callback]:
    return [SelfPlay("main", window=8, max_pool_size=2, draw="prioritized", win_rate_threshold=0.5)]


def tensors(algorithm: str, env: str, **replay: Any) -> Callable[[Path], Any]:
    def make(folder: Path) -> Any:
        config = small(algorithm, env, evaluation={"evaluation_duration": 1, "evaluation_num_envs": 1})
        config.env_runners(num_envs_per_env_runner=4)
        if config.is_off_policy:
            config.env_runners(rollout_fragment_length=4)
            config.replay(**replay)
        if algorithm == "ppo":
            config.training(minibatch_size=16, num_epochs=1)
        return config

    return make


def impala_waiting(folder: Path) -> Any:
    """Two env runners, whose fragments are one update behind: each checkpoint has some that wait."""
    config = small("impala", "CartPole-v1", environment={"normalize_observations": True})
    config.env_runners(num_env_runners=2, num_envs_per_env_runner=1, num_cpus_per_env_runner=0.5)
    return config.training(max_lag=1, fixed_lag=True)


def turns(folder: Path) -> Any:
    config = small("ppo", Turns).multi_agent(policies=["first", "others"], policy_mapping_fn=module_of)
    return config.training(minibatch_size=8, num_epochs=1)


def agents_overrides(folder: Path) -> Any:
    """Modules with training options of their own, one of which does not learn."""
    config = guests("ppo")(folder)
    overrides = {"first": {"lr": 1e-2, "optimizer": "rmsprop"}}
    config.rl_module(algorithm_config_overrides_per_module=overrides)
    return config.multi_agent(policies_to_train=["first"])


def runners(folder: Path) -> Any:
    """Two env runners in step."""
    config = small("ppo", "CartPole-v1", environment={"normalize_observations": True})
    config.env_runners(num_env_runners=2, num_envs_per_env_runner=1, num_cpus_per_env_runner=0.3)
    return config.training(minibatch_size=16, num_epochs=1)


def agents_runners(folder: Path) -> Any:
    """Two env runners of several agents, in step."""
    config = guests("ppo")(folder)
    return config.env_runners(num_env_runners=2, num_envs_per_env_runner=1, num_cpus_per_env_runner=0.3)


def agents_waiting(folder: Path) -> Any:
    """Two env runners of several agents, whose fragments are one update behind: each checkpoint has some that wait."""
    config = guests("impala")(folder)
    config.env_runners(num_env_runners=2, num_envs_per_env_runner=1, num_cpus_per_env_runner=0.5)
    return config.training(max_lag=1, fixed_lag=True)


def whole_episodes(folder: Path) -> Any:
    config = small("ppo", Target).env_runners(batch_mode="complete_episodes")
    return config.training(minibatch_size=16, num_epochs=1)


def processes(folder: Path) -> Any:
    """Environments in processes of their own."""
    config = small("ppo", Target).env_runners(vectorize_mode="async")
    return config.training(minibatch_size=16, num_epochs=1)


def dqn_novelty(folder: Path) -> Any:
    return small("dqn", "CartPole-v1").training(intrinsic_reward=SmallNovelty, target_update_interval=5)


COUNTED = ("epoch_end_due", "between_epochs", "in_epoch")
"""checkpoints in each state that an epoch can have: before its end was reported, after that, and within an epoch"""


class InterruptTested(Callback):
    """Ends a run as Ctrl-C does, in the middle of the second epoch, after the evaluation within it."""

    def on_run_start(self, event: Any) -> None:
        self.trainer = event.trainer

    def on_update_end(self, event: Any) -> None:
        if event.epoch == 2 and self.trainer.tested_in_train:
            raise KeyboardInterrupt


class EpochEnds(Callback):
    """Keeps which epochs were reported as ended, and at which step."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []

    def on_epoch_end(self, event: Any) -> None:
        self.seen.append((event.epoch, event.env_step))


def counting_trainer(save: Callable[..., object] | None = None, callbacks: Sequence[Callback] = ()) -> OnpolicyTrainer:
    """Return a trainer made by hand, whose training returns satisfy `stop_fn`, and whose short evaluations do not."""
    config = small("ppo", "CartPole-v1")
    policy = config.build_policy()
    return OnpolicyTrainer(
        policy,
        max_epoch=3,
        batch_size=16,
        train_collector=config.build_collector(policy),
        test_collector=Collector(policy, gym.make_vec("CartPole-v1", num_envs=2, max_episode_steps=5)),
        episode_per_test=2,
        step_per_epoch=128,
        step_per_collect=32,
        repeat_per_collect=1,
        seed=3,
        stop_fn=lambda score: score > 6,
        test_in_train=True,
        save_checkpoint_fn=save,
        callbacks=callbacks,
    )


def write_counters(folder: Path) -> None:
    due, between, within = (folder / name for name in COUNTED)
    paths = iter((due, within))
    trainer = counting_trainer(lambda *_: trainer.save_to_path(next(paths)), [InterruptTested()])
    next(trainer)
    trainer.save_to_path(between)
    assert next(trainer, None) is None
    assert trainer.stop_reason == "interrupted"
    assert trainer.tested_in_train


def load_counters(folder: Path) -> Numbers:
    """Each run is continued to its end. Its evaluations are counted: with the flag there is no second one in the epoch.

    The ends of epochs are listed: only the run that was saved before the end of the first was reported reports it.
    """
    numbers: Numbers = {}
    for name in COUNTED:
        ends = EpochEnds()
        trainer = counting_trainer(callbacks=[ends])
        trainer.restore_from_path(folder / name)
        numbers[f"{name}/restored"] = np.array([trainer.epoch, trainer.env_step, trainer.tested_in_train])
        info = trainer.run()
        counts = [trainer.epoch, info.train_step, info.train_episode, info.gradient_step, info.test_episode]
        numbers[f"{name}/counts"] = np.array(counts)
        numbers[f"{name}/reported"] = np.array(ends.seen)
        numbers |= {f"{name}/{key}": array for key, array in weights_of(trainer.policy).items()}
    return numbers


# -- policies, modules, learners ---


def policy_config(algorithm: str) -> Any:
    """Return a configuration with spaces in the place of an environment."""
    config = get_config(algorithm)
    two = spaces.Discrete(2)
    action_space = two if algorithm in DISCRETE or algorithm in ("ppo", "a2c") else Target.action_space
    config.environment(observation_space=Target.observation_space, action_space=action_space)
    config.rl_module(model_config={"hiddens": (8,), "critic_hiddens": (8,)})
    if algorithm in ("c51", "rainbow"):
        config.training(num_atoms=5, v_min=0.0, v_max=40.0)
    if algorithm in ("qrdqn", "iqn"):
        config.training(num_quantiles=5)
    return config.debugging(seed=4)


OBSERVATIONS = np.random.default_rng(7).uniform(-1, 1, (16, 2)).astype(np.float32)


def write_policies(folder: Path) -> None:
    for config in ALGORITHMS:
        policy_config(config.algorithm).build_policy().save_to_path(folder / config.algorithm)


def load_policies(folder: Path) -> Numbers:
    found: Numbers = {}
    for path in sorted(folder.iterdir()):
        policy = Policy.from_checkpoint(path)
        found[f"{path.name}/actions"] = np.asarray(policy.compute_actions(OBSERVATIONS))
        found |= {f"{path.name}/{name}": array for name, array in weights_of(policy).items()}
    return found


def write_central(folder: Path) -> None:
    """A policy whose critics saw all agents, in a column of their own beside the observations."""
    config = small("ppo", Guests, environment={"normalize_observations": True})
    config.multi_agent(policies=["main"], policy_mapping_fn=main_module, centralized_critic="observations")
    trainer = config.training(minibatch_size=8, num_epochs=2).build_trainer()
    trainer.run()
    trainer.policy.save_to_path(folder / "policy")


GUESTS = Guests.possible_agents


def guests_observations(rng: np.random.Generator) -> list[dict[str, np.ndarray]]:
    """Return what the policy of `policy_central` acts on: observations of each agent, without a central state."""
    return [{agent: rng.uniform(0, 5, 2).astype(np.float32) for agent in GUESTS} for _ in range(20)]


def load_central(folder: Path) -> Numbers:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        policy = Policy.from_checkpoint(folder / "policy")
    assert any("critic_space, as in version 0.2" in str(each.message) for each in caught)
    rng = np.random.default_rng(4)
    chosen = [policy.compute_actions(obs) for obs in guests_observations(rng)]
    numbers: Numbers = {"actions": np.array([[actions[agent] for agent in GUESTS] for actions in chosen])}
    episodes = []
    for _ in range(4):
        states = [{"critic_obs": rng.uniform(0, 5, 6).astype(np.float32)} for _ in range(9)]
        observations = list(rng.uniform(0, 5, (9, 2)).astype(np.float32))
        actions = list(rng.integers(2, size=8))
        rewards = list(rng.normal(size=8))
        episodes.append(
            SingleAgentEpisode(
                observations=observations,
                actions=actions,
                rewards=rewards,
                infos=states,
                terminated=True,
                module_id="main",
            )
        )
    policy.learner_group.update_from_episodes(episodes)
    return numbers | weights_of(policy)


def write_best(folder: Path) -> None:
    """A whole run, whose best policy is loaded."""
    config = small("ppo", Target, environment={"normalize_observations": True})
    run = prepare_run(config.training(minibatch_size=16, num_epochs=1), folder)
    run.finish()
    (run.folder.path / "curve.png").unlink(missing_ok=True)
    run.folder.path.rename(folder / "run")


def load_best(folder: Path) -> Numbers:
    policy = load_policy(folder / "run")
    result = resume(folder / "run", total_steps=256)
    return {
        "actions": policy.compute_actions(OBSERVATIONS),
        "single action": policy.compute_single_action(OBSERVATIONS[0]),
        **{f"longer/{name}": array for name, array in weights_of(result.policy).items()},
    }


def module_specs() -> dict[str, RLModuleSpec]:
    """Return a spec of each default class of networks."""
    specs = {}
    for config in ALGORITHMS:
        group = policy_config(config.algorithm).build_policy().learner_group
        specs[config.algorithm] = group.learner.module["default_policy"].spec()
    return specs


def write_modules(folder: Path) -> None:
    specs = module_specs()
    for name, spec in specs.items():
        spec.build(seed=5).save_to_path(folder / "single" / name)
    several = {name: specs[name] for name in ("ppo", "sac")}
    MultiRLModuleSpec(several).build(seeds={"ppo": 6, "sac": 7}).save_to_path(folder / "several")


def load_modules(folder: Path) -> Numbers:
    modules = {path.name: RLModule.from_checkpoint(path) for path in sorted((folder / "single").iterdir())}
    modules |= {f"several/{name}": part for name, part in MultiRLModule.from_checkpoint(folder / "several").items()}
    batch = {"obs": torch.as_tensor(OBSERVATIONS)}
    found: Numbers = {}
    for name, module in modules.items():
        with torch.no_grad():
            outputs = module.forward_inference(batch)
        for key, value in outputs.items():
            if isinstance(value, torch.Tensor):
                found[f"{name}/{key}"] = value.numpy()
        found[f"{name}/weights"] = module.get_flat_weights()
    return found


LEARNERS = {"ppo": "adam", "dqn": "adamw", "sac": "adam", "a2c": "rmsprop"}


def write_learners(folder: Path) -> None:
    for name, optimizer in LEARNERS.items():
        config = policy_config(name).training(optimizer=optimizer, train_batch_size=16)
        group = config.framework(dtype="float64").build_policy().learner_group
        learn(group, name, 3)
        group.save_to_path(folder / name)


def load_learners(folder: Path) -> Numbers:
    found: Numbers = {}
    for name in LEARNERS:
        group = LearnerGroup.from_checkpoint(folder / name)
        learn(group, name, 3)
        for module_id, part in group.get_weights().items():
            found |= {f"{name}/{module_id}/{key}": np.array(array) for key, array in part.items()}
    return found


SHARED = ("kept", "added")
"""modules of the learner whose modules came and went"""


def write_several(folder: Path) -> None:
    """A learner with a module that was added, after one was removed."""
    config = policy_config("dqn").multi_agent(policies=["kept", "gone"], policy_mapping_fn=module_of)
    group = config.build_policy().learner_group
    learn_several(group, ("kept", "gone"), 2)
    spec = group.learner.module["kept"].spec()
    group.add_module(module_id="added", module_spec=spec, config_overrides={"lr": 1e-2})
    group.remove_module("gone")
    learn_several(group, SHARED, 2)
    group.save_to_path(folder / "learner")


def load_several(folder: Path) -> Numbers:
    group = LearnerGroup.from_checkpoint(folder / "learner")
    learn_several(group, SHARED, 3)
    return {f"{mid}/{key}": np.array(array) for mid, part in group.get_weights().items() for key, array in part.items()}


def learn_several(group: LearnerGroup, modules: tuple[str, ...], updates: int) -> None:
    """Take gradient steps on made-up transitions of each module."""
    for seed in range(updates):
        batches = {}
        for number, module_id in enumerate(modules):
            batches[module_id] = transitions(16, seed=10 * seed + number)
            del batches[module_id]["eps_id"]
        group.update_from_batch(MultiAgentBatch(batches, env_steps=16))


def learn(group: LearnerGroup, name: str, updates: int) -> None:
    """Take gradient steps on made-up transitions, or on rows as they come out of a rollout."""
    for seed in range(updates):
        batch = transitions(16, continuous=name == "sac", seed=seed)
        del batch["eps_id"]
        if name in ("ppo", "a2c"):
            rng = np.random.default_rng(seed)
            batch = SampleBatch(
                obs=batch["obs"],
                actions=batch["actions"],
                action_logp=np.log(rng.uniform(0.2, 0.6, 16)),
                advantages=rng.normal(size=16),
                value_targets=rng.normal(size=16),
            )
        group.update_from_batch(batch)


# -- data ---

BUFFERS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "prioritized": {"priorities": {"alpha": 0.7, "beta": [[0, 0.4], [99, 1.0]]}},
    "n_step": {"n_step": 3, "ignore_obs_next": True},
    "stacked": {"stack_num": 3, "priorities": {}, "ignore_obs_next": True},
}


def fill(buffer: ReplayBuffer, steps: int, seed: int) -> None:
    """Add vector steps of as many environments as the buffer has parts."""
    rng = np.random.default_rng(seed)
    number = buffer.buffer_num
    obs = rng.normal(size=(steps + 1, number, 2)).astype(np.float32)
    for t in range(steps):
        ends = rng.random((2, number)) < 0.1
        buffer.add(
            {
                "obs": obs[t],
                "actions": rng.integers(3, size=number),
                "rewards": rng.normal(size=number).astype(np.float32),
                "terminateds": ends[0],
                "truncateds": ends[1] & ~ends[0],
                "new_obs": obs[t + 1],
            }
        )


def fill_goals(buffer: ReplayBuffer, steps: int, seed: int) -> None:
    """Add steps towards goals on a line."""
    rng = np.random.default_rng(seed)
    number = buffer.buffer_num
    places = rng.integers(0, 4, (steps + 1, number, 1)).astype(np.float32)

    def seen(t: int) -> dict[str, np.ndarray]:
        return {"observation": places[t], "achieved_goal": places[t], "desired_goal": np.full_like(places[t], 9.0)}

    for t in range(steps):
        buffer.add(
            {
                "obs": seen(t),
                "actions": rng.integers(3, size=number),
                "rewards": np.full(number, -1.0, np.float32),
                "terminateds": np.zeros(number, bool),
                "truncateds": np.full(number, t % 5 == 4),
                "new_obs": seen(t + 1),
            }
        )


def write_buffers(folder: Path) -> None:
    for name, options in BUFFERS.items():
        buffer = ReplayBuffer(24, buffer_num=2, seed=5, **options)
        fill(buffer, 15, seed=1)
        drawn = buffer.sample(4)
        if buffer.priorities is not None:
            buffer.update_weight(drawn["batch_indexes"], np.arange(1.0, 5.0))
        buffer.save(folder / name)
    goals = ReplayBuffer(24, buffer_num=2, seed=5, hindsight=Hindsight(half_way, future_k=1.0))
    fill_goals(goals, 15, seed=1)
    goals.save(folder / "goals")


def load_buffers(folder: Path) -> Numbers:
    found: Numbers = {}
    for name in (*BUFFERS, "goals"):
        more = {"hindsight": Hindsight(half_way, future_k=1.0)} if name == "goals" else {}
        buffer = ReplayBuffer.load(folder / name, **more)
        (fill_goals if name == "goals" else fill)(buffer, 4, seed=2)
        for draw in range(2):
            batch = buffer.sample(8)
            found |= {f"{name}/{draw}/{key}": leaf for key, leaf in leaves_of(batch)}
            if buffer.priorities is not None:
                buffer.update_weight(batch["batch_indexes"], np.arange(8.0) + 0.5)
        found[f"{name}/order"] = buffer.permutation()
    return found


def leaves_of(batch: Any) -> list[tuple[str, np.ndarray]]:
    """Return the columns of a batch that are numbers, those of a Dict by name."""
    found = []
    for key, column in batch.items():
        parts = {f"{key}/{name}": part for name, part in column.items()} if isinstance(column, dict) else {key: column}
        found += [(name, np.asarray(part)) for name, part in parts.items() if np.asarray(part).dtype.kind in "biuf"]
    return found


def recorded() -> SampleBatch:
    """Return columns of several kinds: nested, texts, bytes and objects."""
    batch = transitions(40)
    batch["seen"] = {"place": batch["obs"][:, :1].copy(), "kind": np.arange(40, dtype=np.uint8)}
    batch["name"] = np.array([f"episode {row // 6}" for row in range(40)])
    batch["half"] = np.linspace(0, 1, 40).astype(np.float16)
    return batch


def write_data(folder: Path) -> None:
    batch = recorded()
    write_rows(folder / "data.npy", [batch[:25], batch[25:]])
    batch.to_npz(folder / "data.npz")
    batch.to_parquet(folder / "data.parquet")
    with_infos = batch[:6]
    with_infos["infos"] = [{"step": step, "from": (1, None)} for step in range(6)]
    with_infos.to_npz(folder / "infos.npz")


def load_data(folder: Path) -> Numbers:
    dataset = OfflineDataset(folder / "data.npy")
    drawn = next(iter(dataset.minibatches(8, seed=3)))
    batches = {
        "rows": dataset.take_rows(np.arange(40)),
        "drawn": drawn,
        "npz": SampleBatch.from_npz(folder / "data.npz"),
        "parquet": SampleBatch.from_parquet(folder / "data.parquet"),
    }
    for batch in batches.values():
        assert batch["name"][0].startswith("episode ")
    infos = SampleBatch.from_npz(folder / "infos.npz")["infos"]
    assert [dict(info) for info in infos] == [{"step": step, "from": (1, None)} for step in range(6)]
    return {f"{name}/{key}": leaf for name, batch in batches.items() for key, leaf in leaves_of(batch)}


# -- exports and the door of Stable-Baselines3 ---


def export_config() -> Any:
    config = policy_config("ppo").environment(normalize_observations=True)
    return config.rl_module(model_config={"hiddens": (8,), "recurrent": "lstm", "recurrent_size": 4})


def export_case(file_format: str, **options: Any) -> Case:
    def write(folder: Path) -> None:
        policy = export_config().build_policy()
        policy.export(folder / "exported", format=file_format)

    def go_on(folder: Path) -> Numbers:
        exported = load_export(folder / "exported")
        steps = [np.asarray(exported.compute_actions(OBSERVATIONS)) for _ in range(3)]
        policy = load_policy(folder / "exported")
        return {"actions": np.stack(steps), **weights_of(policy)}

    return Case(write, go_on, **options)


DOOR = {
    "ppo": (sb3.PPO, {"n_steps": 16, "batch_size": 16, "n_epochs": 1}),
    "sac": (sb3.SAC, {"buffer_size": 64, "learning_starts": 16, "batch_size": 8}),
}


def door_env() -> Any:
    return DummyVecEnv([Target, Target])


def write_door(folder: Path) -> None:
    normalised = VecNormalize(door_env())
    model = sb3.PPO("MlpPolicy", normalised, seed=1, policy_kwargs={"net_arch": [8]}, **DOOR["ppo"][1])
    model.learn(64).save(folder / "ppo")
    normalised.save(folder / "statistics.json")
    model = sb3.SAC("MlpPolicy", door_env(), seed=1, policy_kwargs={"net_arch": [8]}, **DOOR["sac"][1])
    model.learn(64).save(folder / "sac")
    model.save_replay_buffer(folder / "replay")


def load_door(folder: Path) -> Numbers:
    on = sb3.PPO.load(folder / "ppo", env=VecNormalize.load(folder / "statistics.json", door_env()))
    off = sb3.SAC.load(folder / "sac", env=door_env())
    off.load_replay_buffer(folder / "replay")
    found: Numbers = {}
    for name, model in {"ppo": on, "sac": off}.items():
        found[f"{name}/before"] = np.asarray(model.predict(OBSERVATIONS, deterministic=True)[0])
        model.learn(32, reset_num_timesteps=False)
        found[f"{name}/steps"] = np.array(model.num_timesteps)
        for key, value in model.lockstep.state_dict().items():
            part = "value" if "value" in key or "critic" in key else "policy"  # as the door of 0.2 named them
            found[f"{name}/{part}_net.{key}"] = value.numpy()
    return found


CASES: dict[str, Case] = {
    "run_ppo_lstm": run_case(ppo_lstm),
    "run_ppo_double": run_case(ppo_double, tolerance=DOUBLE),
    "run_ppo_own_parts": run_case(ppo_own_parts),
    "run_ppo_remembering": run_case(ppo_remembering, trusts=True),
    "run_ppo_attention": run_case(ppo_attention),
    "run_a2c_novelty": run_case(a2c_novelty),
    "run_a2c_frames": run_case(a2c_frames),
    "run_dqn_priorities": run_case(dqn_priorities),
    "run_dqn_memory": run_case(dqn_memory),
    "run_dqn_frames": run_case(dqn_frames),
    "run_dqn_hindsight": run_case(dqn_hindsight),
    "run_sac": run_case(sac),
    "run_td3_double": run_case(td3_double, tolerance=DOUBLE),
    **{
        f"run_{name}": run_case(of_algorithm(name))
        for name in ("appo", "c51", "crossq", "impala", "iqn", "pqn", "qrdqn", "rainbow", "reinforce", "tqc", "trpo")
    },
    **{f"run_{name}": run_case(of_algorithm(name), interrupt_at=12) for name in ("bc", "marwil", "td3_bc")},
    "run_agents_ppo": run_case(guests("ppo"), trusts=True),
    "run_agents_dqn": run_case(guests("dqn"), trusts=True),
    "run_agents_frames": run_case(guests("a2c", environment={"normalize_observations": True}), trusts=True),
    "run_self_play": run_case(duel, interrupt_at=128, at_epoch_end=True, callbacks=self_play, trusts=True),
    "run_tensor_ppo": run_case(tensors("ppo", "tensor/CartPole-v1")),
    "run_tensor_dqn": run_case(tensors("dqn", "tensor/CartPole-v1", prioritized=True, beta=[[0, 0.4], [192, 1.0]])),
    "run_tensor_sac": run_case(tensors("sac", "tensor/Pendulum-v1")),
    "run_waiting": run_case(impala_waiting, starts_ray=True),
    "run_two_learners": run_case(
        lambda folder: ppo_double(folder, num_learners=2, num_cpus_per_learner=0), tolerance=DOUBLE, starts_ray=True
    ),
    "run_agents_turns": run_case(turns, trusts=True),
    "run_agents_overrides": run_case(agents_overrides, trusts=True),
    "run_whole_episodes": run_case(whole_episodes),
    "run_processes": run_case(processes),
    "run_dqn_novelty": run_case(dqn_novelty),
    "run_runners": run_case(runners, starts_ray=True),
    "run_agents_runners": run_case(agents_runners, trusts=True, starts_ray=True, revision=REDRAWN),
    "run_agents_waiting": run_case(agents_waiting, trusts=True, starts_ray=True, revision=REDRAWN),
    "run_counters": Case(write_counters, load_counters, revision=REDRAWN),
    "learners_several": Case(write_several, load_several),
    "policies": Case(write_policies, load_policies),
    "policy_central": Case(write_central, load_central, trusts=True),
    "best_policy": Case(write_best, load_best),
    "modules": Case(write_modules, load_modules),
    "learners": Case(write_learners, load_learners, tolerance=DOUBLE),
    "buffers": Case(write_buffers, load_buffers),
    "data": Case(write_data, load_data),
    "export_onnx": export_case("onnx"),
    "export_torch": export_case("torch", trusts=True),
    "door": Case(write_door, load_door),
}
AGAIN = (
    "run_ppo_lstm",
    "run_ppo_remembering",
    "run_agents_dqn",
    "run_agents_frames",
    "run_self_play",
    "run_tensor_ppo",
    "run_tensor_dqn",
    "run_waiting",
    "run_two_learners",
    "buffers",
    "door",
    "export_torch",
)
"""cases that the last revision before the redraw wrote once more"""
CASES |= {f"{name}_{REDRAWN}": replace(CASES[name], revision=REDRAWN) for name in AGAIN}
