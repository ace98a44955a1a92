"""n learners give the parameters of one, in real processes joined by gloo, on unequal and empty shards."""

from dataclasses import replace

import numpy as np
import pytest
from distributed_parts import (
    UPDATES,
    Case,
    LocalReducer,
    case_alone,
    case_in_process,
    errors_for_priorities,
    half_a_case,
)

ALL = "__all_modules__"
CLIPPED = {"grad_clip": 0.05, "grad_clip_by": "global_norm", "lr": 1e-2}
PPO = {**CLIPPED, "normalize_advantages": "minibatch", "entropy_coeff": 0.01}
FOLLOWED = {"target_update_interval": 4, "tau": 0.5}
CASES = {
    "ppo, shuffled, advantages normalised per minibatch": Case(training=PPO),
    "ppo, unshuffled, advantages normalised per batch": Case(
        training={**PPO, "normalize_advantages": "batch"}, shuffle=False
    ),
    "ppo, whole batch": Case(training=PPO, minibatch_size=None),
    "ppo, KL penalty and KL stop": Case(
        training={**PPO, "kl_coeff": 0.5, "kl_target": 1e-3, "target_kl": 0.02, "vf_clip_param": 0.3}, num_epochs=4
    ),
    "ppo, observations and rewards normalised": Case(training=PPO, normalize=True),
    "ppo, all rows on one learner now and then": Case(
        training={**PPO, "normalize_advantages": "batch"}, normalize=True, empty=True
    ),
    "ppo, from batches": Case(training=PPO, source="batch"),
    "ppo, from batches, empty shards": Case(training=PPO, source="batch", empty=True, shuffle=False),
    "ppo, sequences of an LSTM": Case(training={**PPO, "kl_coeff": 0.2}, memory="lstm", minibatch_size=4),
    "a2c, sequences of a GRU, empty shards": Case(
        "a2c", {**CLIPPED, "normalize_advantages": True}, memory="gru", empty=True, shuffle=False, minibatch_size=5
    ),
    "ppo, multi-agent, absent modules": Case(
        training={**PPO, "normalize_advantages": "batch", "kl_coeff": 0.2},
        modules=("p0", "p1"),
        normalize=True,
        empty=True,
        minibatch_size=20,
    ),
    "a2c, multi-agent batches": Case("a2c", CLIPPED, modules=("p0", "p1"), source="batch", shuffle=False),
    "a2c, shuffled": Case("a2c", {**CLIPPED, "normalize_advantages": True}, empty=True),
    "a2c, unshuffled, each element clipped": Case(
        "a2c", {**CLIPPED, "grad_clip_by": "value", "grad_clip": 0.01}, shuffle=False
    ),
    "a2c, whole batch, each tensor clipped": Case("a2c", {**CLIPPED, "grad_clip_by": "norm"}, minibatch_size=None),
    "a2c, from batches": Case("a2c", CLIPPED, source="batch"),
    "dqn, whole samples": Case("dqn", {**CLIPPED, **FOLLOWED}, minibatch_size=None, source="batch"),
    "dqn, samples on one learner now and then": Case(
        "dqn", {**CLIPPED, **FOLLOWED, "double_q": False, "huber_delta": None}, source="batch", num_epochs=1, empty=True
    ),
    "c51": Case("c51", {**CLIPPED, **FOLLOWED, "num_atoms": 7, "v_min": -3.0, "v_max": 3.0}, source="batch"),
    "qrdqn": Case("qrdqn", {**CLIPPED, **FOLLOWED, "num_quantiles": 5}, source="batch"),
    "impala, older policies acted, empty shards": Case("impala", CLIPPED, behaviour=True, empty=True),
    "impala, sequences of an LSTM": Case("impala", CLIPPED, memory="lstm", behaviour=True, minibatch_size=4),
    "appo, older policies acted, KL penalty": Case(
        "appo", {**CLIPPED, "use_kl_loss": True, "kl_target": 1e-3, "tau": 0.5}, normalize=True, behaviour=True
    ),
    "appo, multi-agent, absent modules": Case("appo", CLIPPED, modules=("p0", "p1"), empty=True, minibatch_size=20),
    "appo, from batches": Case("appo", CLIPPED, source="batch"),
    "cql, learned weight, empty shards": Case(
        "cql", {**CLIPPED, "num_actions": 3, "lagrangian": True, "bc_iters": 10}, source="batch", empty=True
    ),
    "cql, discrete, empty shards": Case("cql_discrete", CLIPPED, source="batch", empty=True),
    "iql, discrete": Case("iql_discrete", CLIPPED, source="batch"),
    "ddpg": Case("ddpg", {**CLIPPED, "tau": 0.1, "policy_delay": 1, "target_noise": 0.0}, source="batch"),
    "iql, empty shards": Case("iql", CLIPPED, source="batch", empty=True),
    "td3_bc, empty shards": Case("td3_bc", CLIPPED, source="batch", empty=True),
    "bc, empty shards": Case("bc", {**CLIPPED, "entropy_coeff": 0.01}, source="batch", empty=True),
    "marwil, empty shards": Case(
        "marwil", {**CLIPPED, "moving_average_sqd_adv_norm_update_rate": 0.1}, source="batch", empty=True
    ),
    "sac": Case("sac", {**CLIPPED, "tau": 0.1}, source="batch", num_epochs=1),
    "sac, discrete, empty shards": Case("sac_discrete", {**CLIPPED, "tau": 0.1}, source="batch", empty=True),
    "td3, empty shards": Case("td3", {**CLIPPED, "tau": 0.1}, source="batch", empty=True, shuffle=False),
    "td3, two modules": Case("td3", {"lr": 1e-2, "tau": 0.1}, source="batch", modules=("p0", "p1")),
}

