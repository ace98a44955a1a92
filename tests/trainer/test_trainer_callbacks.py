"""Callbacks of environments and of evaluations in a run: what they log, where it appears, and how it resumes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from parts import fast_if
from scenario_tools import config_of

from lockstep.rollout import GroupCollector
from lockstep.rollout.runner_group import EnvRunnerGroup, LocalRunner
from lockstep.tracking import JsonlLogger, read_metrics
from lockstep.trainer import Callback, ProgressDisplay


class Telling(Callback):
    """Logs in each event, and notes the order of those of evaluations and checkpoints."""

    def __init__(self) -> None:
        self.order: list[str] = []

    def on_episode_end(self, episode: Any, env_index: int) -> None:
        self.metrics.log_value("ended", 1, reduce="lifetime_sum")
        self.metrics.log_value(("agent", "return"), episode.get_return())

    def on_sample_end(self, env_runner: Any, samples: Any) -> None:
        self.metrics.log_value("steps", sum(map(len, samples)), reduce="sum")

    def on_evaluate_start(self) -> None:
        self.order.append("start")
        self.metrics.log_value("evaluations", 1, reduce="lifetime_sum")

    def on_evaluate_end(self, stats: Any) -> None:
        self.order.append(f"end {stats.n_collected_episodes}")

    def on_evaluation_end(self, event: Any) -> None:
        self.order.append("score")

    def on_update_end(self, event: Any) -> None:
        self.metrics.log_value("updates", 1, reduce="sum")

    def on_checkpoint_loaded(self, path: Path) -> None:
        self.order.append(f"loaded {path.name}")


def epochs_of(trainer: Any) -> list[tuple[Any, ...]]:
    """What each epoch reports of what was logged."""
    found = []
    for epoch in trainer:
        train, test = epoch.train_collect_stat, epoch.test_collect_stat
        assert train.logged is test.logged is None  # values are not kept for ever
        found.append((dict(train.metrics), dict(test.metrics), dict(epoch.metrics)))
    return found


def test_what_is_logged_appears_with_its_collect_evaluation_and_epoch() -> None:
    trainer = config_of("on").build_trainer(callbacks=[telling := Telling()])
    for number, epoch in enumerate(trainer, start=1):
        train, test = epoch.train_collect_stat, epoch.test_collect_stat
        assert train.metrics["steps"] == train.n_collected_steps == 16
        assert train.metrics["ended"] == trainer.env_episode
        assert train.metrics["agent/return"] == pytest.approx(train.returns.mean())
        assert test.metrics["ended"] == trainer.test_episode == 2 * (number + 1)
        assert test.metrics["agent/return"] == test.returns.mean()
        assert epoch.metrics == {"updates": 2.0, "evaluations": number + 1}
    assert telling.order == ["start", "end 2", "score"] * 4


def test_loggers_and_the_display_have_the_metrics(tmp_path: Path) -> None:
    logger = JsonlLogger(tmp_path / "metrics.jsonl", train_interval=1)
    trainer = config_of("on").build_trainer(callbacks=[Telling()])
    trainer.logger = trainer.callbacks[0].logger = logger
    epochs = list(trainer)
    logger.finalize()
    records = read_metrics(tmp_path / "metrics.jsonl")
    by_scope = {scope: [r["data"] for r in records if r["scope"] == scope] for scope in ("train", "test", "info")}
    assert sum(data["metrics/steps"] for data in by_scope["train"]) == 48
    assert by_scope["test"][-1]["metrics/agent/return"] == epochs[-1].test_collect_stat.metrics["agent/return"]
    assert [data["metrics/updates"] for data in by_scope["info"]] == [2.0] * 3
    assert "agent/return -" in ProgressDisplay(live=False).line(epochs[-1])


@pytest.mark.parametrize("kind", fast_if("on".__eq__, ["on", "off"]))
def test_a_resumed_run_reports_the_same_lifetime_sums(kind: str, tmp_path: Path) -> None:
    straight = epochs_of(config_of(kind).build_trainer(callbacks=[Telling()]))
    first = config_of(kind).build_trainer(callbacks=[Telling()])
    begun = [next(first) for _ in range(2)]
    first.save_to_path(tmp_path / "half")
    second = config_of(kind).build_trainer(callbacks=[telling := Telling()])
    second.restore_from_path(tmp_path / "half")
    assert epochs_of(second) == straight[2:]
    assert telling.order[0] == "loaded half"
    assert straight[2][0]["ended"] > begun[-1].train_collect_stat.metrics["ended"] > 0


def test_callbacks_of_environments_change_nothing_of_a_run() -> None:
    runs = [config_of("on").build_trainer(callbacks=callbacks) for callbacks in ([], [Telling()])]
    plain, told = ([epoch.training_stat.get_loss_stats_dict() for epoch in run] for run in runs)
    assert plain == told


class Raising(Callback):
    """Raises in one event of an evaluation."""

    def on_evaluate_start(self) -> None:
        raise LookupError("not now")


def test_what_an_event_of_an_evaluation_raises_is_named() -> None:
    with pytest.raises(LookupError, match="not now") as raised:
        config_of("on").build_trainer(callbacks=[Raising()]).run()
    assert "in Raising.on_evaluate_start" in raised.value.__notes__


def runner_trainer(config: Any, callbacks: Any) -> Any:
    """A trainer over an env runner, which lives in this process but makes callbacks of its own."""
    from lockstep import OnpolicyTrainer

    policy = config.build_policy()
    build = partial(config.build_env_runner, (policy.observation_space, policy.action_space))
    collector = GroupCollector(policy, EnvRunnerGroup(LocalRunner(build)))
    return OnpolicyTrainer(
        policy,
        max_epoch=2,
        batch_size=None,
        train_collector=collector,
        step_per_epoch=16,
        step_per_collect=8,
        repeat_per_collect=1,
        callbacks=callbacks,
    )


def test_env_runners_build_the_configured_classes_and_take_no_instance() -> None:
    config = config_of("on").callbacks(Telling)
    reports = [epoch.train_collect_stat.metrics for epoch in runner_trainer(config, [Telling()])]
    here = [epoch.train_collect_stat.metrics for epoch in config_of("on").build_trainer(callbacks=[Telling()])]
    assert reports == here[:2]
    with pytest.raises(ValueError, match=r"(?s)Telling.*on_episode_end.*train_collector.*config.callbacks"):
        runner_trainer(config_of("on"), [Telling()])
    assert runner_trainer(config_of("on"), [Raising()]).callbacks  # it watches the run only
