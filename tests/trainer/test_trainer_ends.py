"""How a run ends: callbacks, interrupts and errors in hooks, losses that are not finite, environments that exit."""

import math
import os
import signal
import sys
import threading

import pytest
from agent_games import CountingGame, game_config
from scenario_tools import KINDS, TRAINERS, trainer_of
from trainer_tools import At, Recorder, RecordingLogger, build

from lockstep import PPOConfig
from lockstep.envs import EnvironmentStepError
from lockstep.envs.tensor import make_tensor_env
from lockstep.envs.toys.counting import CountingEnv
from lockstep.state.checkpoint import read_checkpoint
from lockstep.tracking.statistics import CollectStats
from lockstep.trainer import EarlyStop, save_trainer
from lockstep_sb3.common.vec_env import DummyVecEnv
from lockstep_sb3.common.vec_env.base_vec_env import VecEnvWrapper


def test_early_stop_counts_from_zero_in_a_new_run():
    scores = iter([1.0, 5.0, 3.0, 4.0, 6.0, 7.0])
    trainer = build(max_epoch=9, compute_score_fn=lambda stats: next(scores), callbacks=[EarlyStop(patience=2)])
    assert trainer.run().stop_reason == "no better score in 2 evaluations"
    scores = iter([1.0, 2.0, 1.5, 3.0])
    trainer.max_epoch = 3
    assert trainer.run().stop_reason == "max_epoch"


def test_early_stop_without_a_criterion_is_refused():
    with pytest.raises(ValueError, match="threshold, patience or time_limit_s"):
        EarlyStop()


