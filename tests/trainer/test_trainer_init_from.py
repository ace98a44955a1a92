"""A new run that begins with the weights of another one."""

import numpy as np
import pytest
import torch
from parts import fast_if
from scenario_tools import Paying, config_of

import lockstep
from lockstep.policy.files import find_policy
from lockstep.runs.run import prepare_run
from lockstep.tracking import RunFolder


class PayingMore(Paying):
    """Another environment with the same spaces."""

    def __init__(self):
        super().__init__(2.0)


def weights_of(policy):
    return {name: value.clone() for name, value in policy.module.state_dict().items()}


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(value, second[name]) for name, value in first.items())


def config(kind="on", env=Paying, seed=0, **sections):
    made = config_of(kind, env, seed)
    if kind == "on":
        made.environment(normalize_observations=True, normalize_rewards=True)
    for name, options in sections.items():
        getattr(made, name)(**options)
    return made


@pytest.fixture(scope="module", params=["on", "off"])
def run(request, shared_folder):
    """A finished run of each kind."""
    return request.param, prepare_run(config(request.param), shared_folder / request.param).finish()


@pytest.mark.parametrize("from_what", fast_if("checkpoint".__eq__, ["run", "checkpoint"]))
def test_a_run_starts_from_weights_and_statistics_of_another_only(run, from_what, folder):
    kind, first = run
    source = first.path if from_what == "run" else RunFolder.open(first.path).newest_checkpoint()
    new = config(kind, PayingMore, seed=5, training={"lr": 0.5}, env_runners={"num_envs_per_env_runner": 4})
    new_run = prepare_run(new, folder, init_from=source)
    trainer = new_run.trainer
    taken = lockstep.load_policy(source)
    assert same(weights_of(trainer.policy), weights_of(taken))
    assert new_run.folder.info["init_from"] == str(find_policy(source))
    learner, theirs = trainer.policy.learner_group.learner, taken.learner_group.learner
    (optimizer,) = learner.optimizers
    assert (trainer.env_step, trainer.position, sum(learner.lifetime.values())) == (0, 0, 0)
    assert (optimizer.optimizer.param_groups[0]["lr"], float(optimizer.adam_state()[2])) == (0.5, 0.0)
    if kind == "on":
        own, other = (one.connectors["default_policy"] for one in (learner, theirs))
        np.testing.assert_equal(own.obs.get_state(), other.obs.get_state())
        assert own.rewards.get_state()["moments"] == other.rewards.get_state()["moments"]
        assert (float(own.rewards.moments.count) > 0) == (from_what == "checkpoint"), "the first policy is the best"
    else:
        target = learner.registered["default_policy/target"]
        assert same(dict(target.module.named_parameters()), dict(trainer.policy.module.named_parameters()))
        assert target.num_steps == 0
    assert new_run.finish().info.train_step == 48


def test_train_takes_init_from_and_names_it_in_its_sources(run, folder):
    kind, first = run
    result = lockstep.train(config(kind), total_steps=16, root=folder, init_from=first.path)
    assert result.sources[-1] == f"weights of {first.path}"
    assert result.info.train_step == 16


REFUSED = {
    "other networks": (
        {"rl_module": {"model_config": {"hiddens": (8,)}}},
        r"model_config\.hiddens=\[4\] there, \[8\] here",
    ),
    "other connectors": (
        {"environment": {"normalize_observations": False}},
        "environment.normalize_observations=True there, False here",
    ),
    "other spaces": ({"environment": {"env": "CartPole-v1"}}, "observation_space Box.*of this run has Box"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_source_that_does_not_fit_is_refused_and_leaves_no_folder(name, shared_folder, folder):
    if not (shared_folder / "source").exists():
        config().build_policy().save_to_path(shared_folder / "source")
    sections, words = REFUSED[name]
    with pytest.raises(ValueError, match=words) as refused:
        prepare_run(config(**sections), folder / "runs", init_from=shared_folder / "source")
    assert len(str(refused.value)) < 400
    assert ("add --config RUN/config.json" in str(refused.value)) == (name != "other spaces")
    assert not list((folder / "runs").glob("*"))


def test_a_file_of_an_export_or_something_else_as_a_source_is_refused(folder):
    refused = {"policy.onnx": "one file of an export; give the folder", "nothing": "no checkpoint|not a checkpoint"}
    for path, words in refused.items():
        with pytest.raises(ValueError, match=words):
            prepare_run(config(), folder / "runs", init_from=folder / path)
    assert not list((folder / "runs").glob("*"))
