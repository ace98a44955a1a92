"""What a checkpoint is refused for, and that nothing is changed then; options that a run goes on with."""

import copy
import warnings
from functools import partial

import pytest
from agent_games import CountingGame, game_config
from parts import fast_if
from scenario_tools import Paying, config_of, trainer_of
from trainer_tools import by_hand, collected, digest, learned

import lockstep
from lockstep import Collector, DQNConfig, Policy, PPOConfig, load_policy
from lockstep.replay import PrioritizedVectorReplayBuffer, VectorReplayBuffer
from lockstep.runs.run import prepare_run, resume
from lockstep.state.checkpoint import CheckpointError, write_checkpoint
from lockstep.tracking import JsonlLogger
from lockstep.trainer import restore_trainer, save_trainer


class Other(Paying):
    """Other environments with the same spaces."""


def filling(buffer, *arguments, **options):
    """A maker of an off-policy trainer without evaluation that collects into a buffer of this class."""
    own = {name: options.pop(name) for name in ("n_step", "alpha", "beta") if name in options}
    return lambda: trainer_of("off", evaluate=False, replay=buffer(*arguments, **own), **options)


def with_test_environments(number):
    return by_hand(config_of("off").evaluation(evaluation_duration=number, evaluation_num_envs=number))


def with_network(hiddens):
    return config_of("off").rl_module(model_config={"hiddens": hiddens}).build_trainer()


REFUSED = {
    "another size of buffer": (filling(VectorReplayBuffer, 10, 2), r"state is of a buffer of size="),
    "another number of test environments": (lambda: with_test_environments(3), r"test_collector .* has 2 env.*has 3"),
    "another number of environments": (filling(VectorReplayBuffer, 64, 1), "train_collector .* has 1 env"),
    "another network": (lambda: with_network((5,)), r"shape|parameters"),
    "other environments": (filling(VectorReplayBuffer, 64, 2, env=Other), "is of a Paying, .* is a Other"),
    "priorities": (filling(PrioritizedVectorReplayBuffer, 64, 2), "without priorities"),
}


@pytest.mark.parametrize("ran", fast_if(bool, [False, True]))
@pytest.mark.parametrize("case", REFUSED)
def test_a_checkpoint_of_another_shape_is_refused_and_changes_nothing(case, ran, folder):
    first = trainer_of("off")
    first.run()
    path = save_trainer(first, folder / "checkpoint")
    make, message = REFUSED[case]
    other, twin = make(), make()
    for trainer in (other, twin):
        trainer.max_epoch = 1
        if ran:
            trainer.run()
    before = other.env_step, other.gradient_step, len(other.buffer)
    with pytest.raises(ValueError, match=message):
        restore_trainer(other, path)
    assert before == (other.env_step, other.gradient_step, len(other.buffer))
    for trainer in (other, twin):
        trainer.max_epoch = 2
        trainer.run()
    assert learned(other) == learned(twin)
    assert collected(other) == collected(twin)
    assert other.buffer.streams.get_state() == twin.buffer.streams.get_state()


def test_rows_that_a_collector_holds_stay_where_a_checkpoint_is_refused(folder):
    first, other = trainer_of("on"), trainer_of("on", env=Other)
    first.run()
    collector = other.train_collector
    collector.collect(n_step=4)
    before = digest([collector.store.obs, collector.streams.get_state(), collector.collect_step, collector.num_resets])
    with pytest.raises(ValueError, match=r"is of a Paying, .* is a Other"):
        restore_trainer(other, save_trainer(first, folder / "checkpoint"))
    assert collector.store.size == 2
    assert before == digest(
        [collector.store.obs, collector.streams.get_state(), collector.collect_step, collector.num_resets]
    )
    collector.collect(n_step=8)
    obs = [episode.get_observations()[:, 0].tolist() for episode in collector.store.episodes()]
    assert sorted(obs) == [[0, 0.25, 0.5], [0, 0.25, 0.5], [0, 0.25, 0.5, 0.75, 1], [0, 0.25, 0.5, 0.75, 1]]


@pytest.mark.parametrize("other", [partial(trainer_of, "off", env=Other), lambda: with_test_environments(3)])
def test_a_state_that_collectors_cannot_restore_changes_no_counter(other):
    first, other = trainer_of("off"), other()
    first.run()
    other.max_epoch = 1
    other.run()
    before = other.info(), collected(other)
    with pytest.raises(ValueError, match=r"is of a Paying|has 2 environments"):
        other.set_state(first.get_state())
    assert (other.info(), collected(other)) == before


