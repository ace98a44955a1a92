"""Small real learners, batches and episodes for the tests of this folder."""

import hashlib
import warnings
from dataclasses import dataclass

import numpy as np
import torch
from gymnasium import spaces

from lockstep import PPOConfig, SampleBatch, policy_within_training_step
from lockstep.data.episode import SingleAgentEpisode
from lockstep.data.multi_agent_episode import MultiAgentEpisode
from lockstep.data.rollout import RolloutStore
from lockstep.data.sample_batch import MultiAgentBatch
from lockstep.learner.config import FrameworkSection, TrainingSection
from lockstep.learner.learner import Learner
from lockstep.modules import DefaultActorCriticModule, ModelConfig, MultiRLModuleSpec, RLModuleSpec
from lockstep.options.schedules import ScheduleLike
from lockstep.state.streams import RandomStreams

MODULE = "default_policy"
ALL = "__all_modules__"
BOX = spaces.Box(-np.inf, np.inf, (3,), np.float32)
THREE = spaces.Discrete(3)


@dataclass
class ScheduledTraining(TrainingSection):
    """Options with one more that may be a schedule."""

    share: ScheduleLike = 0.99


class ValueLearner(Learner):
    """Regression of values on targets: the smallest loss that trains something."""

    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        return self.masked_mean((fwd_out["vf_preds"] - batch["value_targets"]).square(), batch)

    def required_columns(self, module_id):
        return ("obs", "value_targets")


class WholeLearner(ValueLearner):
    """Trains the policy's part of the network, too."""

    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        loss = super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)
        return loss + self.masked_mean(fwd_out["action_dist_inputs"].square().sum(-1), batch)


def spec(hiddens=(4,), observation_space=BOX):
    return RLModuleSpec(DefaultActorCriticModule, observation_space, THREE, model_config=ModelConfig(hiddens=hiddens))


def value_learner(
    cls=ValueLearner, *, modules=(MODULE,), dtype="float64", build=True, seed=0, compile_it=False, **options
):
    """A learner of one or several small modules, whose training options are the rest of `options`."""
    more = {name: options.pop(name) for name in ("policies_to_train", "module_configs") if name in options}
    streams = RandomStreams(seed)
    built = MultiRLModuleSpec({name: spec() for name in modules}).build(
        seeds={name: streams.seed(name) for name in modules}
    )
    learner = cls(
        config=ScheduledTraining(**options),
        module_spec=built,
        framework=FrameworkSection(dtype=dtype, compile=compile_it, compile_after=0),
        streams=streams,
        **more,
    )
    return learner.build() if build else learner


def value_batch(rows=10, seed=0):
    rng = np.random.default_rng(seed)
    return SampleBatch(
        obs=rng.normal(size=(rows, 3)).astype(np.float32), value_targets=rng.normal(size=rows).astype(np.float32)
    )


def ppo_config(**training):
    training = {"train_batch_size": 64, "minibatch_size": 8, "num_epochs": 1, **training}
    return (
        PPOConfig()
        .environment(observation_space=BOX, action_space=THREE)
        .framework(dtype="float64")
        .rl_module(model_config={"hiddens": (4,)})
        .training(**training)
    )


def value_batches(*module_ids, rows=10, seed=0):
    """A batch of that many rows for each module, all different."""
    return MultiAgentBatch({mid: value_batch(rows, seed + i) for i, mid in enumerate(module_ids)}, rows)


def ppo_batch(rows=24, seed=0, **more):
    """Columns as PPO's loss reads them; `more` stands beside or in place of them."""
    rng = np.random.default_rng(seed)
    columns = {
        "obs": rng.normal(size=(rows, 3)).astype(np.float32),
        "actions": rng.integers(3, size=rows),
        "action_logp": np.log(rng.uniform(0.2, 0.6, size=rows)),
        "advantages": rng.normal(size=rows),
        "value_targets": rng.normal(size=rows),
    }
    return SampleBatch({**columns, **more})


