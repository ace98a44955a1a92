"""Runs of several agents, and of modules that come and go."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from hashed import games
from hashed.algorithms import LSTM, MINIBATCH, add_runs
from hashed.entries import Results, close, entry, results_of, run, small

SHARED = {"policies": ["main"], "policy_mapping_fn": games.one_module}
SEPARATE = {"policies": ["first", "others"], "policy_mapping_fn": games.two_modules}
BY_SPACE = {"policies": ["first", "others"], "policy_mapping_fn": games.by_space}


def config_of(algorithm: str, env: Any, multi_agent: dict[str, Any], **sections: Any) -> Any:
    """Return a small configuration of several agents."""
    config = small(algorithm, env, multi_agent=multi_agent)
    config.env_runners(num_envs_per_env_runner=2)
    for name, options in sections.items():
        if name == "model":
            config.rl_module(model_config={"hiddens": (8,), "critic_hiddens": (8,), **options})
        else:
            getattr(config, name)(**options)
    return config


def run_of_agents(algorithm: str, env: Any, multi_agent: dict[str, Any], **sections: Any) -> Results:
    """Train several agents."""
    return run(config_of(algorithm, env, multi_agent, **sections))


BOTH = {"normalize_observations": True, "normalize_rewards": True}
add_runs(
    "agents",
    {
        "ppo_parallel_shared": partial(run_of_agents, "ppo", games.Parallel, SHARED),
        "ppo_parallel_separate": partial(run_of_agents, "ppo", games.Parallel, SEPARATE),
        "ppo_turns_shared": partial(run_of_agents, "ppo", games.Turns, SHARED),
        "ppo_turns_separate": partial(run_of_agents, "ppo", games.Turns, SEPARATE),
        "ppo_dicts_separate": partial(run_of_agents, "ppo", games.ByDict, BY_SPACE),
        "a2c_parallel_separate": partial(run_of_agents, "a2c", games.Parallel, SEPARATE),
        "impala_turns_shared": partial(run_of_agents, "impala", games.Turns, SHARED),
        "dqn_parallel_shared": partial(run_of_agents, "dqn", games.Parallel, SHARED),
        "dqn_parallel_separate": partial(run_of_agents, "dqn", games.Parallel, SEPARATE),
        "dqn_turns_separate": partial(run_of_agents, "dqn", games.Turns, SEPARATE),
        "dqn_dicts_prioritized": partial(
            run_of_agents, "dqn", games.ByDict, BY_SPACE, replay={"prioritized": True, "n_step": 2}
        ),
        "sac_parallel_shared": partial(run_of_agents, "sac", games.ParallelContinuous, SHARED),
        "sac_parallel_separate": partial(run_of_agents, "sac", games.ParallelContinuous, SEPARATE),
        "td3_parallel_normal": partial(
            run_of_agents, "td3", games.ParallelContinuous, SEPARATE, env_runners={"exploration": "normal"}
        ),
        "ppo_parallel_continuous": partial(run_of_agents, "ppo", games.ParallelContinuous, SEPARATE),
        "dqn_noisy": partial(run_of_agents, "dqn", games.Turns, SEPARATE, env_runners={"exploration": "noisy"}),
        "ppo_lstm_turns": partial(run_of_agents, "ppo", games.Turns, SEPARATE, model=LSTM, training=MINIBATCH),
        "ppo_lstm_parallel": partial(run_of_agents, "ppo", games.Parallel, SEPARATE, model=LSTM, training=MINIBATCH),
        "ppo_normalised": partial(run_of_agents, "ppo", games.Parallel, SEPARATE, environment=BOTH),
        "dqn_frames": partial(run_of_agents, "dqn", games.Parallel, SEPARATE, environment={"frame_stack": 2}),
        "ppo_whole_episodes": partial(
            run_of_agents, "ppo", games.Parallel, SEPARATE, env_runners={"batch_mode": "complete_episodes"}
        ),
        "ppo_one_learns": partial(run_of_agents, "ppo", games.Parallel, {**SEPARATE, "policies_to_train": ["first"]}),
        "dqn_one_learns": partial(run_of_agents, "dqn", games.Parallel, {**SEPARATE, "policies_to_train": ["others"]}),
        "ppo_central_state": partial(
            run_of_agents, "ppo", games.Parallel, {**SEPARATE, "centralized_critic": "state", "agent_id_in_obs": True}
        ),
        "a2c_central_observations": partial(
            run_of_agents, "a2c", games.Parallel, {**SHARED, "centralized_critic": "observations"}
        ),
        "ppo_scheduled_modules": partial(
            run_of_agents,
            "ppo",
            games.Parallel,
            {
                "policies": ["first", "others"],
                "policies_to_train": [[0, ["first"]], [96, ["first", "others"]]],
                "policy_mapping_fn": [[0, games.two_modules], [128, games.by_space]],
            },
        ),
        "ppo_overrides": partial(
            run_of_agents,
            "ppo",
            games.Parallel,
            SEPARATE,
            rl_module={"algorithm_config_overrides_per_module": {"first": {"lr": 1e-2}}},
        ),
    },
)

# -- modules that come and go ---


def one_and_teacher(agent: str, episode: Any) -> str:
    """Map the first agent to the module that learns, the others to a frozen one."""
    return "first" if agent in "ax" else "teacher"


def changed_run(algorithm: str, **sections: Any) -> Results:
    """Add, remap and remove modules between two epochs."""
    config = config_of(algorithm, games.Parallel, SEPARATE, **sections)
    trainer = config.reporting(total_steps=384, steps_per_epoch=96).build_trainer()
    try:
        history = [next(trainer)]
        trainer.add_module("teacher", init_from="others", frozen=True)
        trainer.set_policy_mapping_fn(one_and_teacher)
        trainer.set_policies_to_train(["first"])
        history.append(next(trainer))
        trainer.remove_module("others")
        trainer.add_module("new")
        trainer.set_policy_mapping_fn(lambda agent, episode: "new" if agent == "c" else one_and_teacher(agent, episode))
        trainer.set_policies_to_train(["first", "new"])
        history += [next(trainer), next(trainer)]
        return results_of(trainer, history)
    finally:
        close(trainer)


add_runs(
    "modules",
    {
        "ppo_come_and_go": partial(changed_run, "ppo"),
        "a2c_come_and_go_normalised": partial(changed_run, "a2c", environment=BOTH),
        "dqn_come_and_go": partial(changed_run, "dqn"),
        "ppo_come_and_go_shared_layers": partial(changed_run, "ppo", model={"vf_share_layers": True}),
    },
)


@entry("modules")
def from_checkpoint() -> Results:
    """A module that begins with the weights and statistics of a saved policy, with a learning rate of its own."""
    config = config_of("ppo", games.Parallel, SEPARATE, environment=BOTH)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy"
        first = config.build_trainer()
        first.run()
        first.policy.save_to_path(path)
        close(first)
        trainer = config.copy().debugging(seed=4).build_trainer()
        try:
            history = [next(trainer)]
            trainer.add_module("copy", init_from="first", config_overrides={"lr": 1e-2})
            trainer.set_policy_mapping_fn(lambda agent, episode: "copy" if agent == "a" else "others")
            history.append(next(trainer))
            return results_of(trainer, history)
        finally:
            close(trainer)


def self_play_run(algorithm: str = "ppo", **options: Any) -> Results:
    """A learner against a pool of its earlier versions."""
    from lockstep.trainer import SelfPlay

    config = config_of(algorithm, games.Duel, SHARED, training={"lr": 3e-2})
    config.reporting(total_steps=384, steps_per_epoch=96)
    self_play = SelfPlay("main", window=8, max_pool_size=2, win_rate_threshold=0.5, **options)
    trainer = config.build_trainer(callbacks=[self_play])
    try:
        history = trainer.run().history
        pool = {"pool": list(self_play.pool), "win rates": dict(self_play.win_rates())}
        return {**results_of(trainer, history), **pool}
    finally:
        close(trainer)


add_runs(
    "modules",
    {
        "self_play_prioritized": partial(self_play_run, draw="prioritized"),
        "self_play_weakest": partial(self_play_run, drop="weakest"),
        "self_play_dqn": partial(self_play_run, "dqn"),
        "self_play_against_itself": partial(self_play_run, opponents=["main"], begin_with_copy=False),
    },
)
