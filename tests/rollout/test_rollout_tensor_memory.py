"""Policies with a memory on the device of tensor environments: states of the host, resume, resets, learning."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces
from host_waits import NoWaits
from trained_weights import difference, steps

from lockstep import PPOConfig, get_config
from lockstep.data.trees import leaves
from lockstep.envs.tensor import TensorEnv
from lockstep.modules import RecurrentActorCriticModule, RLModuleSpec
from lockstep.rollout import TensorCollector

B, T = 6, 10
MODELS: dict[str, dict[str, Any]] = {
    "lstm": {"recurrent": "lstm"},
    "gru of the critic": {"recurrent": "gru", "memory_in": "critic"},
    "gru of the policy": {"recurrent": "gru", "memory_in": "policy"},
    "shared lstm, two layers": {"recurrent": "lstm", "memory_in": "shared", "recurrent_layers": 2},
    "attention": {"attention": {"memory": 4, "size": 8, "num_heads": 2}},
}
EACH_MODEL = pytest.mark.parametrize("name", MODELS)


def config_of(name: str, env: str = "tensor/CartPole-v1", algorithm: str = "ppo", **options: Any) -> Any:
    model = {"hiddens": (8,), "max_seq_len": 4, **MODELS[name]}
    if "recurrent" in model:
        model["recurrent_size"] = 8
    config = get_config(algorithm).environment(env, **options).rl_module(model_config=model)
    config.env_runners(num_envs_per_env_runner=B, rollout_fragment_length=T)
    config.training(train_batch_size=T * B, num_epochs=2).debugging(seed=3).framework(compile=False)
    return config.reporting(total_steps=10**6, steps_per_epoch=T * B).evaluation(evaluation_interval=0)


def trainer_of(name: str, limit: int = 7, **options: Any) -> Any:
    """Return a trainer on episodes of at most `limit` steps."""
    trainer = config_of(name, **options).build_trainer()
    assert type(trainer.train_collector) is TensorCollector
    trainer.train_collector.tensors.max_episode_length = limit
    return trainer


# -- acting ---


def filled_rows(state: dict[str, np.ndarray], key: str) -> np.ndarray:
    """Return a leaf of a state, with zeros where the memory of attention is not filled: these rows are not read."""
    leaf = state[key]
    if not key.endswith("memory"):
        return leaf
    size = leaf.shape[2]
    is_filled = np.arange(size) >= size - state[key.replace("memory", "length")]
    return np.where(is_filled[:, None, :, None], leaf, 0.0)


@EACH_MODEL
def test_states_and_actions_are_those_of_the_host(name):
    """Over collects of the same weights, of episodes that end within them; without exploration."""
    config = config_of(name)
    policy = config.build_policy()
    collector = config.build_collector(policy)
    collector.tensors.max_episode_length = 7
    collector.exploration_noise = False
    part = policy.acting["default_policy"]
    state = part.get_initial_state(B)
    initial = part.get_initial_state(B)
    for _ in range(3):
        collector.collect(n_step=T * B)
        rollout = collector.buffer
        for t in range(T):
            starts = rollout.starts[t].numpy()
            for key, leaf in state.items():
                leaf[starts] = initial[key][starts]
            actions, state = part.act_with_state(rollout.obs[t].numpy(), None, state)
            assert np.array_equal(actions, rollout.actions[t].numpy())
        found = {key: leaf.numpy().copy() for key, leaf in collector.stepper._memory.state.items()}
        for key in found:
            np.testing.assert_allclose(filled_rows(found, key), filled_rows(state, key), atol=1e-5)
        state = found
        assert 0 < rollout.starts.sum() < T * B


def test_a_reset_begins_all_states_anew():
    trainer = steps(trainer_of("lstm"), 1)
    memory = trainer.train_collector.stepper._memory
    assert all(leaf.any() for leaf in memory.state.values())
    assert not memory.begins.all()
    trainer.train_collector.reset()
    assert memory.begins.all()
    next(trainer)
    assert trainer.buffer.starts[0].all()


def test_starts_follow_the_ends_of_episodes():
    trainer = trainer_of("gru of the policy")
    next(trainer)
    rollout = trainer.buffer
    ended = rollout.cuts[-1].clone()
    next(trainer)
    assert torch.equal(rollout.starts[1:], rollout.cuts[:-1])
    assert torch.equal(rollout.starts[0], ended)


# -- runs ---


@EACH_MODEL
def test_a_resumed_run_has_the_bits_of_one_that_never_stopped(name, tmp_path):
    whole = steps(trainer_of(name), 5)
    half = steps(trainer_of(name), 3)
    half.save_to_path(tmp_path / "half")
    again = trainer_of(name)
    again.restore_from_path(tmp_path / "half")
    memories = [trainer.train_collector.stepper._memory for trainer in (half, again)]
    assert all(map(torch.equal, memories[0].state.values(), memories[1].state.values()))
    assert torch.equal(memories[0].begins, memories[1].begins)
    assert difference(whole, steps(again, 2)) == 0.0


@pytest.mark.parametrize("algorithm", ["ppo", "a2c", "impala", "appo"])
def test_a_collect_with_memory_waits_for_nothing_and_keeps_addresses(algorithm):
    collector = steps(trainer_of("lstm", algorithm=algorithm), 2).train_collector
    stepper = collector.stepper
    captured = stepper.captured(explores=True)

    def addresses() -> list[int]:
        rollout = stepper.buffer
        tensors = (stepper._memory.state, stepper._memory.begins, rollout.state_in, rollout.starts)
        return [leaf.data_ptr() for leaf in leaves(tensors)]

    before = addresses()
    with NoWaits():
        captured.function()
    collector.reset()
    assert stepper.captured(explores=True) is captured
    assert addresses() == before


@EACH_MODEL
def test_normalised_observations_and_masks_go_with_a_memory(name):
    trainer = trainer_of(name, normalize_observations=True, normalize_rewards=True)
    steps(trainer, 2)
    connector = trainer.policy.learner_group.learner.connectors["default_policy"].obs.connectors[0]
    assert connector.moments[0].count == 2 * T * B


def test_a_memory_explores_with_gsde_on_the_device():
    config = config_of("lstm", "tensor/Pendulum-v1")
    trainer = config.env_runners(exploration="gsde", exploration_config={"sample_freq": 3}).build_trainer()
    assert type(trainer.train_collector) is TensorCollector
    steps(trainer, 2)
    assert trainer.gradient_step > 0


def test_an_update_that_would_be_compiled_is_eager_with_the_same_bits():
    """As on the host: memories are not compiled, and a warning says so."""
    eager = steps(trainer_of("lstm"), 2)
    trainer = config_of("lstm").framework(compile=True).build_trainer()
    trainer.train_collector.tensors.max_episode_length = 7
    with pytest.warns(UserWarning, match="recurrent layers are not compiled"):
        steps(trainer, 2)
    assert difference(eager, trainer) == 0.0


def test_sequences_that_do_not_fill_a_minibatch_are_counted():
    """Three parts of 4, 4 and 2 steps; 18 sequences make four minibatches of 4."""
    trainer = config_of("lstm").training(minibatch_size=4, num_epochs=1).build_trainer()
    next(trainer)
    assert trainer.gradient_step == 4
    assert trainer.buffer.num_bytes > 0
    learner = trainer.policy.learner_group.learner
    assert learner.lifetime["env_steps"] == T * B
    assert learner.lifetime["default_policy/rows"] == round(16 / 18 * T * B)


# -- refusals ---


class OwnMemory(RecurrentActorCriticModule):
    """Computes in its own way, in which nothing is reset."""

    def forward_train(self, batch: Any) -> Any:
        return super().forward_train({name: column for name, column in batch.items() if name != "begins"})


def test_a_network_that_does_not_reset_its_memory_is_refused_by_name():
    config = config_of("lstm").rl_module(rl_module_spec=RLModuleSpec(OwnMemory))
    with pytest.raises(ValueError, match=r"rl_module\(rl_module_spec=...\): .* reads_begins"):
        config.build_collector()
    policy = config.build_policy()
    with pytest.raises(ValueError, match="OwnMemory has a memory"):
        TensorCollector(policy, config.make_envs(B), T)


# -- learning ---


class Recall(TensorEnv):
    """Shows a cue in the first step. In the last of `length` steps the action that equals it is rewarded."""

    length: ClassVar[int] = 5
    num_draws = 1
    time_limit = 100
    single_action_space = spaces.Discrete(2)
    single_observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def make_state(self) -> Any:
        zeros = torch.zeros(self.num_envs, device=self.device)
        return {"cue": zeros.long(), "t": zeros}

    def begin(self, draws: Any) -> Any:
        return {"cue": (draws[:, 0] < 0.5).long(), "t": torch.zeros_like(draws[:, 0])}

    def observe(self, state: Any) -> Any:
        shown = torch.where(state["t"] == 0, 2.0 * state["cue"] - 1.0, 0.0)
        return torch.stack([shown, state["t"] / self.length], 1)

    def advance(self, state: Any, actions: Any, draws: Any) -> Any:
        t = state["t"] + 1
        is_last = t == self.length
        rewards = (is_last & (actions == state["cue"])).float()
        return {"cue": state["cue"], "t": t}, rewards, is_last


def return_of_recall(model: dict[str, Any]) -> float:
    """Return the mean return after training; episodes begin within sequences."""
    config = PPOConfig().environment(Recall(32)).rl_module(model_config={"hiddens": (32,), "max_seq_len": 8, **model})
    config.env_runners(num_envs_per_env_runner=32, rollout_fragment_length=16).debugging(seed=1)
    config.training(train_batch_size=512, minibatch_size=16 if model else 128, num_epochs=4, lr=3e-3)
    config.reporting(total_steps=512 * 60, steps_per_epoch=512 * 10).evaluation(evaluation_interval=0)
    returns = [stats.train_collect_stat.returns_stat.mean for _, stats, _ in config.build_trainer()]
    return float(returns[-1])


@pytest.mark.long
@pytest.mark.parametrize("name", ["lstm", "gru of the policy", "attention"])
def test_a_cue_is_remembered_on_the_device(name):
    assert return_of_recall(MODELS[name]) > 0.85


@pytest.mark.long
def test_without_memory_the_cue_is_guessed():
    assert return_of_recall({}) < 0.7
