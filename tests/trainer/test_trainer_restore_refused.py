"""What a checkpoint is refused for, and that nothing is changed then; options that a run goes on with."""

import warnings
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from agent_games import CountingGame, game_config
from scenario_tools import Paying, config_of, offline_trainer_of, trainer_of
from trainer_tools import collected, digest, learned, smallest_config

import lockstep
from lockstep import Collector, DQNConfig, MultiAgentCollector, OffpolicyTrainer, Policy, PPOConfig, load_policy
from lockstep.replay import PrioritizedVectorReplayBuffer, VectorReplayBuffer
from lockstep.state import read_checkpoint, write_checkpoint
from lockstep.state.checkpoint import CheckpointError
from lockstep.tracking import JsonlLogger
from lockstep.trainer import restore_trainer, save_trainer
from lockstep.trainer.run import prepare_run, resume


class Other(Paying):
    """Other environments with the same spaces."""


def vector(number, env=Paying):
    return gym.vector.SyncVectorEnv([env] * number, autoreset_mode="SameStep")


def with_buffer(buffer, env=Paying, **options):
    """An off-policy trainer whose collector fills this buffer."""
    config = config_of("off")
    policy = config.build_policy()
    collector = Collector(policy, vector(buffer.buffer_num, env), buffer)
    given = {"max_epoch": 3, "step_per_epoch": 16, "step_per_collect": 8, "update_per_step": 0.125, "batch_size": 4}
    return OffpolicyTrainer(policy, train_collector=collector, **{**given, **options})


def with_test_environments(number):
    trainer = trainer_of("off")
    trainer.test_collector = Collector(trainer.policy, vector(number), seed=1)
    return trainer


def with_network(hiddens):
    config = config_of("off")
    config.rl_module(model_config={"hiddens": hiddens})
    return config.build_trainer()


REFUSED = {
    "another size of buffer": (lambda: with_buffer(VectorReplayBuffer(10, 2)), r"state is of a buffer of size="),
    "another number of test environments": (lambda: with_test_environments(3), r"test_collector .* has 2 env.*has 3"),
    "another number of environments": (lambda: with_buffer(VectorReplayBuffer(64, 1)), "train_collector .* has 1;"),
    "another network": (lambda: with_network((5,)), r"shape|parameters"),
    "other environments": (lambda: with_buffer(VectorReplayBuffer(64, 2), Other), "is of a Paying, .* is a Other"),
    "priorities": (lambda: with_buffer(PrioritizedVectorReplayBuffer(64, 2)), "without priorities"),
}


@pytest.mark.parametrize("ran", [False, True])
@pytest.mark.parametrize("case", REFUSED)
def test_a_checkpoint_of_another_shape_is_refused_and_changes_nothing(case, ran, tmp_path):
    first = trainer_of("off")
    first.run()
    path = save_trainer(first, tmp_path / "checkpoint")
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


def test_rows_that_a_collector_holds_stay_where_a_checkpoint_is_refused(tmp_path):
    first, other = trainer_of("on"), trainer_of("on", env=Other)
    first.run()
    collector = other.train_collector
    collector.collect(n_step=4)
    before = digest([collector.store.obs, collector.streams.get_state(), collector.collect_step, collector.num_resets])
    with pytest.raises(ValueError, match=r"is of a Paying, .* is a Other"):
        restore_trainer(other, save_trainer(first, tmp_path / "checkpoint"))
    assert collector.store.size == 2
    assert before == digest(
        [collector.store.obs, collector.streams.get_state(), collector.collect_step, collector.num_resets]
    )
    collector.collect(n_step=8)
    obs = [episode.get_observations()[:, 0].tolist() for episode in collector.store.episodes()]
    assert sorted(obs) == [[0, 0.25, 0.5], [0, 0.25, 0.5], [0, 0.25, 0.5, 0.75, 1], [0, 0.25, 0.5, 0.75, 1]]


@pytest.mark.parametrize("other", [partial(trainer_of, "off", env=Other), lambda: with_test_environments(3)])
def test_a_state_that_the_collectors_cannot_have_is_refused_and_changes_no_counter(other):
    first, other = trainer_of("off"), other()
    first.run()
    other.max_epoch = 1
    other.run()
    before = other.info(), collected(other)
    with pytest.raises(ValueError, match=r"is of a Paying|has 2 environments"):
        other.set_state(first.get_state())
    assert (other.info(), collected(other)) == before