def transitions(rows=16, seed=0, *, size=3, actions=THREE):
    """Random steps as a replay buffer gives them; three in ten end."""
    rng = np.random.default_rng(seed)
    if isinstance(actions, spaces.Box):
        taken = rng.uniform(-1, 1, (rows, *actions.shape)).astype(np.float32)
    else:
        taken = rng.integers(actions.n, size=rows)
    obs, new_obs = rng.normal(size=(2, rows, size)).astype(np.float32)
    rewards, terminateds = rng.normal(size=rows).astype(np.float32), rng.random(rows) < 0.3
    return SampleBatch(
        obs=obs, new_obs=new_obs, actions=taken, rewards=rewards, terminateds=terminateds, weights=rng.random(rows)
    )


def make_episode(steps, end="open", rng=0, *, size=3, actions=3, module_id=None, infos=None, **recorded):
    """An episode of random steps; `rng` is a generator or a seed, `recorded` what was noted when acting."""
    rng = np.random.default_rng(rng)
    return SingleAgentEpisode(
        observations=rng.normal(1.0, 2.0, (steps + 1, size)).astype(np.float32),
        actions=rng.integers(actions, size=steps),
        rewards=rng.normal(size=steps).astype(np.float32),
        terminated=end == "terminated",
        truncated=end == "truncated",
        module_id=module_id,
        infos=infos,
        extra_model_outputs=recorded or None,
    )


def episodes(lengths=(3, 5, 4), ends=("terminated", "truncated", "open"), seed=0):
    rng = np.random.default_rng(seed)
    return [make_episode(length, end, rng) for length, end in zip(lengths, ends)]


def make_multi_agent_episode(steps, module_of, rng=0, terminated=True):
    """An episode in which all agents act in each step; `module_of` names the module of each."""
    rng = np.random.default_rng(rng)
    return MultiAgentEpisode(
        observations=[{a: rng.normal(size=3).astype(np.float32) for a in module_of} for _ in range(steps + 1)],
        actions=[{a: int(rng.integers(3)) for a in module_of} for _ in range(steps)],
        rewards=[{a: float(rng.normal()) for a in module_of} for _ in range(steps)],
        terminateds={"__all__": terminated},
        agent_module_ids=module_of,
    )


def train(learners, data, **options):
    """Each of the learners learns from the same batch or episodes."""
    for learner in learners:
        update = learner.update_from_episodes if isinstance(data, list) else learner.update_from_batch
        update(data, **options)


def told(run):
    """The warnings that `run()` gives."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        run()
    return [str(warning.message) for warning in found]


def own_copy(view):
    """An episode of one's own with what a view shows."""
    return SingleAgentEpisode(
        observations=np.array(view.get_observations()),
        actions=np.array(view.get_actions()),
        rewards=np.array(view.get_rewards()),
        terminated=view.is_terminated,
        truncated=view.is_truncated,
    )


def parameters(learner):
    """A copy of all parameters, by name."""
    return {name: param.detach().clone() for name, param in learner.module.named_parameters()}


def assert_same(first, second):
    """Equal to the last bit."""
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


def assert_near(first, second, atol=1e-5):
    """The parameters of two learners."""
    for (name, own), other in zip(parameters(first).items(), parameters(second).values(), strict=True):
        torch.testing.assert_close(own, other, rtol=0, atol=atol, msg=name)


def differs(first, second):
    """Names of the parameters that differ."""
    return [name for name, value in first.items() if not torch.equal(value, second[name])]


def fingerprint(state):
    """A hash of a learner's state, or of a learner."""
    digest = hashlib.sha256()

    def add(tree):
        if isinstance(tree, dict):
            for key in sorted(tree, key=str):
                digest.update(str(key).encode())
                add(tree[key])
        elif isinstance(tree, list | tuple):
            for part in tree:
                add(part)
        else:
            array = np.asarray(tree)
            digest.update(repr(tree).encode() if array.dtype == object else array.tobytes())

    add(state if isinstance(state, dict) else state.get_state())
    return digest.hexdigest()


def rollout(config, vector_steps=40, collects=1):
    """A policy and the store it has filled, after `collects - 1` others (so that episodes are under way)."""
    policy = config.build_policy()
    collector = config.build_collector(policy)
    num_envs = collector.num_envs
    collector.buffer = RolloutStore(vector_steps, num_envs, collector.observation_space, policy.action_space)
    with policy_within_training_step(policy):
        for number in range(collects):
            if number:
                collector.buffer.clear()
            collector.collect(n_step=vector_steps * num_envs)
    return policy, collector
