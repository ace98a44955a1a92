"""A replay buffer knows whose actions it holds: what leaves it and what comes into it is the environment's."""

import gymnasium as gym
import numpy as np
import pytest
from agent_games import BitGame, game_config
from gymnasium import spaces
from parts import one_in
from space_envs import BOX, SpaceEnv

from lockstep import (
    AsyncCollector,
    BCConfig,
    Collector,
    CQLConfig,
    DQNConfig,
    OfflineTrainer,
    OffpolicyTrainer,
    SACConfig,
    TD3Config,
)
from lockstep.policy.offline_data import offline_source
from lockstep.replay import ReplayBuffer, VectorReplayBuffer
from lockstep.rollout.errors import MalformedBufferError

UNEVEN = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([4.0, 0.5], np.float32))
CASES = {
    "SAC, a Box": (SACConfig, UNEVEN),
    "TD3, a Box of two dimensions": (TD3Config, spaces.Box(-3.0, 5.0, (2, 2), np.float32)),
    "DQN, Discrete from 3": (DQNConfig, spaces.Discrete(3, start=3)),
    "SAC, Discrete": (SACConfig, spaces.Discrete(3)),
}
SMALL = {"model_config": {"hiddens": (4,)}}


class Taking(SpaceEnv):
    """Keeps the actions that it was given."""

    def __init__(self, action_space):
        super().__init__(BOX, action_space)
        self.taken = []

    def step(self, action):
        self.taken.append(np.array(action))
        return super().step(action)


def policy_of(kind, action_space, **environment):
    spaces_of = {"observation_space": BOX, "action_space": action_space}
    return kind().environment(**spaces_of, **environment).rl_module(**SMALL).build_policy()


def collected(kind, action_space, rows=12, random=False):
    """A policy, its buffer, and the actions that the environment was given."""
    policy, env = policy_of(kind, action_space), Taking(action_space)
    collector = Collector(policy, env, ReplayBuffer(rows), exploration_noise=True)
    collector.collect(n_step=rows, random=random)
    return policy, collector.buffer, np.stack(env.taken)


@pytest.mark.parametrize("random", one_in(2, [False, True]))
@pytest.mark.parametrize("case", CASES)
def test_a_collectors_buffer_holds_the_actions_that_the_environment_took(case, random):
    _, buffer, taken = collected(*CASES[case], random=random)
    batch = buffer.to_batch()
    assert batch["actions"].shape == taken.shape
    np.testing.assert_allclose(batch["actions"], taken, rtol=1e-6)


@pytest.mark.parametrize("how", one_in(2, ["npz", "parquet", "minari", "batch", "save"]))
@pytest.mark.parametrize("case", CASES)
def test_data_written_and_read_again_keep_the_learned_actions(case, how, tmp_path, monkeypatch):
    kind, action_space = CASES[case]
    policy, buffer, _ = collected(kind, action_space)
    if how == "minari":
        pytest.importorskip("minari")
        monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
        buffer.to_minari("lockstep/taken-v0", BOX, action_space)
        given = "lockstep/taken-v0"
    elif how == "batch":
        given = buffer.to_batch()
    elif how == "save":
        given = str(buffer.save(tmp_path / "buffer"))
    else:
        given = str(buffer.export(tmp_path / f"rows.{how}"))
    source = offline_source(given, policy)
    assert source.action_form == policy.action_form == buffer.action_form
    np.testing.assert_allclose(source.all()["actions"], buffer.all()["actions"], atol=1e-6)


def test_sacs_data_are_refused_by_algorithms_of_other_actions():
    _, buffer, taken = collected(SACConfig, UNEVEN)
    policy = policy_of(BCConfig, UNEVEN)
    message = r"holds actions rescaled to \[-1, 1\], for Box.*from the environment's actions; give buffer.to_batch"
    with pytest.raises(MalformedBufferError, match=message):
        OfflineTrainer(policy, buffer=buffer, max_epoch=1, batch_size=4, step_per_epoch=2)
    trainer = OfflineTrainer(policy, buffer=buffer.to_batch(), max_epoch=1, batch_size=4, step_per_epoch=2)
    np.testing.assert_allclose(trainer.buffer.all()["actions"], taken, rtol=1e-6)
    assert trainer.run().gradient_step == 2