def test_a_run_goes_on_in_the_same_environments_of_another_back_end(tmp_path):
    first, other = trainer_of("off", max_epoch=1), with_buffer(VectorReplayBuffer(64, 2))
    backends = {one.train_collector.env.backend for one in (first, other)}
    assert backends == {"light_sync", "gymnasium_sync"}
    first.run()
    restore_trainer(other, save_trainer(first, tmp_path / "checkpoint"))
    assert not other.train_collector.episodes_cut
    for trainer in (first, other):
        trainer.train_collector.collect(n_step=6)
    states = [trainer.train_collector.get_state() for trainer in (first, other)]
    assert digest(states[0]["env"]["envs"]) == digest(states[1]["env"]["envs"])


def test_a_run_goes_on_from_a_checkpoint_whatever_was_collected_in_between(tmp_path):
    first = trainer_of("on", max_epoch=2)
    first.run()
    path, other, straight = save_trainer(first, tmp_path / "checkpoint"), trainer_of("on"), trainer_of("on")
    other.train_collector.collect(n_step=8)
    restore_trainer(other, path)
    for trainer in (other, straight):
        assert trainer.run().train_step == 48
    assert learned(other) == learned(straight)


def weights_of(trainer):
    return digest(trainer.policy.get_state()["learner_group"]["learner"]["rl_module"])


def test_buffers_of_several_agents_are_restored_all_or_none(tmp_path):
    def build(**replay):
        config = game_config(CountingGame, DQNConfig)
        config.replay(**replay)
        return config.build_trainer()

    first = build()
    first.run()
    path, other = save_trainer(first, tmp_path / "checkpoint"), build()
    last = list(other.buffer.buffers)[-1]
    other.buffer.buffers[last] = type(other.buffer.buffers[last])(7, buffer_num=other.buffer.buffers[last].buffer_num)
    with pytest.raises(ValueError, match="state is of a buffer of size="):
        restore_trainer(other, path)
    assert len(other.buffer) == 0
    assert weights_of(other) == weights_of(build())


def test_the_records_of_a_run_stay_where_its_checkpoint_is_refused(tmp_path):
    first = trainer_of("off", logger=JsonlLogger(tmp_path / "metrics.jsonl"), max_epoch=1)
    first.run()
    path = save_trainer(first, tmp_path / "checkpoint")
    first.max_epoch = 3
    restore_trainer(first, path)
    first.run()
    records = (tmp_path / "metrics.jsonl").read_bytes()
    other = with_buffer(VectorReplayBuffer(10, 2), logger=JsonlLogger(tmp_path / "metrics.jsonl", resume=True))
    with pytest.raises(ValueError, match="state is of a buffer of size="):
        restore_trainer(other, path)
    assert (tmp_path / "metrics.jsonl").read_bytes() == records


CHANGED = {
    "batch_size": (lambda: with_buffer(VectorReplayBuffer(64, 2), batch_size=5), r"batch_size=5 \(was 4\)"),
    "update_per_step": (lambda: with_buffer(VectorReplayBuffer(64, 2), update_per_step=1), r"step=1.0 \(was 0.125\)"),
    "n_step": (lambda: with_buffer(VectorReplayBuffer(64, 2, n_step=3)), r"buffer.n_step=3 \(was 1\)"),
}


@pytest.mark.parametrize("case", CHANGED)
def test_another_option_than_the_run_had_is_told(case, tmp_path):
    make, message = CHANGED[case]
    path = save_trainer(with_buffer(VectorReplayBuffer(64, 2)), tmp_path / "checkpoint")
    with pytest.warns(RuntimeWarning, match=message):
        restore_trainer(make(), path)


def test_other_priorities_than_the_run_had_are_told(tmp_path):
    first = with_buffer(PrioritizedVectorReplayBuffer(64, 2, alpha=0.6))
    path = save_trainer(first, tmp_path / "checkpoint")
    with pytest.warns(RuntimeWarning, match=r"buffer.alpha=0.7 \(was 0.6\), buffer.beta=0.5 \(was 0.4\)"):
        restore_trainer(with_buffer(PrioritizedVectorReplayBuffer(64, 2, alpha=0.7, beta=0.5)), path)


