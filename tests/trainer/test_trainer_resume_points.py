"""Resume at each point of a run, after an error, from a log, with a boundary; `seed`; callbacks with state."""

import copy
import io
from contextlib import nullcontext

import gymnasium as gym
import numpy as np
import pytest
from parts import fast_if, one_in
from scenario_tools import KINDS, TRAINERS, Paying, config_of, position, trainer_of
from trainer_tools import At, Recorder, Stops, by_hand, collected, learned, records_of, without_wall_time

from lockstep import Collector
from lockstep.replay import VectorReplayBuffer
from lockstep.runs.video import VideoCallback
from lockstep.state.checkpoint import newest_checkpoint
from lockstep.state.streams import RandomStreams
from lockstep.tracking import (
    JsonlLogger,
    LazyLogger,
    MLflowLogger,
    MultiLogger,
    TensorboardLogger,
    TraceLogger,
    WandbLogger,
    read_metrics,
)
from lockstep.trainer import Callback, CheckpointCallback, EarlyStop, Profiler, restore_trainer, save_trainer

POINTS = {
    "before training": ("EvaluationEnd", 0, "enough"),
    "after a collect": ("CollectEnd", 8, "enough"),
    "inside an epoch": ("UpdateEnd", 24, KeyboardInterrupt),
    "at an error inside an epoch": ("UpdateEnd", 24, LookupError),
    "at the evaluation of an epoch": ("EvaluationEnd", 16, KeyboardInterrupt),
    "after an epoch": ("EpochEnd", 16, "enough"),
    "at the end": ("EpochEnd", 48, None),
}


def bits(trainer):
    return learned(trainer), collected(trainer), trainer.env_step, trainer.gradient_step


@pytest.fixture(scope="module")
def straight():
    found = {}
    for kind in KINDS:
        trainer = trainer_of(kind)
        trainer.run()
        found[kind] = bits(trainer)
    return found


