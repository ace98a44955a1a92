"""What several files here need: learners and their losses alone, episodes, transitions, policies."""

import numpy as np
import torch
from gymnasium import spaces

from lockstep import PPOConfig, SampleBatch
from lockstep.data.episode import SingleAgentEpisode
from lockstep.modules import ModelConfig, MultiRLModuleSpec, RLModuleSpec

MODULE = "default_policy"
BOX = spaces.Box(-np.inf, np.inf, (3,), np.float32)
TWO, THREE, FROM_FIVE = spaces.Discrete(2), spaces.Discrete(3), spaces.Discrete(3, start=5)


def small_config(kind=PPOConfig):
    """A configuration that builds without making an environment."""
    config = kind().environment(observation_space=BOX, action_space=TWO).rl_module(model_config={"hiddens": (4,)})
    config.env_runners(num_envs_per_env_runner=2).training(train_batch_size=16)
    return config.training(minibatch_size=4, num_epochs=1) if kind is PPOConfig else config


def two_specs():
    """A spec of two modules, `b` with layers of its own."""
    return MultiRLModuleSpec({"a": RLModuleSpec(), "b": RLModuleSpec(model_config=ModelConfig(hiddens=(6,)))})


def to_a_or_b(agent, episode):
    return "a" if agent.startswith("x") else "b"


def of_two_modules(kind=PPOConfig, **multi_agent):
    """A configuration whose agents `x...` are module a's, the others module b's."""
    options = {"policies": ["a", "b"], "policy_mapping_fn": to_a_or_b, **multi_agent}
    return small_config(kind).multi_agent(**options)


def make_policy(action_space=FROM_FIVE, observation_space=BOX, config=None, seed=0, **environment):
    """A policy with small networks whose actions differ from one observation to the next."""
    config = (config or PPOConfig()).debugging(seed=seed).rl_module(model_config={"hiddens": (8,), "policy_gain": 1.0})
    spaces_given = {"observation_space": observation_space, "action_space": action_space}
    return config.environment(**spaces_given, **environment).build_policy()


def exact_learner(config, action_space=THREE, **training):
    """A small learner that computes in float64."""
    config = config.environment(observation_space=BOX, action_space=action_space).framework(dtype="float64")
    return config.training(**training).rl_module(model_config={"hiddens": (4,)}).build_learner()


def loss_and_gradients(learner, inputs, values, batch):
    """The learner's loss for given network outputs, and its gradients with respect to both."""
    inputs, values = inputs.clone().requires_grad_(), values.clone().requires_grad_()
    fwd_out = {"action_dist_inputs": inputs, "vf_preds": values}
    loss = learner.compute_losses(fwd_out={MODULE: fwd_out}, batch={MODULE: batch})[MODULE]
    return loss.detach(), torch.autograd.grad(loss, (inputs, values))


def some_episodes(logp=False, seed=0, num_actions=3):
    """Pieces that end terminated, open, truncated and open: 3 + 3 + 4 + 2 steps. With `logp` an older policy acted."""
    rng = np.random.default_rng(seed)
    return [
        SingleAgentEpisode(
            observations=rng.normal(size=(length + 1, 3)).astype(np.float32),
            actions=rng.integers(num_actions, size=length),
            rewards=rng.normal(size=length).astype(np.float32),
            terminated=end == "terminated",
            truncated=end == "truncated",
            extra_model_outputs={"action_logp": np.log(rng.uniform(0.1, 0.9, length))} if logp else None,
        )
        for length, end in ((3, "terminated"), (3, "open"), (4, "truncated"), (2, "open"))
    ]


def transitions(action_space, seed=0, rows=12, **more):
    """Random transitions with actions as the environment takes them; three in ten end."""
    rng = np.random.default_rng(seed)
    action_space.seed(seed)
    obs, new_obs = rng.normal(size=(2, rows, 3)).astype(np.float32)
    terminateds, truncateds = rng.random((2, rows)) < 0.3
    return SampleBatch(
        obs=obs,
        new_obs=new_obs,
        actions=np.stack([action_space.sample() for _ in range(rows)]),
        rewards=rng.normal(size=rows).astype(np.float32),
        terminateds=terminateds,
        truncateds=truncateds & ~terminateds,
        **more,
    )


def played(probe, rows=400, noise=None):
    """Random actions in a probe, with its true ends; `noise`: near the best action instead."""
    env, rng = probe(), np.random.default_rng(0)
    columns = {name: [] for name in ("obs", "actions", "rewards", "terminateds", "truncateds", "new_obs")}
    obs, _ = env.reset(seed=0)
    env.action_space.seed(1)
    for _ in range(rows):
        action = env.action_space.sample()
        if noise is not None:
            action = np.clip(env.best_action(obs) + noise * rng.normal(size=1), -1, 1).astype(np.float32)
        new_obs, reward, *ends, _ = env.step(action)
        for column, value in zip(columns.values(), (obs, action, reward, *ends, new_obs)):
            column.append(value)
        obs = env.reset()[0] if any(ends) else new_obs
    return SampleBatch({name: np.array(column) for name, column in columns.items()})


def learned_transitions(action_space, seed=0, rows=12, **more):
    """Transitions with actions as critics learn from them: those of a Box within one."""
    within_one = spaces.Box(-1, 1, action_space.shape, np.float32)
    return transitions(within_one if isinstance(action_space, spaces.Box) else action_space, seed, rows, **more)


def noting(learner_class):
    """The class with learners that note in `seen` the batch and the noise that was drawn for it."""

    class Noting(learner_class):
        def compute_losses(self, *, fwd_out, batch):
            self.seen = batch[MODULE]
            return super().compute_losses(fwd_out=fwd_out, batch=batch)

    return Noting