def test_ctrl_c_waits_for_the_end_of_the_update_and_the_second_does_not():
    events = []

    def press(*arguments):
        if trainer.epoch == 1:
            os.kill(os.getpid(), signal.SIGINT)
            events.append("pressed")

    trainer = build(max_epoch=3, callbacks=[Recorder(events)], train_fn=press)
    info = trainer.run()
    assert info.stop_reason == "interrupted"
    assert events == ["RunStart", "EvaluationEnd", "pressed", "CollectEnd", "UpdateEnd", "RunEnd"]
    assert (info.train_step, info.history) == (64, ())

    def press_twice(*arguments):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        events.append("not reached")

    events.clear()
    trainer = build(max_epoch=3, callbacks=[Recorder(events)], train_fn=press_twice)
    assert trainer.run().stop_reason == "interrupted"
    assert events == ["RunStart", "EvaluationEnd", "RunEnd"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_run_in_another_thread_leaves_signals_alone():
    trainer = build(max_epoch=1)
    thread = threading.Thread(target=trainer.run)
    thread.start()
    thread.join()
    assert trainer.stop_reason == "max_epoch"


def test_a_last_checkpoint_that_fails_too_does_not_hide_the_first_error():
    def fail(*arguments):
        raise LookupError("first")

    def fail_too(*arguments):
        raise OSError("second")

    with pytest.raises(LookupError, match="first") as caught:
        build(train_fn=fail, save_checkpoint_fn=fail_too).run()
    assert caught.value.__notes__ == ["the run could not be ended in order either: second"]


HOOKS = ["train_fn", "test_fn", "stop_fn", "compute_score_fn", "save_best_fn", "save_checkpoint_fn", "RunStart"]
HOOKS += ["UpdateEnd", "EvaluationEnd", "CheckpointSaved", "EpochEnd", "logger"]
COLLECTOR_HOOKS = ["on_step_hook", "on_episode_done_hook", "CollectEnd"]
BROKEN = [(hook, kind) for hook in HOOKS for kind in TRAINERS]
BROKEN += [(hook, kind) for hook in COLLECTOR_HOOKS for kind in KINDS]


def broken(kind, hook, error, saves):
    """A trainer whose hook raises, once; the others do nothing."""
    once = [error]

    def fail(*arguments, **options):
        if once:
            raise once.pop()
        return 0.0 if hook == "compute_score_fn" else None

    options = {"save_checkpoint_fn": lambda *where: (saves.append(where), "somewhere")[1]}
    if hook.endswith("_fn"):
        options[hook] = fail
    if kind == "offline":
        options["step_per_epoch"] = 4
    log = []
    watchers = [At(hook, None, error)] if hook[0].isupper() else []
    trainer = trainer_of(kind, callbacks=[*watchers, Recorder(log)], logger=RecordingLogger(log), **options)
    if hook.startswith("on_"):
        setattr(trainer.train_collector, hook, fail)
    if hook == "logger":
        trainer.logger.log = fail
    return trainer, log


@pytest.mark.parametrize("hook, kind", [*BROKEN, *(("RunEnd", kind) for kind in TRAINERS)])
def test_an_exception_in_a_hook_ends_the_run_in_order_and_arrives_whole(hook, kind):
    saves, error = [], LookupError("mine")
    trainer, log = broken(kind, hook, error, saves)
    with pytest.raises(LookupError, match="mine") as caught:
        trainer.run()
    assert caught.value is error
    assert trainer.stop_reason == ("max_epoch" if hook == "RunEnd" else "error")
    assert log[-2:] == ["RunEnd", "finalize"]
    if hook != "save_checkpoint_fn":
        assert saves[-1] == (trainer.epoch, trainer.env_step, trainer.gradient_step)
        assert len(set(saves)) == len(saves)
    info = trainer.run()  # the trainer is as good as new
    counts = (0, 12) if kind == "offline" else (48, 6)
    assert (info.stop_reason, info.train_step, info.gradient_step) == ("max_epoch", *counts)


WITHIN_A_STEP = ("on_step_hook", "on_episode_done_hook", "CollectEnd")
"""Hooks that are called while a training step is under way: no run could continue from the state at that moment."""


@pytest.mark.parametrize("hook, kind", BROKEN)
def test_an_interrupt_in_a_hook_ends_the_run_in_order_without_an_exception(hook, kind):
    saves = []
    trainer, log = broken(kind, hook, KeyboardInterrupt(), saves)
    assert trainer.run().stop_reason == "interrupted"
    assert log[-2:] == ["RunEnd", "finalize"]
    if hook in WITHIN_A_STEP:
        assert saves == []
    elif hook != "save_checkpoint_fn":
        assert saves[-1] == (trainer.epoch, trainer.env_step, trainer.gradient_step)


def spoil(trainer, factor, env_step=None):
    """Multiply a logged loss at an environment step, or always."""
    learner = trainer.policy.learner_group.learner
    plain = learner.compute_losses

    def spoiled(**arguments):
        losses = plain(**arguments)
        if env_step in (None, trainer.env_step):
            learner.log("default_policy", policy_loss=losses["default_policy"] * factor)
        return losses

    learner.compute_losses = spoiled


@pytest.mark.parametrize("factor", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_ends_the_run_with_step_metric_and_batch(factor, folder):
    trainer = build(max_epoch=2, save_checkpoint_fn=lambda *at: save_trainer(trainer, folder / "last"))
    spoil(trainer, factor, env_step=128)
    expected = "policy_loss is not finite at environment step 128, gradient step 4"
    with pytest.raises(FloatingPointError, match=expected):
        trainer.run()
    saved = read_checkpoint(folder / "last")
    assert saved["bad_batch"]["batch"]["obs"].shape == (16, 4, 4)
    assert saved["bad_batch"]["batch"]["rewards"].shape == (16, 4)
    assert saved["trainer"]["state"]["counters"]["stop_reason"] == "error"
    trainer.reset()
    assert trainer.bad_batch is None
    going_on = build(max_epoch=1, nan_policy="ignore")
    spoil(going_on, factor)
    info = going_on.run()
    assert info.stop_reason == "max_epoch"
    seen = info.history[0].training_stat.metrics["policy_loss"]
    assert not math.isfinite(seen.mean)
    assert seen.count > 0


@pytest.mark.parametrize("own_score", [{}, {"compute_score_fn": lambda stats: 7.0}])
def test_an_empty_evaluation_is_an_error(own_score):
    trainer = build(**own_score)
    trainer.test_collector.collect = lambda n_episode: CollectStats(0, 30)
    with pytest.raises(ValueError, match="the evaluation has no finished episode; raise episode_per_test"):
        trainer.run()
    assert (trainer.stop_reason, trainer.best_score) == ("error", None)


class Leaving(CountingEnv):
    """Ends the process at its fifth step."""

    def __init__(self, leaves=True):
        super().__init__(((9, "terminate"),))
        self.leaves = leaves

    def step(self, action):
        if self.leaves and self.step_number == 4:
            sys.exit(0)
        return super().step(action)


class LeavingGame(CountingGame):
    def step(self, actions):
        sys.exit(0)


class LeavingVecEnv(VecEnvWrapper):
    def step_wait(self):
        sys.exit(0)


def leaving_tensors():
    env = make_tensor_env("tensor/CartPole-v1", 2)
    env.advance = lambda state, actions, draws: sys.exit(0)
    return env


def ppo(env, **runners):
    config = PPOConfig().environment(env).env_runners(**{"num_envs_per_env_runner": 2, **runners})
    config.training(train_batch_size=16, minibatch_size=8).rl_module(model_config={"hiddens": (4,)})
    return config.evaluation(evaluation_interval=0).reporting(total_steps=32)


LEAVING = {
    "one process": lambda: ppo(Leaving),
    "workers": lambda: ppo(Leaving, vectorize_mode="async"),
    "agents": lambda: game_config(LeavingGame),
    "VecEnv": lambda: ppo(LeavingVecEnv(DummyVecEnv([CountingEnv] * 2))),
    "tensors": lambda: ppo(leaving_tensors()),
}


@pytest.mark.parametrize("where", LEAVING)
def test_an_environment_that_calls_sys_exit_ends_the_run_with_an_error(where):
    trainer = LEAVING[where]().build_trainer()
    with pytest.raises(EnvironmentStepError, match="raised SystemExit: 0"):
        trainer.run()
    trainer.close()


def test_sys_exit_in_evaluation_or_an_env_runner_ends_the_run():
    config = ppo(lambda: Leaving(leaves=False)).evaluation(evaluation_interval=1, evaluation_num_envs=2)
    trainer = config.build_trainer()
    for env in trainer.test_collector.env.envs:
        env.leaves = True
    with pytest.raises(EnvironmentStepError, match="raised SystemExit: 0"):
        trainer.run()
    config = ppo(Leaving)
    policy = config.build_policy(spaces=(Leaving().observation_space, Leaving().action_space))
    runner = config.build_env_runner((policy.observation_space, policy.action_space))
    with pytest.raises(EnvironmentStepError, match="raised SystemExit: 0"):
        runner.sample(32)
