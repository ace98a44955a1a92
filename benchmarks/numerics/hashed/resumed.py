"""Runs that stop in the middle of an epoch and continue, and the first steps of each recipe."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from hashed import games
from hashed.agents import SEPARATE, SHARED, config_of
from hashed.algorithms import ATTENTION, GRU, LSTM, MINIBATCH, SEQUENCES, add_runs
from hashed.collectors import PENDULUM, POLES, PRIORITIES
from hashed.entries import Results, add, close, entry, results_of, results_of_epochs, run, small
from lockstep.trainer import Callback

BOTH = {"normalize_observations": True, "normalize_rewards": True}


class Stop(Callback):
    """Stops a run after an update, in the middle of an epoch, as Ctrl-C does."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_update_end(self, event: Any) -> None:
        if (event.env_step or event.gradient_step) >= self.step:
            raise KeyboardInterrupt


def continued(config: Any, step: int = 128) -> Results:
    """Train to the middle of the second epoch, load the state into a new trainer, and train to the end."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "half"
        first = config.copy().build_trainer(callbacks=[Stop(step)])
        try:
            first.run()
            first.save_to_path(path)
        finally:
            close(first)
        second = config.copy().build_trainer()
        try:
            second.restore_from_path(path)
            return results_of(second, second.run().history)
        finally:
            close(second)


def tensors(algorithm: str, env: str, **sections: Any) -> Results:
    """Continue a run of tensors."""
    return continued(small(algorithm, env, evaluation={"evaluation_duration": 1}, **sections))


add_runs(
    "resumed",
    {
        "ppo": lambda: continued(small("ppo", environment=BOTH)),
        "ppo_lstm": lambda: continued(small("ppo", model=LSTM, training=MINIBATCH)),
        "ppo_attention": lambda: continued(small("ppo", model=ATTENTION, training=MINIBATCH)),
        "ppo_frames": lambda: continued(small("ppo", environment={"frame_stack": 3})),
        "ppo_gsde": lambda: continued(small("ppo", "Pendulum-v1", env_runners={"exploration": "gsde"})),
        "ppo_rnd": lambda: continued(small("ppo", training={"intrinsic_reward": "rnd"})),
        "dqn": lambda: continued(small("dqn", replay={**PRIORITIES, "n_step": 3})),
        "dqn_lstm": lambda: continued(small("dqn", model=GRU, replay=SEQUENCES)),
        "dqn_noisy": lambda: continued(small("dqn", env_runners={"exploration": "noisy"})),
        "dqn_hindsight": lambda: continued(
            small(
                "dqn",
                environment={"env": "lockstep/BitFlipping-v0", "env_config": {"num_bits": 4}},
                replay={"her": True},
            )
        ),
        "sac": lambda: continued(small("sac")),
        "td3_ou": lambda: continued(small("td3", env_runners={"exploration": "ou"})),
        "bc": lambda: continued(small("bc"), step=15),
        "iql": lambda: continued(small("iql"), step=15),
        "agents_ppo": lambda: continued(config_of("ppo", games.Parallel, SEPARATE, environment=BOTH)),
        "agents_ppo_turns_lstm": lambda: continued(
            config_of("ppo", games.Turns, SHARED, model=LSTM, training=MINIBATCH)
        ),
        "agents_dqn": lambda: continued(config_of("dqn", games.Parallel, SEPARATE)),
        "tensors_ppo": partial(tensors, "ppo", POLES),
        "tensors_dqn": partial(tensors, "dqn", POLES, replay=PRIORITIES),
        "tensors_sac": partial(tensors, "sac", PENDULUM),
    },
)


def continued_folder(config: Any, callbacks: Any = list, step: int = 128) -> Results:
    """Stop a run that has a folder in the middle of an epoch, resume it from its folder, and make it longer."""
    import lockstep

    with tempfile.TemporaryDirectory() as root:
        half = lockstep.train(config, root=root, callbacks=[*callbacks(), Stop(step)])
        whole = lockstep.resume(half.path, callbacks=callbacks())
        longer = lockstep.resume(half.path, total_steps=288, callbacks=callbacks())
        return {
            "half": results_of_epochs(half.history),
            "whole": results_of_epochs(whole.history),
            "longer": results_of_epochs(longer.history),
            "weights": longer.policy.learner_group.get_weights(),
        }


def self_play() -> list[Any]:
    """Return the callback of a run with self-play."""
    from lockstep.trainer import SelfPlay

    return [SelfPlay("main", window=8, max_pool_size=2, draw="prioritized", win_rate_threshold=0.5)]


def duel() -> Any:
    """Return a configuration for self-play."""
    return config_of("ppo", games.Duel, SHARED, training={"lr": 3e-2})


add_runs(
    "resumed",
    {
        "folder_ppo": lambda: continued_folder(small("ppo", environment=BOTH)),
        "folder_dqn": lambda: continued_folder(small("dqn")),
        "folder_sac": lambda: continued_folder(small("sac")),
        "folder_self_play": lambda: continued_folder(duel(), self_play),
    },
)


@entry("resumed")
def begins_with_another_run() -> Results:
    """A run that begins with the weights of another one's best policy."""
    import lockstep

    config = small("ppo", environment=BOTH)
    with tempfile.TemporaryDirectory() as root:
        first = lockstep.train(config, root=root)
        second = lockstep.train(config.copy().debugging(seed=8), root=root, init_from=first.path)
        best = lockstep.load_policy(first.path)
        return {
            "epochs": results_of_epochs(second.history),
            "weights": second.policy.learner_group.get_weights(),
            "best": best.learner_group.get_weights(),
        }


# -- recipes ---


def first_steps(name: str, env: str) -> Results:
    """Train the first updates of a recipe, without evaluation and compilation."""
    from lockstep.recipes import find_recipe

    recipe = find_recipe(name, env)
    assert recipe is not None, f"no recipe for {name} on {env}"
    config = recipe.config()
    config.framework(compile=False).evaluation(evaluation_interval=0)
    if config.is_off_policy:
        large = name in ("crossq", "tqc")
        begin = min(config.replay.learning_starts, 1_000)
        config.replay(learning_starts=begin)
        config.reporting(total_steps=begin + (16 if large else 64))
    else:
        config.reporting(total_steps=config.training.train_batch_size)
    config.reporting(steps_per_epoch=config.reporting.total_steps)
    return run(config)


def add_recipes() -> None:
    """Register each recipe that needs no extra."""
    from lockstep.recipes import RECIPES

    for recipe in RECIPES:
        if recipe.requires is None:
            name = f"{recipe.algorithm}_{recipe.env.replace('/', '_')}"
            add("recipes", name, partial(first_steps, recipe.algorithm, recipe.env))


add_recipes()