@pytest.mark.parametrize(
    "point",
    fast_if(("after a collect", "inside an epoch", "at the evaluation of an epoch", "at the end").__contains__, POINTS),
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_resumes_bit_for_bit_from_where_it_ended(kind, point, folder, straight):
    name, env_step, action = POINTS[point]
    first = trainer_of(kind, callbacks=[At(name, env_step, action() if isinstance(action, type) else action)])
    first.save_checkpoint_fn = lambda *where: save_trainer(first, folder / "checkpoint" / str(where))
    with pytest.raises(LookupError) if action is LookupError else nullcontext():
        first.run()
    again = trainer_of(kind)
    restore_trainer(again, max(folder.glob("checkpoint/*"), key=lambda path: path.stat().st_mtime_ns))
    assert again.env_step == env_step
    again.run()
    if "evaluation" in point:  # the interrupted one is made again: its episodes are others, training is the same
        assert (learned(again), again.env_step, again.gradient_step) == (straight[kind][0], *straight[kind][2:])
    elif point in ("after a collect", "after an epoch", "before training"):  # which ended with one evaluation more
        assert learned(again) == straight[kind][0]
    else:
        assert bits(again) == straight[kind]
    assert [stats.epoch for stats in again.history] == [1, 2, 3]


@pytest.mark.parametrize("saves", one_in(2, ["own function", "callback"]))
@pytest.mark.parametrize("kind", KINDS)
def test_a_log_that_names_a_full_checkpoint_continues_everything(kind, saves, folder, straight):
    def trainer(name, resume=False, **options):
        logger = JsonlLogger(folder / f"{name}.jsonl", resume=resume)
        callbacks = [CheckpointCallback(folder / name)] if saves == "callback" else []
        made = trainer_of(kind, logger=logger, resume_from_log=resume, callbacks=callbacks, **options)
        if saves == "own function":
            made.save_checkpoint_fn = lambda epoch, step, _: save_trainer(made, folder / name / f"step_{step:012d}")
        return made

    trainer("straight").run()
    trainer("resumed", max_epoch=2).run()
    again = trainer("resumed", resume=True)
    assert [stats.epoch for stats in again] == [3]
    assert bits(again) == straight[kind]
    assert len(again.history) == 3
    for name in ("straight", "resumed"):
        paths = [str(folder / name / f"step_{step:012d}") for step in (16, 32, 48)]
        assert saves_in(folder / f"{name}.jsonl") == list(zip((16, 32, 48), paths))  # one for each checkpoint


LOST = {"gone": ("nothing", ".*nothing is no full checkpoint"), "none": (None, "the log names no checkpoint")}


@pytest.mark.parametrize("saved, why", LOST.values(), ids=LOST)
def test_a_log_whose_checkpoint_is_gone_gives_the_counters_and_says_so(saved, why, folder):
    saves = None if saved is None else lambda *where: folder / saved
    logger = JsonlLogger(folder / "metrics.jsonl")
    trainer_of("on", logger=logger, max_epoch=2, save_checkpoint_fn=saves).run()
    again = trainer_of("on", logger=JsonlLogger(folder / "metrics.jsonl", resume=True), resume_from_log=True)
    with pytest.warns(RuntimeWarning, match=f"only the counters are restored, as {why}"):
        assert [stats.epoch for stats in again] == [3]
    assert (again.env_step, again.gradient_step) == (48, 6)


def saves_in(path):
    """Step and checkpoint of each record of a save."""
    records = [record for record in read_metrics(path) if record["scope"] == "save"]
    return [(record["step"], record["data"]["path"]) for record in records]


def logger_of(name, folder, resume, run_id):
    """Of each kind that keeps records."""
    if name == "wandb":
        settings = {"silent": True, "x_disable_stats": True, "x_disable_meta": True, "console": "off"}
        return WandbLogger("poles", dir=folder, mode="offline", settings=settings, run_id=run_id)
    if name == "mlflow":
        return MLflowLogger("poles", tracking_uri=folder / "mlruns", run_id=run_id)
    if name == "tensorboard":
        return TensorboardLogger(folder / "events")
    return MultiLogger([LazyLogger(), JsonlLogger(folder / "metrics.jsonl", resume=resume)])


@pytest.mark.parametrize("name", fast_if("wandb".__ne__, ["wandb", "mlflow", "tensorboard", "multi"]))
def test_every_record_keeping_logger_names_the_checkpoint_to_resume_from(name, folder, straight):
    if name != "multi":
        pytest.importorskip(name)
    first = logger_of(name, folder, False, None)
    trainer_of("on", logger=first, max_epoch=2, callbacks=[CheckpointCallback(folder / "run")]).run()
    again = logger_of(name, folder, True, getattr(first, "run_id", None))
    trainer = trainer_of("on", logger=again, resume_from_log=True, callbacks=[CheckpointCallback(folder / "run")])
    trainer.run()
    assert (bits(trainer), len(trainer.history)) == (straight["on"], 3)
    places = {"mlflow": getattr(again, "run_id", None), "tensorboard": folder / "events"}
    if name != "wandb":  # whose records cannot be read back
        saves = again.restore_logged_data(places.get(name, folder / "metrics.jsonl"))["save/env_step"]
        assert saves["step"] == saves["value"] == [16, 32, 48]  # none is doubled


def test_a_log_has_one_record_per_checkpoint_and_continues_from_the_last(folder, straight):
    """The callback saves every second epoch; the trainer's own function every epoch, where it names what it wrote."""

    def trainer(name, resume=False, saves=None, **options):
        logger = JsonlLogger(folder / f"{name}.jsonl", resume=resume)
        callbacks = [CheckpointCallback(folder / name, interval=2)]
        return trainer_of(
            "on", logger=logger, resume_from_log=resume, callbacks=callbacks, save_checkpoint_fn=saves, **options
        )

    own = {"none": None, "unnamed": lambda *where: None, "named": lambda epoch, *_: folder / f"own_{epoch}"}
    for name, saves in own.items():
        run, log = trainer(name, saves=saves), folder / f"{name}.jsonl"
        for _ in range(3):
            next(run)
        killed = log.read_bytes()
        iter(run)  # ends the run
        log.write_bytes(killed)
        steps = [(step, "own" in path) for step, path in saves_in(log)]
        named = [(16, True), (32, True), (32, False), (48, True)]
        assert steps == (named if name == "named" else [(32, False)])
    again = trainer("none", resume=True)
    assert [stats.epoch for stats in again] == [3]
    assert (bits(again), len(again.history)) == (straight["on"], 3)


def test_a_run_resumed_with_another_logger_starts_a_new_record(folder):
    first = trainer_of("on", max_epoch=2)
    first.run()
    path = save_trainer(first, folder / "checkpoint")
    again = trainer_of("on", logger=JsonlLogger(folder / "metrics.jsonl"))
    with pytest.warns(RuntimeWarning, match="kept by a LazyLogger; the JsonlLogger of this one begins a new record"):
        restore_trainer(again, path)
    again.run()
    steps = [record["step"] for record in read_metrics(folder / "metrics.jsonl") if record["scope"] == "test"]
    assert steps == [48]


class Forgetful(Paying):
    """Cannot tell its state."""

    get_env_state = property()


@pytest.mark.parametrize("kind", KINDS)
def test_environments_without_state_report_and_record_the_boundary(kind, folder):
    options = {"env": Forgetful, "step_per_collect": 6, "step_per_epoch": 6, "evaluate": False, "max_epoch": 1}
    options["logger"] = JsonlLogger(folder / "metrics.jsonl")
    first = trainer_of(kind, **options)
    first.run()
    path = save_trainer(first, folder / "checkpoint")
    again = trainer_of(kind, **{**options, "max_epoch": 2})
    with pytest.warns(
        RuntimeWarning, match="'light_sync' environments is not in the checkpoint: 2 running episodes end"
    ):
        restore_trainer(again, path)
    records = [record["data"] for record in read_metrics(folder / "metrics.jsonl") if record["scope"] == "save"]
    assert {"episodes_cut": 2} in records
    (stats,) = list(again)
    assert stats.train_collect_stat.returns.tolist() == []  # new episodes: three steps of four


@pytest.mark.parametrize("kind", KINDS)
def test_a_seeded_trainer_by_hand_draws_the_numbers_of_a_configuration(kind):
    def trace_of(seed):
        config = config_of(kind, seed=0)  # the weights are drawn with the policy
        policy = config.build_policy()
        vectors = [gym.vector.SyncVectorEnv([Paying] * 2) for _ in range(2)]
        collectors = Collector(policy, vectors[0], exploration_noise=True), Collector(policy, vectors[1])
        given = dict(zip(("train_collector", "test_collector"), collectors))
        trace = TraceLogger(policy.module)
        by_hand(config, policy=policy, seed=seed, logger=trace, **given).run()
        return trace

    one, two, other = trace_of(5), trace_of(5), trace_of(6)
    assert one.first_difference(two) is None
    assert one.digest() != other.digest()
    configured, seeded = (config_of(kind, seed=seed).build_trainer() for seed in (5, 0))
    seeded.policy.set_state(configured.policy.get_state())  # the same weights
    seeded.policy.learner_group.learner.streams.set_state(RandomStreams(99).child("learner").get_state())
    seeded.policy.seed(99)
    seeded.set_seed(5)
    configured.run()
    seeded.run()
    assert bits(configured) == bits(seeded)
    if kind == "off":
        assert np.array_equal(configured.buffer.sample_indices(9), seeded.buffer.sample_indices(9))
    with pytest.raises(ValueError, match="seed=-1 is not allowed"):
        trace_of(-1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_ended_by_stop_fn_continues_until_max_epoch(kind, folder, straight):
    scores = iter([1.0, 9.0])
    options = {"compute_score_fn": lambda stats: next(scores), "stop_fn": lambda score: score >= 9.0}
    first = trainer_of(kind, callbacks=[CheckpointCallback(folder)], **options)
    assert first.run().stop_reason == "stop_fn"
    better = []
    again = trainer_of(kind, save_best_fn=better.append)
    restore_trainer(again, newest_checkpoint(folder))
    info = again.run()
    assert info.stop_reason == "max_epoch"
    assert (info.best_score, info.best_epoch, info.best_reward) == (9.0, 1, -4.0)
    assert better == []  # the scores after it are lower: the best is that of the first part
    assert bits(again) == straight[kind]


def test_checkpoint_callback_saves_prunes_and_suffices_to_resume(folder, straight):
    first = trainer_of("off", max_epoch=2, callbacks=[CheckpointCallback(folder, num_to_keep=1)])
    first.run()
    assert [path.name for path in folder.iterdir()] == ["step_000000000032"]
    again = trainer_of("off", callbacks=[CheckpointCallback(folder, interval=5)])
    restore_trainer(again, newest_checkpoint(folder))
    again.run()
    assert bits(again) == straight["off"]
    assert sorted(path.name for path in folder.iterdir()) == ["step_000000000032", "step_000000000048"]
    with pytest.raises(ValueError, match="interval=0 is not allowed; it must be a whole number, at least 1"):
        CheckpointCallback(folder, interval=0)


def test_checkpoint_callback_saves_what_the_callbacks_after_it_know(folder):
    class Counts(Callback):
        number = 0

        def on_epoch_end(self, event):
            self.number += 1

        def get_state(self):
            return {"number": self.number}

        def set_state(self, state):
            self.number = int(state["number"])

    trainer_of("on", evaluate=False, callbacks=[CheckpointCallback(folder), Counts()]).run()
    counts = Counts()
    restore_trainer(trainer_of("on", evaluate=False, callbacks=[counts]), newest_checkpoint(folder))
    assert counts.number == 3


@pytest.mark.parametrize("kind", KINDS)
def test_profiler_shares_out_all_the_time_of_a_run(kind, capsys):
    profiler = Profiler(print_at_end=True)
    trainer = trainer_of(kind, callbacks=[profiler])
    assert set(profiler.shares.values()) == {0.0}
    info = trainer.run()
    assert sum(profiler.shares.values()) == pytest.approx(1.0)
    assert profiler.total == pytest.approx(info.timing.total_time, abs=0.1)
    timing, seconds = info.timing, profiler.seconds
    assert seconds["environment"] == pytest.approx(timing.env_time)
    assert seconds["acting"] == pytest.approx(timing.act_time)
    collect = seconds["environment"] + seconds["acting"] + seconds["storing"]
    assert collect == pytest.approx(timing.train_time_collect)
    assert seconds["returns"] + seconds["update"] == pytest.approx(timing.train_time_update)
    assert seconds["evaluation"] == pytest.approx(timing.test_time)
    assert min(seconds.values()) > 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [*seconds, "together"]
    other = Profiler()
    other.set_state(copy.deepcopy(profiler.get_state()))
    assert other.total == pytest.approx(profiler.total)


class Filmed(Paying):
    """Its frames are one colour, as bright as it is far."""

    metadata = {"render_modes": ["rgb_array"]}

    def __init__(self, render_mode=None):
        super().__init__()
        self.render_mode = render_mode

    def render(self):
        return np.full((16, 16, 3), 60 * self.count, np.uint8)


def test_displays_profiles_and_checkpoints_change_no_bit_of_training(straight, folder):
    from rich.console import Console

    from lockstep.trainer import ProgressDisplay

    pytest.importorskip("imageio")
    console = Console(file=io.StringIO(), force_terminal=True)
    watchers = [ProgressDisplay(console, live=True), Profiler(), EarlyStop(patience=99), CheckpointCallback(folder)]
    for kind in KINDS:
        video = VideoCallback(folder / f"videos_{kind}", interval=2, suffix=".gif")
        logger = JsonlLogger(folder / f"{kind}.jsonl")
        trainer = trainer_of(kind, env=Filmed, callbacks=[video, *watchers], logger=logger)
        trainer.run()
        names = sorted(path.name for path in video.directory.iterdir())
        assert names == ["step_000000000000.gif", "step_000000000032.gif"]
        unwatched = trainer_of(kind, env=Filmed)
        unwatched.run()
        assert bits(trainer) == bits(unwatched)
        assert learned(trainer) == straight[kind][0]
        without = trainer_of(kind, evaluate=False)
        without.run()
        assert learned(without) == straight[kind][0]
    assert without_wall_time({"collect_time": 1}) == {}


@pytest.mark.parametrize("kind", KINDS)
def test_test_in_train_evaluates_once_in_an_interrupted_epoch(kind, folder):
    def trainer(*callbacks):
        options = {
            "compute_score_fn": lambda stats: 9.0 - stats.n_collected_episodes,
            "stop_fn": lambda score: score > 6,
        }
        options |= {"test_in_train": True, "step_per_epoch": 32, "max_epoch": 2, "episode_per_test": 3}
        return trainer_of(kind, callbacks=callbacks, **options)

    straight, first, again = trainer(), trainer(At("UpdateEnd", 16, KeyboardInterrupt())), trainer()
    straight.run()
    first.run()
    restore_trainer(again, save_trainer(first, folder / "checkpoint"))
    again.run()
    assert straight.test_episode == 3 * (1 + 2 * 2)
    assert (bits(again), again.test_episode) == (bits(straight), straight.test_episode)


def test_a_resume_that_is_refused_saves_nothing_and_is_refused_again(folder):

    def trainer(resume, **options):
        logger = JsonlLogger(folder / "metrics.jsonl", resume=resume)
        made = trainer_of("off", logger=logger, resume_from_log=resume, **options)
        made.save_checkpoint_fn = lambda *where: save_trainer(made, folder / f"step_{where[1]}")
        return made

    trainer(False, max_epoch=1).run()
    other, again, log = trainer(True), trainer(True), []
    other.callbacks.append(Recorder(log))
    other.train_collector.buffer = other.buffer = VectorReplayBuffer(10, other.train_collector.num_envs)
    for _ in range(2):
        with pytest.raises(ValueError, match="this one has size=10 with buffer_num=2"):
            other.run()
    assert log == []
    assert [path.name for path in folder.glob("step_*")] == ["step_16"]
    assert [stats.epoch for stats in again] == [2, 3]


def test_gradient_steps_after_a_failed_hook_follow_the_next_collect(folder):
    first, again = trainer_of("off", callbacks=[At("CollectEnd", 24, LookupError("mine"))]), trainer_of("off")
    with pytest.raises(LookupError, match="mine"):
        first.run()
    assert (first.env_step, first.gradient_step) == (24, 2)
    restore_trainer(again, save_trainer(first, folder / "checkpoint"))
    again.run()
    assert (again.env_step, again.gradient_step) == (48, 6)


def test_a_run_that_fails_at_its_start_raises_that_error_alone(folder):
    trainer = trainer_of("on", callbacks=[At("RunStart", 0, KeyboardInterrupt()), CheckpointCallback(folder)])
    assert trainer.run().stop_reason == "interrupted"
    trainer = trainer_of("on", callbacks=[At("RunStart", 0, LookupError("mine")), CheckpointCallback(folder)])
    with pytest.raises(LookupError, match="mine") as caught:
        trainer.run()
    assert not hasattr(caught.value, "__notes__")


@pytest.mark.parametrize("kind", fast_if("on".__eq__, KINDS))
def test_pending_records_of_an_interrupted_run_equal_those_of_a_whole_one(kind, folder):

    def run(name, *callbacks, go_on_from=None):
        path = folder / f"{name}.jsonl"
        logger = JsonlLogger(path, resume=go_on_from is not None, train_interval=40, update_interval=5)
        trainer = trainer_of(kind, logger=logger, callbacks=[*callbacks, CheckpointCallback(folder / name)])
        if go_on_from is not None:
            restore_trainer(trainer, go_on_from)
        trainer.run()
        return [record for record in records_of(path) if '"scope": "save"' not in record]

    straight = run("straight")
    run("again", At("UpdateEnd", 24, KeyboardInterrupt()))
    assert run("again", go_on_from=newest_checkpoint(folder / "again")) == straight


@pytest.mark.parametrize("at", fast_if((2, 3).__contains__, [1, 2, 3, 4, 5]))
@pytest.mark.parametrize("kind", TRAINERS)
def test_a_run_resumes_from_a_checkpoint_after_each_update(kind, at, folder):
    """Interrupted after the `at`-th update, inside an epoch or at its end; a new trainer goes on from there."""
    whole, again = trainer_of(kind), trainer_of(kind)
    whole.run()
    stopped = trainer_of(kind, callbacks=[Stops("UpdateEnd", "interrupted", at=at)])
    assert stopped.run().stop_reason == "interrupted"
    restore_trainer(again, save_trainer(stopped, folder / "checkpoint"))
    again.run()
    assert (again.env_step, again.gradient_step) == position(kind, 6)
    assert getattr(again, "samples_seen", 0) == getattr(whole, "samples_seen", 0)
    assert learned(again) == learned(whole)


def lengths_of(trainer):
    return [stats.train_collect_stat.n_collected_steps for stats in trainer.history]


@pytest.mark.parametrize("kind", KINDS)
def test_a_longer_run_continues_inside_its_short_epoch_bit_for_bit(kind, folder):
    """Epochs end where those of a run do that had that length from the beginning."""
    config = config_of(kind)
    short, longer, straight = (config.copy().reporting(total_steps=n).build_trainer() for n in (24, 64, 64))
    short.run()
    restore_trainer(longer, save_trainer(short, folder / "checkpoint"))
    longer.run()
    straight.run()
    assert [stats.info_stat.train_step for stats in longer.history] == [16, 24, 32, 48, 64]
    assert [stats.epoch for stats in longer.history] == [1, 2, 2, 3, 4]
    assert lengths_of(longer) == [16, 8, 8, 16, 16]
    assert learned(longer) == learned(straight)
    longer.test_collector = straight.test_collector = None  # it has made one evaluation more
    assert collected(longer) == collected(straight)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_interrupted_before_its_last_evaluation_resumes_with_it(kind, folder):
    config = config_of(kind).reporting(total_steps=40)
    first, again = config.build_trainer(callbacks=[At("UpdateEnd", 40, KeyboardInterrupt())]), config.build_trainer()
    assert first.run().stop_reason == "interrupted"
    restore_trainer(again, save_trainer(first, folder / "checkpoint"))
    assert not again.is_complete
    again.run()
    assert again.is_complete
    straight = config.build_trainer()
    straight.run()
    assert (again.env_step, again.test_episode, lengths_of(again)) == (40, 8, [16, 16, 8])
    assert (learned(again), collected(again)) == (learned(straight), collected(straight))
