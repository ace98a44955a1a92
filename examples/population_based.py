"""Population-based training of PPO on Ray Tune (Jaderberg et al. 2017).

Trials that fall behind go on with the weights of those ahead and with their settings, changed a little.

    pip install 'ray[tune]'
    python examples/population_based.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.schedulers import PopulationBasedTraining

from lockstep import PPOConfig
from lockstep.cluster import trainable


def main(total_steps: int = 50_000, population: int = 4, root: str = "runs/ray") -> Any:
    """Train the population; print and return Ray Tune's result of the best trial."""
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .training(train_batch_size=1000, minibatch_size=250)
        .evaluation(evaluation_duration=10)
        .reporting(total_steps=total_steps, steps_per_epoch=total_steps // 10)
    )
    learning_rates = tune.loguniform(1e-4, 1e-2)
    scheduler = PopulationBasedTraining(
        perturbation_interval=2,  # epochs
        hyperparam_mutations={"training.lr": learning_rates, "training.entropy_coeff": tune.loguniform(1e-4, 0.05)},
    )
    tuner = tune.Tuner(
        tune.with_resources(trainable(config), {"cpu": 1}),
        param_space={"training.lr": learning_rates, "training.entropy_coeff": 0.01},
        tune_config=tune.TuneConfig(
            metric="episode_return_mean", mode="max", num_samples=population, scheduler=scheduler, reuse_actors=True
        ),
        run_config=tune.RunConfig(storage_path=str(Path(root).absolute()), name="ppo_cartpole"),
    )
    best = tuner.fit().get_best_result()
    print(f"best mean return {best.metrics['episode_return_mean']:.1f} with {best.config}")
    return best


if __name__ == "__main__":
    main()
