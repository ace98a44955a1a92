"""Learners and runners on Ray are one process: connectors' statistics, callbacks, metrics; one agent and several."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from agent_games import CountingGame, Duel, TurnGame, game_config
from picture_env import PictureEnv, play, see, turn

from lockstep import DQNConfig, Policy, PPOConfig
from lockstep.connectors import ClipRewards, NormalizeObs, PreviousActions, PreviousRewards
from lockstep.trainer import Callback, SelfPlay, restore_trainer, save_trainer

ray = pytest.importorskip("ray")


def remember(observation_space: Any, action_space: Any) -> list[Any]:
    """What an agent did and earned before, and statistics behind it."""
    return [PreviousActions(action_space), PreviousRewards(), NormalizeObs()]


def clip(observation_space: Any, action_space: Any) -> Any:
    return ClipRewards(-1.0, 1.0)


def measuring() -> type:
    """A class that other processes can be sent."""

    class Measuring(Callback):
        def on_episode_step(self, episode: Any, env_index: int) -> None:
            for reduce in ("ema", "min", "percentiles"):
                self.metrics.log_value(("length", reduce), len(episode), reduce=reduce)

        def on_episode_end(self, episode: Any, env_index: int) -> None:
            self.metrics.log_value("ended", 1, reduce="lifetime_sum")
            self.metrics.log_value("return", episode.get_return(), window=5)

    return Measuring


def logging(base: type) -> type:
    """A learner that logs of its rows, in several ways."""

    class Logging(base):
        def compute_loss_for_module(self, *, module_id: str, config: Any, batch: Any, fwd_out: Any) -> Any:
            gains = (batch["advantages"] if "advantages" in batch else batch["rewards"]).double()
            self.log(module_id, gain=self.masked_mean(gains, batch))
            for reduce in ("max", "sum", "percentiles"):
                rows = gains[batch["loss_mask"]] if "loss_mask" in batch else gains
                self.metrics.log_value((module_id, "gain", reduce), rows, reduce=reduce)
            return super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)

    return Logging


def pictures(algorithm: type) -> Any:
    config = algorithm().environment(PictureEnv).rl_module(model_config={"hiddens": (4,)}).debugging(seed=3)
    config.env_runners(env_to_module_connector=see, module_to_env_connector=turn, num_envs_per_env_runner=4)
    config.evaluation(evaluation_duration=2, evaluation_num_envs=2)
    return config.training(train_batch_size=32, lr=1e-2).reporting(total_steps=96, steps_per_epoch=32)


def game(env: type, algorithm: type) -> Any:
    config = game_config(env, algorithm, num_envs=4)
    config.env_runners(env_to_module_connector=remember).training(train_batch_size=32, lr=1e-2)
    return config.reporting(total_steps=96, steps_per_epoch=32)


def ppo(config: Any) -> Any:
    return config.training(minibatch_size=8, num_epochs=2)


def dqn(config: Any) -> Any:
    return config.training(train_batch_size=8).replay(learning_starts=24, capacity=400, update_per_step=0.25)


MAKE = {
    "ppo": lambda: ppo(pictures(PPOConfig)),
    "dqn": lambda: dqn(pictures(DQNConfig)),
    "ppo, several agents": lambda: ppo(game(CountingGame, PPOConfig)),
    "ppo, several agents in turns": lambda: ppo(game(TurnGame, PPOConfig)),
    "dqn, several agents": lambda: dqn(game(CountingGame, DQNConfig)),
}


def run(config: Any, num_learners: int, num_env_runners: int) -> tuple[dict[str, Any], list[dict[str, float]]]:
    """Return the numbers of the policy at the end, and what each epoch reports."""
    config.framework(dtype="float64").environment(config.environment.env, normalize_rewards=True)
    config.training(learner_connector=clip, learner_class=logging(config.learner_class)).callbacks(measuring())
    config.learners(num_learners=num_learners, num_cpus_per_learner=0, learner_timeout_s=60.0)
    runners = max(1, num_env_runners)
    config.env_runners(num_env_runners=num_env_runners, num_cpus_per_env_runner=0.25)
    config.env_runners(num_envs_per_env_runner=4 // runners)
    trainer, found = config.build_trainer(), []
    try:
        for epoch in trainer.run().history:
            stats = {"train": epoch.train_collect_stat, "test": epoch.test_collect_stat, "update": epoch.training_stat}
            numbers = {f"{name}/{key}": value for name, each in stats.items() for key, value in each.metrics.items()}
            found.append({**numbers, "returns": epoch.train_collect_stat.returns.tolist()})
        return {name: tensor.numpy() for name, tensor in trainer.policy.state_dict().items()}, found
    finally:
        trainer.close()


MANY = pytest.mark.faults
CASES = [
    ("ppo", 2, 2),
    ("dqn, several agents", 2, 2),
    *(pytest.param(make, 2, 2, marks=MANY) for make in ("dqn", "ppo, several agents", "ppo, several agents in turns")),
    *(pytest.param(make, 0, 4, marks=MANY) for make in MAKE),
    *(pytest.param(make, 3, 0, marks=MANY) for make in MAKE),
]


@pytest.mark.parametrize(("make", "num_learners", "num_env_runners"), CASES)
@pytest.mark.long
def test_learners_and_env_runners_act_as_one_with_callbacks(
    make: str, num_learners: int, num_env_runners: int, cluster: None
) -> None:
    (one, reported), (several, reports) = run(MAKE[make](), 0, 0), run(MAKE[make](), num_learners, num_env_runners)
    assert one.keys() == several.keys()
    assert any("connectors" in name for name in one)
    for name, value in one.items():
        np.testing.assert_allclose(several[name], value, rtol=1e-12, atol=1e-12, err_msg=name)
    assert len(reported) == 3
    for epoch, other in zip(reported, reports, strict=True):
        assert {"train/length/percentiles/p50", "test/ended"} < epoch.keys()
        assert any("gain/percentiles" in name for name in epoch)
        assert epoch.keys() == other.keys()
        for name, number in epoch.items():
            if name.startswith("update/"):
                same = [dataclasses.astuple(each) for each in (number, other[name])]
                np.testing.assert_allclose(*same, rtol=1e-11, atol=1e-11, err_msg=name)
            else:
                assert other[name] == number, name


@pytest.mark.long
def test_actions_are_equal_locally_on_ray_in_evaluation_and_after_resume(cluster: None, tmp_path: Any) -> None:
    """Collected, learned from and evaluated in this process, and on Ray with a resume in the middle."""

    def trainer_of(num_env_runners: int) -> Any:
        config = dqn(pictures(DQNConfig)).training(lr=1e-3)
        config.rl_module(model_config={"activation": "tanh", "orthogonal_init": True, "policy_gain": 1.0})
        config.env_runners(num_env_runners=num_env_runners, num_envs_per_env_runner=2 if num_env_runners else 4)
        config.env_runners(num_cpus_per_env_runner=0.25).debugging(seed=5)
        return config.evaluation(evaluation_num_env_runners=min(1, num_env_runners)).build_trainer()

    def outcome(trainer: Any) -> Any:
        returns = [trainer.last_test.returns.tolist(), trainer.last_test.lens.tolist()]
        return trainer.buffer.column("actions").tolist(), returns, play(trainer.policy)

    here, begun, resumed = trainer_of(0), trainer_of(2), trainer_of(2)
    try:
        here.run()
        next(begun)
        save_trainer(begun, tmp_path / "checkpoint")
        restore_trainer(resumed, tmp_path / "checkpoint")
        resumed.run()
        assert len(set(play(here.policy))) > 1
        assert outcome(here) == outcome(resumed)
        assert play(begun.policy) == play(Policy.from_checkpoint(tmp_path / "checkpoint"))
    finally:
        for trainer in (here, begun, resumed):
            trainer.close()


def changing() -> Any:
    """Let modules come and go and map agents otherwise, by functions without a name."""

    class Changing(Callback):
        def on_run_start(self, event: Any) -> None:
            self.trainer = event.trainer

        def on_epoch_end(self, event: Any) -> None:
            if event.epoch == 1:
                self.trainer.add_module("third", init_from="main", config_overrides={"lr": 1e-3})
                self.trainer.set_policy_mapping_fn(lambda agent, episode: "third" if agent == "x" else "main")
            if event.epoch == 2:
                self.trainer.set_policy_mapping_fn(lambda agent, episode: "third")
                self.trainer.remove_module("main")

    return Changing()


def duel(watching: Any, num_learners: int, num_env_runners: int) -> tuple[list[Any], dict[str, Any]]:
    """Return who played how, and the weights at the end."""
    config = ppo(game(Duel, PPOConfig)).framework(dtype="float64")
    config.multi_agent(policies=["main"], policy_mapping_fn={"x": "main", "y": "main"})
    config.learners(num_learners=num_learners, num_cpus_per_learner=0, learner_timeout_s=60.0)
    config.env_runners(num_env_runners=num_env_runners, num_cpus_per_env_runner=0.25)
    config.env_runners(num_envs_per_env_runner=4 // max(1, num_env_runners))
    trainer = config.reporting(total_steps=192, steps_per_epoch=64).build_trainer(callbacks=[watching])
    try:
        stats = [epoch.train_collect_stat for epoch in trainer.run().history]
        found = [(each.agent_modules, each.agent_returns) for each in stats]
        return found, trainer.policy.learner_group.get_weights()
    finally:
        trainer.close()


@pytest.mark.faults
@pytest.mark.parametrize("make", [lambda: SelfPlay("main", window=16, win_rate_threshold=0.4), changing])
@pytest.mark.parametrize(("num_learners", "num_env_runners"), [(2, 2), (0, 2), (2, 0)])
def test_modules_join_leave_and_compete_in_many_processes_as_in_one(
    make: Any, num_learners: int, num_env_runners: int, cluster: None
) -> None:
    (played, one), (others_played, several) = duel(make(), 0, 0), duel(make(), num_learners, num_env_runners)
    assert played == others_played
    assert len({name for names, _ in played for each in names for name in each}) > 1
    assert one.keys() == several.keys()
    for module_id, weights in one.items():
        for name, value in weights.items():
            np.testing.assert_allclose(several[module_id][name], value, rtol=0, atol=1e-12, err_msg=name)
