"""`SelfPlay`: pool, draws, seats, results, refusals, and a run that goes on in the middle."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from agent_games import Duel, game_config
from parts import fast_if
from trainer_tools import learned

from lockstep import DQNConfig, PPOConfig
from lockstep.tracking.statistics import CollectStats
from lockstep.trainer import Callback, Opponents, SelfPlay, restore_trainer, save_trainer


def duel_config(algorithm=PPOConfig, **sections):
    config = game_config(Duel, algorithm)
    config.multi_agent(policies=["main"], policy_mapping_fn=to_main)
    config.training(train_batch_size=32, lr=3e-2)
    config.reporting(total_steps=64 * 4, steps_per_epoch=64)
    for name, options in sections.items():
        getattr(config, name)(**options)
    return config


def to_main(agent, episode):
    return "main"


def episode(number):
    return SimpleNamespace(id_=str(number))


def played(result, opponent="main_1", count=1):
    """A collect with `count` episodes of this result against an opponent."""
    returns = {1.0: (1.0, -1.0), 0.5: (0.0, 0.0), 0.0: (-1.0, 1.0)}[result]
    return CollectStats(
        count, count, returns=[0.0] * count, lens=[1] * count, agents=("x", "y"),
        agent_returns=(returns,) * count, agent_modules=(("main", opponent),) * count,
    )  # fmt: skip


class View:
    """Stands for a trainer: notes what is asked for."""

    def __init__(self, *modules):
        part = SimpleNamespace(check_spaces=lambda *spaces: None)
        config = SimpleNamespace(debugging=SimpleNamespace(seed=5))
        self.policy = SimpleNamespace(is_multi_agent=True, acting=dict.fromkeys(modules, part), config=config)
        env = SimpleNamespace(observation_space={"x": 0, "y": 0}, action_space={"x": 0, "y": 0})
        self.train_collector = SimpleNamespace(env=env)
        self.mapping = None

    def add_module(self, module_id, init_from, frozen):
        assert frozen
        self.policy.acting[module_id] = self.policy.acting[init_from]

    def remove_module(self, module_id):
        assert module_id not in self.mapping.pool
        del self.policy.acting[module_id]

    def set_policy_mapping_fn(self, mapping):
        self.mapping = mapping


def begun(*modules, **options):
    callback, view = SelfPlay("main", **options), View("main", *modules)
    callback.on_run_start(SimpleNamespace(trainer=view))
    return callback, view


def collect(callback, *stats):
    for each in stats:
        callback.on_collect_end(SimpleNamespace(stats=each))


def test_the_learner_plays_each_seat_and_the_pool_the_other():
    mapping = Opponents("main", ("x", "y"), ("a", "b"), (0.25, 0.75), seed=1)
    drawn = Counter()
    for number in range(4000):
        modules = [mapping(agent, episode(number)) for agent in ("x", "y")]
        assert modules[number % 2] == "main"
        drawn[modules[1 - number % 2]] += 1
        assert modules == [mapping(agent, episode(number)) for agent in ("x", "y")]
    assert drawn["a"] / 4000 == pytest.approx(0.25, abs=0.03)
    three = Opponents("main", (0, 1, 2), ("a", "b"), (0.5, 0.5), seed=1)
    for number in range(30):
        modules = [three(agent, episode(number)) for agent in (0, 1, 2)]
        assert modules.count("main") == 1
        assert len(set(modules)) == 2


def test_a_copy_joins_when_the_win_rate_over_a_window_passes_a_threshold():
    callback, view = begun(win_rate_threshold=0.5, window=4)
    assert callback.pool == ("main_1",) == view.mapping.pool
    collect(callback, played(1.0, count=2), played(0.0))
    assert callback.win_rate == 2 / 3
    assert callback.pool == ("main_1",)  # the window is not full
    collect(callback, played(0.0), played(0.5))
    assert callback.win_rate == 1.5 / 4
    collect(callback, played(0.5, count=4))
    assert callback.win_rate == 0.5  # not more than the threshold
    assert callback.pool == ("main_1",)
    collect(callback, played(1.0))
    assert callback.pool == ("main_1", "main_2") == view.mapping.pool
    assert callback.win_rate is None


@pytest.mark.parametrize("drop, left", [("oldest", ("main_2", "main_3")), ("weakest", ("main_1", "main_3"))])
def test_the_pool_has_at_most_so_many_copies_and_given_opponents_stay(drop, left):
    callback, view = begun("friend", opponents=["friend"], max_pool_size=2, window=2, drop=drop)
    collect(callback, played(1.0, "main_1", 2))
    assert callback.pool == ("friend", "main_1", "main_2")
    collect(callback, played(0.0, "main_1", 1), played(1.0, "main_2", 2))
    assert callback.pool == ("friend", *left)
    assert set(view.policy.acting) == {"main", "friend", *left}
    assert view.mapping.pool == callback.pool


def test_harder_opponents_are_drawn_more_often():
    callback, view = begun("a", opponents=["a"], draw="prioritized", window=20)
    assert callback.shares() == {"a": 0.5, "main_1": 0.5}
    collect(callback, played(1.0, "a", 8), played(0.0, "main_1", 8))
    assert callback.win_rates() == {"a": 0.9, "main_1": 0.1}
    shares = callback.shares()
    assert shares["main_1"] / shares["a"] == pytest.approx((0.9 / 0.1) ** 2)
    assert view.mapping.shares == tuple(shares.values())
    uniform, _ = begun("a", opponents=["a"], window=20)
    collect(uniform, played(1.0, "a", 8))
    assert uniform.shares() == {"a": 0.5, "main_1": 0.5}


def test_score_is_the_share_of_wins_against_the_pool():
    callback, _ = begun()
    stats = played(1.0, count=2)
    assert callback.score(stats) == 1.0
    assert callback.score(played(0.5)) == 0.5
    assert np.isnan(callback.score(CollectStats()))


@pytest.mark.parametrize(
    "options, words",
    [
        ({"begin_with_copy": False}, "leaves the pool empty"),
        ({"opponents": "main_1"}, "name modules in a list"),
        ({"win_rate_threshold": 1.0}, "win_rate_threshold=1.0"),
        ({"window": 0}, "window=0"),
        ({"max_pool_size": 0}, "max_pool_size=0"),
        ({"draw": "hard"}, "draw='hard'"),
        ({"drop": "newest"}, "drop='newest'"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_options_that_cannot_be_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        SelfPlay("main", **options)


@pytest.mark.parametrize(
    "config, options, words",
    [
        (duel_config, {"learner": "nobody"}, "names the modules .'nobody'.; there are .'main'."),
        (duel_config, {"learner": "main", "opponents": ["old"]}, "names the modules .'old'."),
    ],
)
def test_modules_that_are_not_there_are_refused_when_the_run_begins(config, options, words):
    trainer = config().build_trainer(callbacks=[SelfPlay(**options)])
    with pytest.raises(ValueError, match=words):
        trainer.run()


def test_a_policy_of_one_agent_is_refused():
    trainer = PPOConfig().environment("CartPole-v1").reporting(total_steps=64).build_trainer(callbacks=[SelfPlay()])
    with pytest.raises(ValueError, match="SelfPlay needs several agents"):
        trainer.run()


def run_of(algorithm=PPOConfig, *, evaluation=None, **options):
    options = {"window": 16, "max_pool_size": 2, "draw": "prioritized", "win_rate_threshold": 0.5, **options}
    callback = SelfPlay("main", **options)
    config = duel_config(algorithm, evaluation=evaluation or {})
    if algorithm is DQNConfig:
        config.env_runners(rollout_fragment_length=16).training(epsilon=0.2).debugging(seed=0)
    return config.build_trainer(callbacks=[callback]), callback


def test_the_learner_learns_copies_join_and_leave_and_none_of_them_changes():
    trainer, callback = run_of()
    learner = trainer.policy.learner_group.learner
    first, seats = {}, Counter()
    for _ in trainer:
        for module_id in callback.copies:
            weights = learner.get_weights(module_id)[module_id]
            before = first.setdefault(module_id, weights)
            assert all(np.array_equal(before[name], weights[name]) for name in weights)
            assert not learner.optimizers.of_module(module_id)
        seats.update(modules.index("main") for modules in trainer.history[-1].train_collect_stat.agent_modules)
    assert callback.num_copies >= 3
    assert set(trainer.policy.acting) == {"main", *callback.copies}
    newest = callback.copies[-1]
    logged = [epoch.metrics.get(f"win_rate/{newest}") for epoch in trainer.history]
    assert any(rate is not None and 0 < rate < 1 for rate in logged)
    assert len(callback.copies) == 2
    assert abs(seats[0] - seats[1]) <= 2
    obs = {agent: np.array([1.0, i], np.float32) for i, agent in enumerate("xy")}
    assert trainer.policy.acting["main"].compute_actions(np.stack(list(obs.values()))).tolist() == [1, 1]


@pytest.mark.parametrize("algorithm", fast_if(lambda config: config is PPOConfig, [PPOConfig, DQNConfig]))
def test_self_play_resumes_bit_for_bit_and_is_repeatable(algorithm, folder):
    (straight, one), (first, two), (again, three) = (run_of(algorithm) for _ in range(3))
    straight.run()
    assert one.num_copies > 2
    next(first)
    next(first)
    assert two.num_copies > 1
    path = save_trainer(first, folder / "checkpoint")
    restore_trainer(again, path)
    again.run()
    first.run() if first._phase.name == "OVER" else [*_rest(first)]
    assert three.get_state() == one.get_state() == two.get_state()
    assert learned(again) == learned(straight) == learned(first)


def _rest(trainer):
    while True:
        try:
            yield trainer.__next__()
        except StopIteration:
            return


class Leaves(Callback):
    """Raises at the end of an update in which a copy was asked for, before it has joined."""

    def on_update_end(self, event):
        if event.env_step == 128:
            raise KeyboardInterrupt


def test_a_run_ending_at_a_requested_copy_resumes_bit_for_bit(folder):
    (straight, one), (half, two), (again, three) = (run_of() for _ in range(3))
    straight.run()
    half.callbacks.append(Leaves())
    half.save_checkpoint_fn = lambda *where: save_trainer(half, folder / "checkpoint")
    half.run()
    assert set(two.copies) < set(half.policy.acting)
    restore_trainer(again, folder / "checkpoint")
    again.run()
    assert three.get_state() == one.get_state()
    assert learned(again) == learned(straight)


def test_a_learner_in_its_own_pool_learns_from_every_seat_without_results():
    callback = SelfPlay("main", win_rate_threshold=0.9, window=4, begin_with_copy=False, opponents=["main"])
    trainer = duel_config().build_trainer(callbacks=[callback])
    trainer.run()
    stats = trainer.history[-1].train_collect_stat
    assert set(stats.agent_modules) == {("main", "main")}
    assert callback.results(stats) == []
    assert (callback.pool, callback.win_rate) == (("main",), None)
    obs = np.array([[1.0, 0.0], [1.0, 1.0]], np.float32)
    assert trainer.policy.acting["main"].compute_actions(obs).tolist() == [1, 1]


BESIDE = {"evaluation_parallel_to_training": True}


def evaluated(trainer):
    found = [epoch.test_collect_stat for epoch in trainer.history]
    return [[(*modules, *returns) for modules, returns in zip(e.agent_modules, e.agent_returns)] for e in found]


def test_a_pool_that_grows_is_evaluated_beside_training_as_in_turn(folder):
    (turn, one), (beside, two), (half, _), (again, three) = (
        run_of(evaluation=options) for options in ({}, BESIDE, BESIDE, BESIDE)
    )
    turn.run()
    beside.run()
    assert len({name for found in evaluated(beside) for episode in found for name in episode[:2]}) > 2
    assert evaluated(beside) == evaluated(turn)
    next(half)
    next(half)
    restore_trainer(again, save_trainer(half, folder / "checkpoint"))
    again.run()
    half.close()
    assert evaluated(again) == evaluated(turn)
    assert learned(again) == learned(beside) == learned(turn)
    assert one.get_state() == two.get_state() == three.get_state()


class AddsAndStops(Callback):
    """Adds a module in the middle of the second epoch, and ends the run there."""

    def on_run_start(self, event):
        self.trainer = event.trainer

    def on_update_end(self, event):
        if event.env_step == 96:
            self.trainer.add_module("new", init_from="main")
        if event.env_step == 128:
            raise KeyboardInterrupt


def test_an_evaluation_that_runs_uses_the_present_policy_and_new_modules(folder):
    half, again = (duel_config(evaluation=BESIDE).build_trainer(callbacks=each) for each in ([AddsAndStops()], []))
    half.save_checkpoint_fn = lambda *where: save_trainer(half, folder / "checkpoint")
    half.run()
    half.close()
    restore_trainer(again, folder / "checkpoint")
    with pytest.warns(RuntimeWarning, match=r"an evaluation of epoch 1 was running, of .* .'main'.; now there are"):
        next(again)
    again.close()


def test_another_seed_draws_other_opponents():
    def drawn(seed):
        mapping = Opponents("main", ("x", "y"), ("a", "b"), (0.5, 0.5), seed)
        return [mapping("y", episode(2 * number)) for number in range(64)]

    assert drawn(1) == drawn(1) != drawn(2)
