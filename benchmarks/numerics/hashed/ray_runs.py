"""Runs with learners and env runners in other processes (extra `ray`)."""

from __future__ import annotations

from functools import partial
from typing import Any

from hashed import games
from hashed.agents import SEPARATE, config_of
from hashed.algorithms import OFFLINE, ONLINE, add_runs
from hashed.entries import Results, run, small

LEARNERS = {"num_learners": 2, "num_cpus_per_learner": 0}
RUNNERS = {"num_env_runners": 2, "num_envs_per_env_runner": 2, "num_cpus_per_env_runner": 0.25}


def two_learners(algorithm: str) -> Results:
    """Train with two learners in float64."""
    return run(small(algorithm, learners=LEARNERS, framework={"dtype": "float64"}))


def two_runners(algorithm: str, env: Any = None, **sections: Any) -> Results:
    """Train with two env runners, for evaluation too."""
    config = small(algorithm, env, env_runners=RUNNERS, **sections)
    return run(config.evaluation(evaluation_num_env_runners=2))


def agents(algorithm: str, **sections: Any) -> Results:
    """Train several agents in two env runners."""
    return run(config_of(algorithm, games.Parallel, SEPARATE, env_runners=RUNNERS, **sections))


BOTH = {"normalize_observations": True, "normalize_rewards": True}
add_runs(
    "ray",
    {
        **{f"two_learners_{name}": partial(two_learners, name) for name in (*ONLINE, *OFFLINE)},
        "runners_ppo": partial(two_runners, "ppo", environment=BOTH),
        "runners_dqn": partial(two_runners, "dqn"),
        "runners_sac": partial(two_runners, "sac"),
        "runners_impala_fixed_lag": partial(two_runners, "impala", training={"max_lag": 1, "fixed_lag": True}),
        "runners_appo_fixed_lag": partial(two_runners, "appo", training={"max_lag": 2, "fixed_lag": True}),
        "runners_agents_ppo": partial(agents, "ppo"),
        "runners_agents_dqn": partial(agents, "dqn"),
        "runners_and_learners_ppo": partial(two_runners, "ppo", learners=LEARNERS),
    },
)