def test_a_buffer_of_environment_actions_is_recognised_and_converted():
    learned, buffer, _ = collected(SACConfig, UNEVEN)
    policy, batch = policy_of(CQLConfig, UNEVEN), buffer.to_batch()
    message = r"holds the environment's actions, and the policy learns from actions rescaled to \[-1, 1\]"
    with pytest.raises(MalformedBufferError, match=message):
        offline_source(ReplayBuffer.from_batch(batch), policy)
    asked = ReplayBuffer.from_batch(batch, action_form=policy.action_form)
    assert offline_source(asked, policy) is asked
    np.testing.assert_allclose(asked.all()["actions"], buffer.all()["actions"], atol=1e-6)
    assert learned.action_form == policy.action_form


@pytest.mark.parametrize("kind", [Collector, AsyncCollector])
def test_a_collector_takes_no_buffer_that_holds_other_actions(kind):
    policy, buffer, _ = collected(SACConfig, UNEVEN)
    env = Taking(UNEVEN) if kind is Collector else gym.vector.AsyncVectorEnv
    others = ReplayBuffer.from_batch(buffer.to_batch(), size=20)
    options = {}
    if kind is AsyncCollector:
        env, options = (lambda: Taking(UNEVEN)), {"num_envs": 1}
    with pytest.raises(ValueError, match=r"holds the environment's actions, and the policy learns from .*action_form"):
        kind(policy, env, others, **options).close()
    others.action_form = policy.action_form  # the user's word
    collector = kind(policy, env, others, **options)
    collector.buffer = ReplayBuffer(20)
    assert collector.buffer.action_form == policy.action_form
    collector.close()


def test_training_begins_with_translated_actions_or_not_at_all():
    policy, buffer, _ = collected(SACConfig, UNEVEN)
    common = {"max_epoch": 1, "batch_size": 4, "step_per_epoch": 4, "step_per_collect": 2}

    def trainer_with(given):
        collector = Collector(policy, Taking(UNEVEN), VectorReplayBuffer(40, 1))
        return OffpolicyTrainer(policy, train_collector=collector, buffer=given, **common)

    with pytest.raises(MalformedBufferError, match=r"holds actions rescaled.*the other one the environment's actions"):
        trainer_with(ReplayBuffer.from_batch(buffer.to_batch()))
    made = trainer_with(ReplayBuffer.from_batch(buffer.to_batch(), action_form=policy.action_form)).buffer
    np.testing.assert_allclose(made.all()["actions"], buffer.all()["actions"], atol=1e-6)


def test_buffers_are_joined_where_they_hold_the_same_actions():
    _, buffer, _ = collected(SACConfig, UNEVEN)
    empty = ReplayBuffer(40)
    empty.update(buffer)
    assert empty.action_form == buffer.action_form
    empty.update(buffer)
    assert len(empty) == 24
    of_env = ReplayBuffer.from_batch(buffer.to_batch(), size=40)
    with pytest.raises(ValueError, match=r"extend\(other.to_batch\(\)\) translates"):
        of_env.update(buffer)
    assert len(of_env) == 12
    of_env.extend(buffer.to_batch())
    np.testing.assert_allclose(of_env.all()["actions"][12:], of_env.all()["actions"][:12])


def test_buffers_of_several_agents_know_it_too():
    config = game_config(BitGame, SACConfig)
    collector = config.build_collector(config.build_policy())
    for module_id, buffer in collector.buffer.buffers.items():
        assert buffer.action_form == collector.policy.acting[module_id].action_form
    policy, rescaled, _ = collected(SACConfig, UNEVEN)
    module_id = next(iter(collector.buffer.buffers))
    collector.buffer.buffers[module_id].extend(rescaled.to_batch())
    collector.buffer.buffers[module_id].action_form = policy.action_form
    with pytest.raises(ValueError, match="the buffer holds actions rescaled"):
        collector.buffer = collector.buffer
