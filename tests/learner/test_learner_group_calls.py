"""What a group refuses in the call itself, and checkpoints at a place of its own choosing."""

import shutil
from pathlib import Path

import pytest
from learner_parts import MODULE, assert_same, parameters, ppo_batch, ppo_config

from lockstep import LearnerGroup
from lockstep.learner import Learner
from lockstep.modules import RLModule


@pytest.mark.parametrize(
    "options, kind",
    [
        ({"timesteps": 5}, TypeError),
        ({"timesteps": {"num_env_steps_sampled_lifetime": "x"}}, TypeError),
        ({"num_epochs": 0}, ValueError),
        ({"minibatch_size": 2.5}, ValueError),
    ],
)
def test_wrong_options_of_an_asynchronous_update_are_refused_in_the_call_itself(options, kind):
    group = ppo_config().build_learner_group()
    with pytest.raises(kind, match=next(iter(options))):
        group.update_from_batch(ppo_batch(), async_update=True, **options)
    assert group.drain() == []
    assert group.get_stats()["num_steps_submitted"] == 0


def test_weights_of_one_module_may_be_asked_for_by_its_id():
    group = ppo_config().build_learner_group()
    assert list(group.get_weights(MODULE)) == [MODULE]


def test_save_to_path_without_a_path_takes_a_new_temporary_folder():
    group = ppo_config().build_learner_group()
    saved = [group.save_to_path(), group.learner.save_to_path(), group.learner.module[MODULE].save_to_path()]
    try:
        assert len(set(saved)) == 3
        assert_same(parameters(LearnerGroup.from_checkpoint(saved[0]).learner), parameters(group.learner))
        assert_same(parameters(Learner.from_checkpoint(saved[1])), parameters(group.learner))
        one = RLModule.from_checkpoint(saved[2])
        assert_same(dict(one.named_parameters()), dict(group.learner.module[MODULE].named_parameters()))
    finally:
        for path in saved:
            shutil.rmtree(Path(path).parent)