@pytest.mark.parametrize("kind", ["on", "off"])
def test_other_options_of_the_policy_than_the_run_had_are_told(kind, tmp_path):
    path = save_trainer(trainer_of(kind), tmp_path / "checkpoint")
    other = trainer_of(kind)
    other.policy.config = other.policy.config.copy().training(gamma=0.5)
    with pytest.warns(RuntimeWarning, match=r"policy.gamma=0.5 \(was 0.99\); from here"):
        restore_trainer(other, path)


def test_other_options_of_a_module_than_the_run_had_are_told(tmp_path):
    of_modules = {"first": {"gamma": 0.5}}
    config = game_config(CountingGame).rl_module(algorithm_config_overrides_per_module=of_modules)
    path = save_trainer(config.build_trainer(), tmp_path / "checkpoint")
    with pytest.warns(RuntimeWarning, match=r"overrides_per_module={} \(was {'first': {'gamma': 0.5}}\); from here"):
        restore_trainer(game_config(CountingGame).build_trainer(), path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        restore_trainer(config.copy().build_trainer(), path)


def test_a_policy_whose_options_are_functions_without_a_name_has_a_state_and_goes_on_from_others(tmp_path):
    path = save_trainer(config_of("off").build_trainer(), tmp_path / "checkpoint")
    trainer = config_of("off").training(lr=lambda step: 1e-3).build_trainer()
    restore_trainer(trainer, path)
    options = trainer.get_state()["options"]
    assert options["policy.gamma"] == 0.99
    assert "policy.lr" not in options


@pytest.mark.parametrize("make", [partial(trainer_of, "on"), partial(trainer_of, "off"), offline_trainer_of])
def test_a_longer_run_is_no_other_option(make, tmp_path):
    path = save_trainer(make(), tmp_path / "checkpoint")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        longer = make(max_epoch=9)
        restore_trainer(longer, path)
    assert longer.max_epoch == 9


@pytest.mark.parametrize("algorithm", ["ppo", "td3"])
def test_a_run_goes_on_from_a_checkpoint_that_tells_neither_options_nor_whose_actions_it_holds(algorithm, tmp_path):
    first, straight, other = (smallest_config(algorithm).build_trainer() for _ in range(3))
    first.max_epoch = 1
    first.run()
    folders = read_checkpoint(save_trainer(first, tmp_path / "checkpoint"))
    del folders["trainer"]["state"]["options"]  # as of versions before both were kept
    folders.get("replay", {}).pop("action_form", None)
    restore_trainer(other, write_checkpoint(tmp_path / "earlier", folders))
    if algorithm == "td3":
        assert other.buffer.action_form == other.policy.action_form is not None
    for trainer in (straight, other):
        trainer.run()
    assert (learned(other), collected(other)) == (learned(straight), collected(straight))


def test_a_collector_without_a_buffer_gets_the_one_of_the_configuration():
    config = config_of("off")
    config.replay(capacity=40, n_step=3, prioritized=True, alpha=0.7)
    policy = config.build_policy()
    common = {"max_epoch": 1, "step_per_epoch": 16, "step_per_collect": 8, "batch_size": 4}
    trainer = OffpolicyTrainer(policy, train_collector=Collector(policy, vector(2)), **common)
    assert (trainer.buffer.maxsize, trainer.buffer.options.n_step, trainer.buffer.buffer_num) == (40, 3, 2)
    assert trainer.buffer.priority_options()["alpha"] == 0.7
    assert trainer.run().gradient_step == 16


@pytest.mark.parametrize("algorithm", ["bc", "cql", "iql", "marwil", "td3_bc"])
def test_of_an_algorithm_without_a_replay_section_a_collector_gets_a_plain_buffer(algorithm):
    config = smallest_config(algorithm)
    policy = config.build_policy()
    envs = gym.vector.SyncVectorEnv([partial(gym.make, config.env)] * 2, autoreset_mode="SameStep")
    common = {"max_epoch": 1, "step_per_epoch": 16, "step_per_collect": 8, "batch_size": 4}
    trainer = OffpolicyTrainer(policy, train_collector=Collector(policy, envs), **common)
    assert (trainer.buffer.maxsize, trainer.buffer.buffer_num, trainer.buffer.options.n_step) == (100_000, 2, 1)
    assert trainer.buffer.priorities is None


def test_a_collector_of_several_agents_gets_the_buffers_of_the_configuration():
    config = game_config(CountingGame, DQNConfig)
    config.replay(capacity=60, n_step=2)
    policy = config.build_policy()
    collector = MultiAgentCollector(policy, CountingGame)
    common = {"max_epoch": 1, "step_per_epoch": 16, "step_per_collect": 8, "batch_size": 4}
    buffers = OffpolicyTrainer(policy, train_collector=collector, **common).buffer.buffers
    assert {buffer.options.size for buffer in buffers.values()} == {60}
    assert {buffer.options.n_step for buffer in buffers.values()} == {2}


def test_a_run_that_cannot_begin_leaves_no_folder(tmp_path):
    root = tmp_path / "runs"
    with pytest.raises(ValueError, match="num_epochs"):
        lockstep.train("ppo", "CartPole-v1", root=root, settings={"training.num_epochs": 0})
    with pytest.raises(ValueError, match="NoSuchThing-v9"):
        lockstep.train("ppo", "NoSuchThing-v9", root=root)
    assert not root.exists()
    with pytest.raises(ValueError, match="NoSuchThing-v9"):
        lockstep.train("ppo", "NoSuchThing-v9", root=tmp_path / "made" / "on" / "the" / "way")
    assert list(tmp_path.iterdir()) == []
    (root / "another").mkdir(parents=True)
    with pytest.raises(ValueError, match="NoSuchThing-v9"):
        lockstep.train("ppo", "NoSuchThing-v9", root=root)
    assert [path.name for path in root.iterdir()] == ["another"]


def test_to_go_on_to_fewer_steps_than_there_are_is_refused_and_changes_nothing(tmp_path):
    result = lockstep.train(config_of("off"), root=tmp_path)
    files = {path: path.read_bytes() for path in result.path.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=r"total_steps=16 is not allowed; the run in .* has 48 steps already"):
        resume(result.path, total_steps=16)
    assert {path: path.read_bytes() for path in result.path.rglob("*") if path.is_file()} == files
    assert resume(result.path, total_steps=48).info.train_step == 48


@pytest.mark.parametrize("total_steps", ["64", 0, -3, 64.5, True])
def test_to_go_on_to_what_is_no_number_of_steps_is_refused(total_steps, tmp_path):
    result = lockstep.train(config_of("off"), root=tmp_path)
    with pytest.raises(ValueError, match=f"total_steps={total_steps!r} is not allowed; it must be a whole number, at"):
        resume(result.path, total_steps=total_steps)


def test_to_go_on_to_as_many_steps_as_the_run_was_asked_for_is_no_error_where_its_last_epoch_has_more(tmp_path):
    config = config_of("off")
    config.reporting(total_steps=42)
    result = lockstep.train(config, root=tmp_path)
    assert result.info.train_step == 48
    assert resume(result.path, total_steps=42).info.train_step == 48
    assert resume(result.path, total_steps=58).info.train_step == 64
    with pytest.raises(ValueError, match=r"total_steps=42 is not allowed; the run in .* has 64 steps already"):
        resume(result.path, total_steps=42)


@pytest.mark.parametrize("saves", [False, True])
def test_a_loss_that_is_not_finite_names_a_checkpoint_only_where_there_is_one(saves, tmp_path):
    options = {"save_checkpoint_fn": lambda *where: save_trainer(trainer, tmp_path / "last")} if saves else {}
    trainer = trainer_of("off", **options)
    learner = trainer.policy.learner_group.learner
    compute = learner.compute_losses
    learner.compute_losses = lambda **given: {name: np.nan * loss for name, loss in compute(**given).items()}
    with pytest.raises(FloatingPointError) as told:
        trainer.run()
    assert "trainer.bad_batch" in str(told.value)
    assert ("in the last checkpoint" in str(told.value)) == saves == (tmp_path / "last").exists()


def cartpole(cls=PPOConfig):
    config = cls().environment("CartPole-v1").rl_module(model_config={"hiddens": (8,)})
    return config.reporting(total_steps=64).evaluation(evaluation_episodes=1)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    config = cartpole().training(train_batch_size=64, minibatch_size=32)
    return prepare_run(config, tmp_path_factory.mktemp("runs")).finish().path


def test_the_state_of_another_algorithm_is_refused_with_both_names(tmp_path):
    learner, other = cartpole().build_learner(), cartpole(DQNConfig).build_learner()
    of_both = r"does not fit this PPOLearner \(of DefaultActorCriticModule\): it is of a DQNLearner; from_checkpoint"
    for path in (other.save_to_path(tmp_path / "learner"), cartpole(DQNConfig).build_policy().save_to_path()):
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