def beside_training(**options):
    config = config_of("off").evaluation(evaluation_parallel_to_training=True)
    options.setdefault("test_collector", lambda policy: config.build_test_collector(copy.deepcopy(policy)))
    return by_hand(config, evaluation_parallel_to_training=True, max_epoch=1, **options)


@pytest.mark.parametrize("drop_replay", [False, True])
def test_a_policy_under_evaluation_that_is_refused_changes_no_buffer(drop_replay, folder):
    first, other = beside_training(), beside_training()
    other.run()
    wrong = with_network((5,)).policy.checkpoint_folders()
    folders = {**first.checkpoint_folders(), **{f"evaluation/{name}": part for name, part in wrong.items()}}
    path = write_checkpoint(folder / "checkpoint", folders)
    before = collected(other), other.info(), weights_of(other), other.evaluator.policy.weights_seq_no
    with pytest.raises(ValueError, match=r"shape|parameters"):
        other.restore_from_path(path, drop_replay=drop_replay)
    assert len(other.buffer) == 16
    assert (collected(other), other.info(), weights_of(other), other.evaluator.policy.weights_seq_no) == before


def test_an_evaluation_that_runs_is_dropped_if_the_buffer_is_refused(folder):
    first = beside_training()
    first.evaluator.begin((1, 8, 1))
    first.evaluator.wait()
    folders = first.checkpoint_folders()
    assert any(name.startswith("evaluation/") for name in folders)
    other = beside_training(replay=VectorReplayBuffer(10, 2))
    with pytest.raises(ValueError, match="state is of a buffer of size="):
        restore_trainer(other, write_checkpoint(folder / "checkpoint", folders))
    assert other.evaluator.pending_state() is None
    assert not other.evaluator._has_snapshot


def weights_of(trainer):
    return digest(trainer.policy.get_state()["learner_group"]["learner"]["rl_module"])


def test_buffers_of_several_agents_are_restored_all_or_none(folder):
    def build(**replay):
        config = game_config(CountingGame, DQNConfig)
        config.replay(**replay)
        return config.build_trainer()

    first = build()
    first.run()
    path, other = save_trainer(first, folder / "checkpoint"), build()
    last = list(other.buffer.buffers)[-1]
    other.buffer.buffers[last] = type(other.buffer.buffers[last])(7, buffer_num=other.buffer.buffers[last].buffer_num)
    with pytest.raises(ValueError, match="state is of a buffer of size="):
        restore_trainer(other, path)
    assert len(other.buffer) == 0
    assert weights_of(other) == weights_of(build())


def test_the_records_of_a_run_stay_where_its_checkpoint_is_refused(folder):
    first = trainer_of("off", logger=JsonlLogger(folder / "metrics.jsonl"), max_epoch=1)
    first.run()
    path = save_trainer(first, folder / "checkpoint")
    first.max_epoch = 3
    restore_trainer(first, path)
    first.run()
    records = (folder / "metrics.jsonl").read_bytes()
    other = filling(VectorReplayBuffer, 10, 2, logger=JsonlLogger(folder / "metrics.jsonl", resume=True))()
    with pytest.raises(ValueError, match="state is of a buffer of size="):
        restore_trainer(other, path)
    assert (folder / "metrics.jsonl").read_bytes() == records


def other_gamma(kind):
    other = trainer_of(kind)
    other.policy.config = other.policy.config.copy().training(gamma=0.5)
    return other


def of_modules(gamma):
    overrides = {} if gamma is None else {"first": {"gamma": gamma}}
    return game_config(CountingGame).rl_module(algorithm_config_overrides_per_module=overrides).build_trainer()


plain, prioritised = partial(filling, VectorReplayBuffer, 64, 2), partial(filling, PrioritizedVectorReplayBuffer, 64, 2)
CHANGED = {
    "batch_size": (plain(), plain(batch_size=5), r"batch_size=5 \(was 4\)"),
    "update_per_step": (plain(), plain(update_per_step=1), r"step=1.0 \(was 0.125\)"),
    "n_step": (plain(), plain(n_step=3), r"replay.n_step=3 \(was 1\)"),
    "priorities": (
        prioritised(),
        prioritised(alpha=0.7, beta=0.5),
        r"replay.alpha=0.7 \(was 0.6\), replay.beta=0.5 \(was 0.4\)",
    ),
    "on-policy": (partial(trainer_of, "on"), partial(other_gamma, "on"), r"policy.gamma=0.5 \(was 0.99\); from here"),
    "off-policy": (partial(trainer_of, "off"), partial(other_gamma, "off"), r"policy.gamma=0.5 \(was 0.99\)"),
    "a module": (partial(of_modules, 0.5), partial(of_modules, None), r"={} \(was {'first': {'gamma': 0.5}}\)"),
}


