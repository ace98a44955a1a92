"""A learner in another process that has to continue as its peers: after a restart, a resize, a call that failed."""

import pickle

from agent_games import CountingGame, game_config
from cluster_parts import assert_near

from lockstep.cluster.learner_worker import become, whole_of


def test_a_new_learner_gets_the_modules_of_its_peers_in_their_order_with_their_connectors():
    config = game_config(CountingGame, environment={"normalize_observations": True})
    trainer = config.build_trainer()
    trainer.add_module("new", init_from="others", config_overrides={"lr": 0.5})
    trainer.remove_module("first")
    trainer.add_module("first", init_from="others")
    next(trainer)
    peer = trainer.policy.learner_group.learner

    learner = config.build_trainer().policy.learner_group.learner
    assert list(learner.module) == ["first", "others"]
    become(learner, pickle.loads(pickle.dumps(whole_of(peer))))
    assert list(learner.module) == list(peer.module) == ["others", "new", "first"]
    assert [entry.key for entry in learner.optimizers] == [entry.key for entry in peer.optimizers]
    assert learner.config_of("new").lr == 0.5
    assert peer.connectors["new"].obs.has_statistics
    assert_near(learner.get_state(), peer.get_state(), tolerance=0.0)
