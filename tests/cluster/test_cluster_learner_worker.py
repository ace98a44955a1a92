"""A learner in another process that has to continue as its peers: after a restart, a resize, a call that failed."""

import pickle
import threading

import pytest
from agent_games import CountingGame, game_config
from cluster_parts import assert_near

from lockstep.cluster.learner_worker import restore_snapshot, take_snapshot
from lockstep.connectors import Connector


class Locked(Connector):
    """A connector with a lock, which no other process can be sent."""

    def __init__(self):
        self.lock = threading.Lock()

    def __call__(self, columns):
        with self.lock:
            return columns


def locked(observation_space, action_space):
    return Locked()


def test_a_new_learner_gets_the_modules_and_connectors_of_its_peers():
    config = game_config(CountingGame, environment={"normalize_observations": True})
    trainer = config.build_trainer()
    trainer.add_module("new", init_from="others", config_overrides={"lr": 0.5})
    trainer.remove_module("first")
    trainer.add_module("first", init_from="others")
    next(trainer)
    peer = trainer.policy.learner_group.learner

    learner = config.build_trainer().policy.learner_group.learner
    assert list(learner.module) == ["first", "others"]
    restore_snapshot(learner, pickle.loads(pickle.dumps(take_snapshot(peer))))
    assert list(learner.module) == list(peer.module) == ["others", "new", "first"]
    assert [entry.key for entry in learner.optimizers] == [entry.key for entry in peer.optimizers]
    assert learner.config_of("new").lr == 0.5
    assert peer.connectors["new"].obs.has_statistics
    assert_near(learner.get_state(), peer.get_state(), tolerance=0.0)


def test_connectors_of_the_build_keep_their_place_and_statistics():
    config = game_config(CountingGame, environment={"normalize_observations": True})
    config.training(learner_connector=locked)
    trainer = config.build_trainer()
    next(trainer)
    peer = trainer.policy.learner_group.learner
    with pytest.raises(TypeError, match="cannot pickle"):
        pickle.dumps(peer.connectors["first"].learner)
    first = peer.connectors["first"]
    peer.add_module(module_id="new", module_spec=peer.module.spec().rl_module_specs["others"])
    peer.remove_module("first")
    peer.add_module(module_id="first", module_spec=peer.module.spec().rl_module_specs["others"], connectors=first)

    learner = config.build_trainer().policy.learner_group.learner
    built = dict(learner.connectors)
    restore_snapshot(learner, pickle.loads(pickle.dumps(take_snapshot(peer))))
    assert list(learner.module) == list(peer.module) == ["others", "new", "first"]
    assert all(learner.connectors[module_id] is built[module_id] for module_id in ("first", "others"))
    assert_near(learner.get_state(), peer.get_state(), tolerance=0.0)