@pytest.mark.parametrize("case", CHANGED)
def test_a_changed_option_is_reported_and_a_changed_length_is_not(case, folder):
    make, make_other, message = CHANGED[case]
    path = save_trainer(make(), folder / "checkpoint")
    with pytest.warns(RuntimeWarning, match=message):
        restore_trainer(make_other(), path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        longer = make()
        longer.max_epoch = 9
        restore_trainer(longer, path)


def test_a_policy_with_unnamed_functions_as_options_saves_and_restores(folder):
    path = save_trainer(config_of("off").build_trainer(), folder / "checkpoint")
    trainer = config_of("off").training(lr=lambda step: 1e-3).build_trainer()
    restore_trainer(trainer, path)
    options = trainer.get_state()["options"]
    assert options["policy.gamma"] == 0.99
    assert "policy.lr" not in options


def test_a_collector_without_a_buffer_gets_the_one_of_the_configuration():
    config = config_of("off")
    config.replay(capacity=40, n_step=3, prioritized=True, alpha=0.7)
    collector = partial(Collector, env=config.make_envs(2))
    trainer = by_hand(config, train_collector=collector, max_epoch=1, update_per_step=1)
    assert (trainer.buffer.maxsize, trainer.buffer.options.n_step, trainer.buffer.buffer_num) == (40, 3, 2)
    assert trainer.buffer.priority_options()["alpha"] == 0.7
    assert trainer.run().gradient_step == 16


def test_a_run_that_cannot_begin_leaves_no_folder(folder):
    for env, settings, words in (("CartPole-v1", {"training.num_epochs": 0}, "num_epochs"), ("No-v9", {}, "No-v9")):
        with pytest.raises(ValueError, match=words):
            lockstep.train("ppo", env, root=folder, settings=settings)
    assert list(folder.iterdir()) == []


def test_resuming_to_the_same_total_steps_is_no_error(folder):
    config = config_of("off")
    config.reporting(total_steps=42)
    result = lockstep.train(config, root=folder)
    assert result.info.train_step == 48
    assert resume(result.path, total_steps=42).info.train_step == 48
    assert resume(result.path, total_steps=58).info.train_step == 64
    with pytest.raises(ValueError, match=r"total_steps=42 is not allowed; the run in .* has 64 steps already"):
        resume(result.path, total_steps=42)


def cartpole(cls=PPOConfig):
    config = cls().environment("CartPole-v1").rl_module(model_config={"hiddens": (8,)})
    return config.reporting(total_steps=64).evaluation(evaluation_duration=1)


@pytest.fixture(scope="module")
def finished(shared_folder):
    config = cartpole().training(train_batch_size=64, minibatch_size=32)
    return prepare_run(config, shared_folder).finish().path


def test_the_state_of_another_algorithm_is_refused_with_both_names(folder):
    learner, other = cartpole().build_learner(), cartpole(DQNConfig).build_learner()
    of_both = r"does not fit this PPOLearner \(of DefaultActorCriticModule\): it is of a DQNLearner; from_checkpoint"
    for path in (other.save_to_path(folder / "learner"), cartpole(DQNConfig).build_policy().save_to_path()):
        with pytest.raises(ValueError, match=of_both):
            learner.restore_from_path(path)
    with pytest.raises(ValueError, match=of_both):
        cartpole().build_policy().restore_from_path(path)
    with pytest.raises(ValueError, match=r"does not fit this PPOLearner \(of DefaultActorCriticModule\), nothing"):
        learner.set_state(other.get_state())


def test_a_folder_of_a_run_says_where_its_policy_is(finished):
    for path in (finished, finished / "best", finished / "checkpoints"):
        with pytest.raises(CheckpointError, match=r"is in best/policy of its folder, and lockstep.load_policy"):
            Policy.from_checkpoint(path)
    assert isinstance(load_policy(finished), Policy)
    with pytest.raises(CheckpointError, match=r"it is not a directory$"):
        Policy.from_checkpoint("nothing/at/all")


def test_what_a_checkpoint_without_a_policy_holds_is_told():
    learner = cartpole().build_learner()
    module = learner.module["default_policy"].save_to_path()
    with pytest.raises(ValueError, match=r"holds no policy, but an RLModule \(RLModule.from_checkpoint reads it\)"):
        Policy.from_checkpoint(module)
    with pytest.raises(ValueError, match=r"holds no policy, but a learner \(Learner.from_checkpoint reads it\)"):
        cartpole().build_policy().restore_from_path(learner.save_to_path())