VARIANTS = {
    "ppo, KL penalty and KL stop",
    "ppo, from batches, empty shards",
    "a2c, shuffled",
    "a2c, unshuffled, each element clipped",
    "a2c, from batches",
    "appo, multi-agent, absent modules",
    "appo, from batches",
    "cql, discrete, empty shards",
    "iql, discrete",
    "sac, discrete, empty shards",
    "td3, two modules",
}
"""of algorithms that have another case: they come with the tests that kill, to keep the fast suite fast"""


def learn(processes, size, case):
    """What each of `size` learners reports, and what one learner does on the same rows."""
    return processes.run(size, case_in_process, case), case_alone(case, size)


def largest_difference(first, second):
    assert first.keys() == second.keys()
    return max(float(np.abs(first[name] - second[name]).max()) for name in first)


def numbers(tree, path=""):
    """Every number in a tree of dicts and arrays, by path."""
    if isinstance(tree, dict):
        return {key: value for name, part in tree.items() for key, value in numbers(part, f"{path}/{name}").items()}
    if isinstance(tree, list):
        return numbers(dict(enumerate(tree)), path)
    return {} if tree is None else {path: np.asarray(tree, np.float64)}


def assert_near(first, second, tolerance):
    one, other = numbers(first), numbers(second)
    assert one.keys() == other.keys()
    for path, value in one.items():
        np.testing.assert_allclose(other[path], value, rtol=tolerance, atol=tolerance, err_msg=path)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        pytest.param(name, 3 if case.empty else 2, marks=pytest.mark.faults if name in VARIANTS else ())
        for name, case in CASES.items()
    ],
)
def test_parameters_after_20_updates_are_those_of_one_learner_within_1e_12(processes, name, size):
    several, one = learn(processes, size, CASES[name])
    for learner in several:
        assert largest_difference(learner["weights"], one["weights"]) <= 1e-12
        assert_near(one["state"], learner["state"], 1e-11)


def test_learners_are_equal_to_the_last_bit_and_report_the_same_as_one(processes):
    case = replace(CASES["ppo, all rows on one learner now and then"], updates=UPDATES - 1)  # the last has three shards
    several, one = learn(processes, 3, case)
    for learner in several[1:]:
        assert largest_difference(learner["weights"], several[0]["weights"]) == 0.0
        assert learner["results"] == several[0]["results"]
    assert_near(one["results"], several[0]["results"], 1e-9)
    assert one["results"]["default_policy"].keys() >= {
        "policy_loss", "vf_loss", "entropy", "mean_kl_loss", "vf_explained_var", "total_loss",
        "gradients_default_optimizer_global_norm", "num_module_steps_trained_lifetime",
    }  # fmt: skip
    assert several[0]["results"][ALL]["num_env_steps_trained_lifetime"] > 0


@pytest.mark.parametrize("algorithm", ["ppo", "a2c"])
def test_float32_stays_within_1e_5(processes, algorithm):
    several, one = learn(processes, 2, Case(algorithm, CLIPPED, dtype="float32"))
    assert largest_difference(several[0]["weights"], one["weights"]) <= 1e-5


def test_errors_for_priorities_are_those_of_one_learner_in_the_order_of_the_rows(processes):
    several = processes.run(3, errors_for_priorities, 3)
    for each, whole in zip(zip(*several), errors_for_priorities(LocalReducer(), 3)):
        np.testing.assert_allclose(np.concatenate(each), whole, rtol=0, atol=1e-12)


def test_a_mean_for_each_shard_would_be_far_from_one_learner(processes):
    training = {**PPO, "normalize_advantages": None}
    several, _ = learn(processes, 2, Case("shard_mean", training))
    one = case_alone(Case("ppo", training), 2)
    assert largest_difference(several[0]["weights"], one["weights"]) > 1e-2


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 3), (3, 2)])
def test_checkpoint_of_n_learners_goes_on_with_m_as_if_there_had_been_one_all_along(processes, before, after, tmp_path):
    case = Case(
        training={**PPO, "kl_coeff": 0.5, "kl_target": 1e-3, "lr": [[0, 1e-2], [10, 1e-3]]}, normalize=True, updates=8
    )
    path = tmp_path / "checkpoint"
    for half, size in (("first", before), ("second", after)):
        if size == 1:
            reports = [half_a_case(LocalReducer(), case, half, path)]
        else:
            reports = processes.run(size, half_a_case, case, half, path)
    whole = case_alone(case, 2)
    for each in reports:
        assert largest_difference(whole["weights"], each["weights"]) < 1e-12
        assert_near(whole["state"], each["state"], 1e-12)
        assert (
            each["results"][ALL]["num_env_steps_trained_lifetime"]
            == whole["results"][ALL]["num_env_steps_trained_lifetime"]
        )
