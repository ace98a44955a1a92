"""Rollouts and references for the tests of modules with memory."""

import numpy as np
import torch

from lockstep import PPOConfig, policy_within_training_step
from lockstep.data.rollout import RolloutStore


def recurrent_config(kind="lstm", config=None, env="CartPole-v1", max_seq_len=5, num_envs=3, **training):
    training = {"train_batch_size": 120, "gamma": 0.9, **training}
    return (
        (config or PPOConfig())
        .environment(env)
        .env_runners(num_envs_per_env_runner=num_envs)
        .framework(dtype="float64")
        .rl_module(
            model_config={"hiddens": (4,), "recurrent": kind, "recurrent_size": 4, "max_seq_len": max_seq_len,
                          "policy_gain": 1.0}
        )
        .training(**training)
    )  # fmt: skip


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


def stepwise(module, obs, state=None):
    """Outputs `[T, D]`, values `[T]` and the states before each row, one step after the other."""
    state = {k: v[None] for k, v in (module.get_initial_state() if state is None else state).items()}
    inputs, values, states = [], [], []
    with torch.no_grad():
        for row in torch.as_tensor(np.asarray(obs)).to(torch.float64):
            states.append({name: leaf[0] for name, leaf in state.items()})
            out = module.forward_train({"obs": row[None, None], "state_in": state})
            inputs.append(out["action_dist_inputs"][0, 0])
            values.append(out["vf_preds"][0, 0])
            state = out["state_out"]
    return torch.stack(inputs), torch.stack(values), states
