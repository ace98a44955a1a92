"""Runs of one agent: every algorithm, then spaces, memory, exploration, rewards and offline data."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from hashed import games
from hashed.entries import Results, add, entry, run, small, transitions

ONLINE = (
    *("ppo", "a2c", "reinforce", "trpo", "impala", "appo", "pqn"),
    *("dqn", "c51", "qrdqn", "iqn", "rainbow", "sac", "tqc", "crossq", "td3", "flashsac"),
)
OFFLINE = ("bc", "marwil", "cql", "iql", "td3_bc")


def run_of(algorithm: str, env: Any = None, **sections: Any) -> Results:
    """Train a small configuration."""
    return run(small(algorithm, env, **sections))


def add_runs(group: str, runs: dict[str, partial[Results]]) -> None:
    """Register runs by name."""
    for name, make in runs.items():
        add(group, name, make)


add_runs("algorithms", {name: partial(run_of, name) for name in (*ONLINE, *OFFLINE)})
add_runs(
    "algorithms",
    {
        f"{name}_continuous": partial(run_of, name, games.Target)
        for name in ("ppo", "a2c", "reinforce", "trpo", "impala", "appo")
    },
)
add_runs(
    "algorithms",
    {
        "sac_discrete": partial(run_of, "sac", games.Choice),
        "ppo_whole_episodes": partial(run_of, "ppo", env_runners={"batch_mode": "complete_episodes"}),
        "ppo_schedules": partial(
            run_of, "ppo", training={"lr": [[0, 1e-2], [192, 1e-4]], "entropy_coeff": [[0, 0.1], [192, 0.0]]}
        ),
        "ppo_double": partial(run_of, "ppo", framework={"dtype": "float64"}),
        "ppo_target_kl": partial(run_of, "ppo", training={"num_epochs": 4, "lr": 1e-2, "grad_clip_by": "value"}),
        "a2c_rmsprop": partial(run_of, "a2c", training={"optimizer": "rmsprop", "grad_clip": 0.1}),
        "a2c_adamw": partial(run_of, "a2c", training={"optimizer": "adamw", "grad_clip_by": "norm", "grad_clip": 1.0}),
        "dqn_sgd": partial(run_of, "dqn", training={"optimizer": "sgd", "optimizer_kwargs": {"momentum": 0.9}}),
        "impala_minibatches": partial(run_of, "impala", training={"minibatch_size": 16, "num_epochs": 2}),
    },
)

# -- spaces of observations and actions ---

add_runs(
    "spaces",
    {
        "ppo_dict": partial(run_of, "ppo", games.Nested),
        "ppo_mask": partial(run_of, "ppo", games.Choice),
        "ppo_image": partial(run_of, "ppo", games.Picture, model={"conv_filters": ((2, 4, 2),), "image_hiddens": (8,)}),
        "ppo_shared_layers": partial(run_of, "ppo", model={"vf_share_layers": True, "layer_norm": True}),
        "ppo_multi_discrete": partial(run_of, "ppo", partial(games.Several, "MultiDiscrete")),
        "ppo_multi_binary": partial(run_of, "ppo", partial(games.Several, "MultiBinary")),
        "ppo_dict_actions": partial(run_of, "ppo", partial(games.Several, "Dict")),
        "ppo_own_encoder": partial(run_of, "ppo", model={"encoder": games.OwnEncoder, "encoder_config": {"size": 4}}),
        "ppo_connectors": partial(
            run_of,
            "ppo",
            games.Target,
            env_runners={"env_to_module_connector": games.halved, "module_to_env_connector": games.clipped},
        ),
        "ppo_rescaled": partial(run_of, "ppo", "Pendulum-v1", environment={"rescale_actions": True}),
        "dqn_dict": partial(run_of, "dqn", games.Nested),
        "dqn_mask": partial(run_of, "dqn", games.Choice),
        "dqn_dueling": partial(run_of, "dqn", model={"dueling": True}),
        "dqn_image": partial(run_of, "dqn", games.Picture, model={"conv_filters": ((2, 4, 2),), "image_hiddens": (8,)}),
        "sac_dict": partial(run_of, "sac", partial(games.Nested, continuous=True)),
    },
)

# -- memory ---

LSTM = {"recurrent": "lstm", "recurrent_size": 4, "max_seq_len": 4}
GRU = {**LSTM, "recurrent": "gru"}
ATTENTION = {
    "attention": {"size": 4, "num_heads": 2, "memory": 3, "hidden_size": 4, "num_layers": 1},
    "max_seq_len": 4,
}
SEQUENCES = {"sequence_length": 4, "burn_in": 2}
PICTURES = {"conv_filters": ((2, 4, 2),), "image_hiddens": (8,)}
MINIBATCH = {"minibatch_size": 4}

add_runs(
    "memory",
    {
        "ppo_lstm": partial(run_of, "ppo", model=LSTM, training=MINIBATCH),
        "ppo_lstm_shared": partial(run_of, "ppo", model={**LSTM, "vf_share_layers": True}, training=MINIBATCH),
        "ppo_gru_mask": partial(run_of, "ppo", games.Choice, model=GRU, training=MINIBATCH),
        "ppo_attention": partial(run_of, "ppo", games.Choice, model=ATTENTION, training=MINIBATCH),
        "ppo_lstm_whole_episodes": partial(
            run_of, "ppo", model=LSTM, training=MINIBATCH, env_runners={"batch_mode": "complete_episodes"}
        ),
        "a2c_frames": partial(run_of, "a2c", games.Picture, environment={"frame_stack": 3}, model=PICTURES),
        "ppo_frames_normalised": partial(run_of, "ppo", environment={"frame_stack": 3, "normalize_observations": True}),
        "ppo_previous_actions": partial(run_of, "ppo", env_runners={"env_to_module_connector": games.remembering}),
        "dqn_lstm": partial(run_of, "dqn", model=LSTM, replay=SEQUENCES),
        "dqn_gru_priorities": partial(run_of, "dqn", model=GRU, replay={**SEQUENCES, "prioritized": True, "n_step": 2}),
        "dqn_attention": partial(run_of, "dqn", model=ATTENTION, replay=SEQUENCES),
        "dqn_frames": partial(run_of, "dqn", games.Picture, environment={"frame_stack": 3}, model=PICTURES),
        "dqn_frames_stacked_by_the_buffer": partial(
            run_of,
            "dqn",
            games.Picture,
            environment={"frame_stack": 3},
            model=PICTURES,
            replay={"ignore_obs_next": True},
        ),
        "dqn_previous_actions": partial(run_of, "dqn", env_runners={"env_to_module_connector": games.remembering}),
        "sac_gru": partial(run_of, "sac", model=GRU, replay=SEQUENCES),
        "td3_lstm": partial(run_of, "td3", model=LSTM, replay=SEQUENCES),
    },
)

# -- exploration ---

add_runs(
    "exploration",
    {
        "dqn_epsilon_schedule": partial(run_of, "dqn", training={"epsilon": [[0, 1.0], [192, 0.1]]}),
        "dqn_epsilon_of_evaluation": partial(run_of, "dqn", evaluation={"epsilon": 0.5}),
        "dqn_noisy": partial(run_of, "dqn", env_runners={"exploration": "noisy"}),
        "dqn_noisy_lstm": partial(run_of, "dqn", model=LSTM, replay=SEQUENCES, env_runners={"exploration": "noisy"}),
        "pqn_epsilon": partial(run_of, "pqn", training={"epsilon": 0.3}),
        "td3_normal": partial(
            run_of, "td3", env_runners={"exploration": "normal", "exploration_config": {"scale": 0.3}}
        ),
        "td3_ou": partial(
            run_of, "td3", env_runners={"exploration": "ou", "exploration_config": {"sigma": 0.3, "theta": 0.2}}
        ),
        "sac_ou": partial(run_of, "sac", env_runners={"exploration": "ou"}),
        "sac_normal": partial(run_of, "sac", env_runners={"exploration": "normal"}),
        "sac_gsde": partial(
            run_of, "sac", env_runners={"exploration": "gsde", "exploration_config": {"sample_freq": 3}}
        ),
        "ppo_gsde": partial(run_of, "ppo", games.Target, env_runners={"exploration": "gsde"}),
        "a2c_gsde_sampled": partial(
            run_of,
            "a2c",
            "Pendulum-v1",
            env_runners={"exploration": "gsde", "exploration_config": {"sample_freq": 4, "log_std_init": -1.0}},
        ),
        "ppo_without": partial(run_of, "ppo", env_runners={"explore": False}),
        "iqn_drawn_levels": partial(run_of, "iqn", training={"epsilon": 0.1}),
    },
)


@entry("exploration")
def state_goes_on() -> Results:
    """Noise that goes on from step to step, taken from one collector to another in the middle of an episode."""
    found = {}
    for algorithm, kind in (("td3", "ou"), ("sac", "gsde")):
        config = small(algorithm, env_runners={"exploration": kind})
        policy = config.build_policy()
        first = config.build_collector(policy)
        first.collect(n_step=40)
        second = config.build_collector(policy)
        second.set_state(first.get_state())
        for name, collector in (("first", first), ("second", second)):
            collector.reset_buffer()
            collector.collect(n_step=24)
            found[f"{algorithm} {kind} {name}"] = dict(collector.buffer.all())
            collector.close()
    return found


# -- rewards and normalisers ---

BOTH = {"normalize_observations": True, "normalize_rewards": True}
add_runs(
    "rewards",
    {
        "ppo_both_normalised": partial(run_of, "ppo", environment=BOTH),
        "a2c_both_normalised": partial(run_of, "a2c", games.Nested, environment=BOTH),
        "impala_both_normalised": partial(run_of, "impala", environment=BOTH),
        "ppo_rewards_not_clipped": partial(
            run_of, "ppo", environment={"normalize_rewards": True, "clip_rewards": None}
        ),
        "pqn_both_normalised": partial(run_of, "pqn", environment=BOTH),
        "dqn_observations": partial(run_of, "dqn", environment={"normalize_observations": True}),
        "sac_both": partial(run_of, "sac", environment=BOTH),
        "bc_observations": partial(run_of, "bc", environment={"normalize_observations": True}),
        "ppo_rnd": partial(run_of, "ppo", training={"intrinsic_reward": "rnd", "intrinsic_coeff": 0.5}),
        "a2c_own_novelty": partial(run_of, "a2c", training={"intrinsic_reward": games.Novelty}),
        "ppo_rnd_normalised": partial(run_of, "ppo", environment=BOTH, training={"intrinsic_reward": "rnd"}),
    },
)

# -- offline data ---


@entry("offline")
def estimates() -> Results:
    """Estimates of a policy from the episodes of another one."""
    from lockstep import estimate

    behaviour = small("ppo")
    policy = behaviour.build_policy()
    target = small("ppo", debugging={"seed": 4}).build_policy()
    batch = transitions(False)
    batch["action_logp"] = np.full(len(batch), np.log(0.5), np.float32)
    found = {}
    for method in ("is", "wis", "fqe"):
        for name, each in (("one", policy), ("other", target)):
            result = estimate(each, batch, method, gamma=0.9)
            found[f"{method} {name}"] = [result.value, result.low, result.high]
    return found


add_runs(
    "offline",
    {
        "cql_lagrangian": partial(run_of, "cql", training={"lagrangian": True}),
        "bc_lstm": partial(run_of, "bc", model=LSTM),
        "bc_layer_norm": partial(run_of, "bc", model={"layer_norm": True}),
        "marwil_large_beta": partial(run_of, "marwil", training={"beta": 3.0}),
    },
)
for continuous_algorithm in ("bc", "marwil", "cql", "iql"):
    add(
        "offline",
        f"{continuous_algorithm}_continuous",
        partial(
            run_of,
            continuous_algorithm,
            environment={"env": "Pendulum-v1"},
            offline_data={"input_": transitions(True)},
        ),
    )


@entry("offline")
def iql_from_file() -> Results:
    """Rows that stay on disk, and are read where they are needed."""
    import tempfile
    from pathlib import Path

    from lockstep.data import write_rows

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.npy"
        write_rows(path, transitions(False))
        return run_of("iql", offline_data={"input_": str(path), "max_memory_bytes": 1_000})
