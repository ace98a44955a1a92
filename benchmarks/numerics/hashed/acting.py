"""Actions of untrained policies, of each algorithm and each kind of memory, and of what is exported."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from hashed import games
from hashed.agents import SEPARATE, config_of
from hashed.algorithms import ATTENTION, GRU, LSTM, OFFLINE, ONLINE, add_runs
from hashed.entries import DISCRETE, Results, entry

OBSERVATIONS = np.random.default_rng(7).uniform(-1, 1, (16, 4)).astype(np.float32)
SPACE = spaces.Box(-2.0, 2.0, (4,), np.float32)


def policy_of(algorithm: str, **sections: Any) -> Any:
    """Return an untrained policy for four numbers, whose heads say something: weights are drawn anew."""
    from lockstep import get_config

    discrete = algorithm in (*DISCRETE, "bc", "marwil")
    action_space = spaces.Discrete(3) if discrete else spaces.Box(-2.0, 1.0, (2,), np.float32)
    model = {"hiddens": (8,), "critic_hiddens": (8,), "policy_gain": 1.0, **sections.pop("model", {})}
    config = get_config(algorithm).rl_module(model_config=model).debugging(seed=4)
    config.environment(observation_space=SPACE, action_space=action_space)
    if algorithm in ("c51", "rainbow"):
        config.training(num_atoms=5, v_min=0.0, v_max=40.0)
    for name, options in sections.items():
        getattr(config, name)(**options)
    return config.build_policy()


def actions_of(algorithm: str, **sections: Any) -> Results:
    """Return the most likely actions, drawn ones, and the weights at the start."""
    policy = policy_of(algorithm, **sections)
    found: dict[str, Any] = {"weights": policy.learner_group.get_weights()}
    if policy.is_stateful:
        state = None
        found["likely"] = []
        for obs in OBSERVATIONS[:5]:
            action, state = policy.compute_single_action(obs, state, explore=False)
            found["likely"].append(action)
        return found
    found["likely"] = policy.compute_actions(OBSERVATIONS, explore=False)
    found["drawn"] = [policy.compute_actions(OBSERVATIONS, explore=True) for _ in range(2)]
    found["single"] = policy.compute_single_action(OBSERVATIONS[0])
    return found


add_runs("acting", {name: partial(actions_of, name) for name in (*ONLINE, *OFFLINE)})
add_runs(
    "acting",
    {
        "ppo_lstm": partial(actions_of, "ppo", model=LSTM),
        "ppo_attention": partial(actions_of, "ppo", model=ATTENTION),
        "dqn_gru": partial(actions_of, "dqn", model=GRU),
        "ppo_layer_norm": partial(actions_of, "ppo", model={"layer_norm": True, "activation": "gelu"}),
        "dqn_dueling_noisy": partial(actions_of, "dqn", model={"dueling": True}, env_runners={"exploration": "noisy"}),
        "sac_gsde": partial(actions_of, "sac", env_runners={"exploration": "gsde"}),
    },
)


@entry("acting")
def of_several_agents() -> Results:
    """Actions for the observations of several agents."""
    policy = config_of("ppo", games.Parallel, SEPARATE).build_policy()
    observations, _ = games.Parallel().reset(seed=5)
    return {
        "likely": policy.compute_actions(observations, explore=False),
        "drawn": [policy.compute_actions(observations, explore=True) for _ in range(5)],
    }


@entry("acting")
def saved_and_loaded() -> Results:
    """Actions and weights of policies that were saved and loaded."""
    from lockstep import Policy

    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("ppo", "dqn", "sac", "td3", "iqn"):
            policy_of(name).save_to_path(Path(folder) / name)
            policy = Policy.from_checkpoint(Path(folder) / name)
            found[name] = [policy.compute_actions(OBSERVATIONS), policy.learner_group.get_weights()]
    return found


# -- exports ---


def exported(algorithm: str, file_format: str = "onnx", **sections: Any) -> Results:
    """Return what an exported policy does in three steps."""
    from lockstep.export import load_export

    options = sections.pop("export", {})
    policy = policy_of(algorithm, **sections)
    with tempfile.TemporaryDirectory() as folder:
        policy.export(Path(folder) / "exported", format=file_format, **options)
        loaded = load_export(Path(folder) / "exported")
        return {"actions": [np.asarray(loaded.compute_actions(OBSERVATIONS)) for _ in range(3)]}


NORMALISED = {"normalize_observations": True}
add_runs(
    "exports",
    {
        "ppo": partial(exported, "ppo", environment=NORMALISED),
        "ppo_lstm": partial(exported, "ppo", model=LSTM, environment=NORMALISED),
        "ppo_torch": partial(exported, "ppo", "torch", environment=NORMALISED),
        "ppo_frames": partial(exported, "ppo", environment={"frame_stack": 3}),
        "dqn": partial(exported, "dqn"),
        "sac": partial(exported, "sac"),
        "td3": partial(exported, "td3"),
    },
)
