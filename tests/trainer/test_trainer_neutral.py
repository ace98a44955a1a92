"""What only watches changes no bit of training; equal environments under another vectoriser neither."""

import dataclasses
import json
import random
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from kill_tools import run_kind
from trainer_tools import Recorder, RecordingLogger, by_hand, config_for, learned

from lockstep import Collector
from lockstep.state.streams import RandomStreams
from lockstep.tracking import JsonlLogger, RunFolder, TensorboardLogger, asdict, read_metrics
from lockstep.tracking.statistics import (
    CollectStats,
    EpochStats,
    InfoStats,
    SequenceSummaryStats,
    TimingStats,
    TrainingStats,
)
from lockstep.trainer import Callback, build_trainer, save_trainer


def train(*, evaluate=False, prepare=None, **options):
    """Three epochs of PPO."""
    trainer = by_hand(config_for(total_steps=384), evaluate=evaluate, **options)
    if prepare is not None:
        prepare(trainer)
    trainer.run()
    state = trainer.train_collector.get_state()
    trainer.train_collector.close()
    return learned(trainer), state["obs"].tolist(), state["returns"].tolist(), trainer


@pytest.fixture(scope="module")
def plain():
    return train()[:3]


class Meddling(Callback):
    """Does with the global generators, and with what it is handed, what a callback must be able to do."""

    def on_event(self, event):
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002
        random.seed(0)
        torch.rand(3)
        with pytest.raises(dataclasses.FrozenInstanceError):
            event.env_step = 10**9
        stats = getattr(event, "stats", None)
        if stats is not None:
            with pytest.raises(dataclasses.FrozenInstanceError):
                stats.train_time = stats.returns = ()


def test_evaluation_changes_no_bit_of_training(plain):
    for options in ({}, {"test_interval": 2}, {"episode_per_test": 5, "stop_fn": lambda score: False}):
        assert train(evaluate=True, **options)[:3] == plain, options


def test_a_callback_changes_no_bit_of_training(plain):
    assert train(callbacks=[Meddling(), Recorder([])], evaluate=True)[:3] == plain


def test_loggers_and_checkpoints_change_no_bit_of_training(plain, folder):
    def checkpoints(trainer):
        trainer.save_checkpoint_fn = lambda *where: save_trainer(trainer, folder / str(where[1]))

    jsonl = JsonlLogger(folder / "metrics.jsonl")
    assert train(logger=jsonl, prepare=checkpoints)[:3] == plain
    assert train(logger=RecordingLogger([]))[:3] == plain
    assert sorted(path.name for path in folder.iterdir()) == ["128", "256", "384", "metrics.jsonl"]


@pytest.mark.parametrize(
    "vector, mode",
    [*((SyncVectorEnv, mode) for mode in ("SameStep", "NextStep", "Disabled")), (AsyncVectorEnv, "SameStep")],
)
def test_gymnasiums_vectors_train_to_the_same_bits_as_ours(plain, vector, mode):
    makers = [lambda: gym.make("CartPole-v1")] * 4
    env = vector(makers, autoreset_mode=mode)
    streams = RandomStreams(config_for().seed).child("train_collector")
    collector = partial(Collector, env=env, exploration_noise=True, streams=streams)
    assert train(train_collector=collector)[:3] == plain


@pytest.mark.parametrize(
    "stats",
    [CollectStats(), TrainingStats(), TimingStats(), InfoStats(), SequenceSummaryStats()]
    + [EpochStats(1, None, None, None, InfoStats())],
    ids=lambda stats: type(stats).__name__,
)
def test_statistics_are_frozen(stats):
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(stats, dataclasses.fields(stats)[0].name, 1)


def test_statistics_of_a_run_are_plain_and_fit_into_json():
    *_, trainer = train(evaluate=True)
    for stats in trainer.history:
        assert isinstance(stats, EpochStats)
        for part in (stats.train_collect_stat, stats.test_collect_stat, stats.info_stat):
            assert json.loads(json.dumps(part.to_dict()))
        assert json.loads(json.dumps(stats.training_stat.get_loss_stats_dict()))
        assert json.loads(json.dumps(dataclasses.asdict(stats.training_stat)))
        assert asdict(stats) == json.loads(json.dumps(asdict(stats)))
    assert len(json.loads(json.dumps(asdict(trainer.info())))["history"]) == len(trainer.history)
    assert json.loads(json.dumps(trainer.info().to_dict()))["best_score"] == trainer.best_score


def test_a_run_with_both_loggers_can_be_read_back(folder):
    """JSONL and the TensorBoard event file hold the same numbers, and those are the run's."""
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    config = config_for(total_steps=384, reporting={"loggers": ["jsonl", "tensorboard"]})
    run = RunFolder.create(folder, algo="ppo", env="CartPole-v1", seed=3, config=config.to_dict())
    trainer = build_trainer(config, folder=run)
    assert isinstance(trainer.logger.loggers[1], TensorboardLogger)
    info = trainer.run()

    records = read_metrics(run.path)
    assert {record["scope"] for record in records} == {"train", "test", "update", "info", "save"}
    assert all(record["wall_s"] >= 0 for record in records)
    tests = [record for record in records if record["scope"] == "test"]
    assert [record["step"] for record in tests] == [0, 128, 256, 384]
    means = [stats.test_collect_stat.returns_stat.mean for stats in info.history]
    assert [record["data"]["returns_stat/mean"] for record in tests][1:] == means
    steps = [r["data"]["n_collected_steps"] for r in records if r["scope"] == "train"]
    assert sum(steps) == 384  # what comes between two writes is aggregated, not dropped
    episodes = sum(r["data"]["returns_stat/count"] for r in records if r["scope"] == "train")
    assert episodes == info.train_episode
    updates = [r for r in records if r["scope"] == "update"]
    assert updates[-1]["step"] == info.gradient_step
    assert {"policy_loss", "vf_loss", "entropy", "total_loss"} <= set(updates[0]["data"])
    saves = [r["data"] for r in records if r["scope"] == "save"]
    assert [(s["epoch"], s["env_step"], s["gradient_step"]) for s in saves] == [(1, 128, 8), (2, 256, 16), (3, 384, 24)]
    assert saves[-1]["path"] == str(run.newest_checkpoint())
    infos = [r for r in records if r["scope"] == "info"]
    assert [r["step"] for r in infos] == [1, 2, 3]
    assert infos[-1]["data"]["timing/total_time"] == info.history[-1].info_stat.timing.total_time

    events = accumulators.EventAccumulator(str(run.path / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    for record in records:
        for name, value in record["data"].items():
            if isinstance(value, int | float) and not isinstance(value, bool) and "path" not in name:
                scalars = {e.step: e.value for e in events.Scalars(f"{record['scope']}/{name}")}
                assert scalars[record["step"]] == pytest.approx(value, rel=1e-6, nan_ok=True), name


def test_evaluation_changes_nothing_in_a_run_that_remembers(folder):
    with_evaluation = run_kind(folder / "with", "recurrent", 256)
    without = run_kind(folder / "without", "recurrent", 256, evaluation={"evaluation_interval": 0})
    assert learned(with_evaluation) == learned(without)
