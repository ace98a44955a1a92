"""PPO on CartPole-v1 in one call: trains, evaluates, writes the run's folder. `python examples/train_cartpole.py`"""

import lockstep


def main(total_steps: int = 50_000, root: str = "runs") -> lockstep.TrainResult:
    """Trains and prints where the run is and how well its best policy did."""
    result = lockstep.train("ppo", "CartPole-v1", total_steps=total_steps, seed=1, root=root)
    print(
        f"best mean return {result.info.best_score:.1f} at epoch {result.info.best_epoch}; the run is in {result.path}"
    )
    return result


if __name__ == "__main__":
    main()
