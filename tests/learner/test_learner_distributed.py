"""n learners that act as one, in real processes joined by gloo: the parameters of one, on unequal and empty shards; and
single properties: rows, losses, decisions, errors, and the reducer itself.
"""

import itertools
import socket
from dataclasses import replace

import numpy as np
import pytest
import torch
from algorithm_cases import CLIPPED, FOLLOWED, ON_POLICY, named
from distributed_parts import (
    UPDATES,
    Case,
    LocalReducer,
    ShardMeanPPO,
    actions_of,
    build,
    case_alone,
    case_in_process,
    episodes_of,
    errors_for_priorities,
    half_a_case,
    report,
)
from learner_parts import ALL, BOX, MODULE, ValueLearner, parameters, ppo_batch, value_batch, value_learner
from mirror_parts import mirror

from lockstep import SampleBatch, get_config
from lockstep.connectors import ModuleConnectors, NormalizeObs, ObsPipeline
from lockstep.learner.many.reduction import DistributedReducer

PPO = {**CLIPPED, "normalize_advantages": "minibatch", "entropy_coeff": 0.01}
FEATURES = {
    "ppo, shuffled, advantages normalised per minibatch": Case(training=PPO),
    "ppo, unshuffled, advantages normalised per batch": Case(
        training={**PPO, "normalize_advantages": "batch"}, shuffle=False
    ),
    "ppo, composite actions": Case(training={**PPO, "kl_coeff": 0.2}, composite=True, empty=True),
    "a2c, state-dependent exploration": Case("a2c", CLIPPED, exploration="gsde", empty=True),
    "ppo, whole batch": Case(training=PPO, minibatch_size=None),
    "ppo, KL penalty and KL stop": Case(
        training={**PPO, "kl_coeff": 0.5, "kl_target": 1e-3, "target_kl": 0.02, "vf_clip_param": 0.3}, num_epochs=4
    ),
    "ppo, observations and rewards normalised": Case(training=PPO, normalize=True),
    "ppo, all rows on one learner now and then": Case(
        training={**PPO, "normalize_advantages": "batch"}, normalize=True, empty=True
    ),
    "ppo, rmsprop with momentum": Case(
        training={**PPO, "optimizer": "rmsprop", "optimizer_kwargs": {"momentum": 0.5}}, empty=True
    ),
    "ppo, a centralised critic": Case(training=PPO, critic=True, empty=True),
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
    "a2c, unshuffled, each element clipped": Case(
        "a2c", {**CLIPPED, "grad_clip_by": "value", "grad_clip": 0.01}, shuffle=False
    ),
    "a2c, whole batch, each tensor clipped": Case("a2c", {**CLIPPED, "grad_clip_by": "norm"}, minibatch_size=None),
    "dqn, noisy, sequences of a GRU": Case(
        "dqn", {**CLIPPED, **FOLLOWED}, source="batch", memory="gru", exploration="noisy", minibatch_size=4
    ),
    "ppo, intrinsic rewards, empty shards": Case(
        training={**PPO, "intrinsic_reward": "rnd"}, normalize=True, empty=True
    ),
    "ppo, intrinsic rewards, sequences of an LSTM": Case(
        training={**PPO, "intrinsic_reward": "rnd"}, memory="lstm", minibatch_size=4
    ),
    "ppo, intrinsic rewards, multi-agent, absent modules": Case(
        training={**PPO, "intrinsic_reward": "rnd"}, modules=("p0", "p1"), empty=True, minibatch_size=20
    ),
    "ppo, mirror images, empty shards": Case(
        training={**PPO, "symmetry": mirror, "symmetry_loss_coeff": 0.5, "kl_coeff": 0.2}, normalize=True, empty=True
    ),
    "ppo, mirror images of composite actions, multi-agent": Case(
        training={**PPO, "symmetry": mirror, "vf_clip_param": 0.3}, modules=("p0", "p1"), empty=True, minibatch_size=20
    ),
    "ppo, a symmetric network, empty shards": Case(
        training={**PPO, "symmetry": mirror}, model={"symmetric": True}, normalize=True, empty=True
    ),
    "dqn, intrinsic rewards, empty shards": Case(
        "dqn", {**CLIPPED, **FOLLOWED, "intrinsic_reward": "rnd"}, source="batch", empty=True
    ),
    "dqn, intrinsic rewards, sequences of a GRU": Case(
        "dqn", {**CLIPPED, **FOLLOWED, "intrinsic_reward": "rnd"}, source="batch", memory="gru", minibatch_size=4
    ),
}
"""what a learner can do beside its algorithm, with the algorithms that have it"""
FAST_FEATURES = {"ppo, multi-agent, absent modules"}
VARIANTS = {
    "a2c, unshuffled, each element clipped",
    "dqn, noisy, sequences of a GRU",
    "ppo, KL penalty and KL stop",
    "ppo, from batches, empty shards",
    "ppo, observations and rewards normalised",
    "ppo, whole batch",
}
"""features that another case has, too: they come with the tests that kill, to keep the other tests fast"""


def of_algorithm(algorithm, comparison):
    """The case of a row of `ALGORITHM_CASES`."""
    source = {} if algorithm in ON_POLICY else {"source": "batch"}
    return Case(algorithm, comparison.training, **{**source, **comparison.case})


OF_ALGORITHMS = {algorithm + name: (algorithm, comparison) for name, algorithm, comparison in named("comparisons")}
CASES = FEATURES | {name: of_algorithm(*each) for name, each in OF_ALGORITHMS.items()}


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


def marks_of(name):
    if name in FEATURES:
        part = "faults" if name in VARIANTS else "fast" if name in FAST_FEATURES else "long"
    else:
        part = OF_ALGORITHMS[name][1].part
    return {"fast": (), "long": pytest.mark.long, "faults": pytest.mark.faults}[part]


@pytest.mark.parametrize(
    ("name", "size"),
    [pytest.param(name, 3 if case.empty else 2, marks=marks_of(name)) for name, case in CASES.items()],
)
def test_parameters_after_20_updates_equal_those_of_one_learner_to_1e_12(processes, name, size):
    several, one = learn(processes, size, CASES[name])
    for learner in several:
        assert largest_difference(learner["weights"], one["weights"]) <= 1e-12
        assert_near(one["state"], learner["state"], 1e-11)


@pytest.mark.long
@pytest.mark.parametrize("case", [{"empty": True}, {"memory": "gru", "minibatch_size": 4}], ids=str)
def test_learners_with_a_teacher_equal_one(processes, case, tmp_path):
    spaces_of_case = {"observation_space": BOX, "action_space": actions_of(Case("ppo"))}
    config = get_config("ppo").environment(**spaces_of_case).rl_module(model_config={"policy_gain": 1.0})
    # In float32 torch rounds a row's labels differently in batches of different sizes.
    policy = config.framework(dtype="float64").build_policy()
    policy.save_to_path(tmp_path / "teacher")
    training = {**CLIPPED, "teacher": str(tmp_path / "teacher"), "loss": "kl"}
    several, one = learn(processes, 2, Case("distillation", training, normalize=True, **case))
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
        "policy_loss", "vf_loss", "entropy", "mean_kl_loss", "clip_fraction", "vf_explained_var", "total_loss",
        "gradients_default_optimizer_global_norm", "num_module_steps_trained_lifetime",
    }  # fmt: skip
    assert several[0]["results"][ALL]["num_env_steps_trained_lifetime"] > 0


@pytest.mark.parametrize("algorithm", ["ppo", "a2c"])
def test_float32_stays_within_1e_5(processes, algorithm):
    several, one = learn(processes, 2, Case(algorithm, CLIPPED, dtype="float32"))
    assert largest_difference(several[0]["weights"], one["weights"]) <= 1e-5


def test_errors_for_priorities_equal_those_of_one_learner_in_row_order(processes):
    several = processes.run(3, errors_for_priorities, 3)
    for each, whole in zip(zip(*several), errors_for_priorities(LocalReducer(), 3)):
        np.testing.assert_allclose(np.concatenate(each), whole, rtol=0, atol=1e-12)


def test_a_mean_for_each_shard_would_be_far_from_one_learner(processes):
    training = {**PPO, "normalize_advantages": None}
    several, _ = learn(processes, 2, Case(training={**training, "learner_class": ShardMeanPPO}))
    one = case_alone(Case("ppo", training), 2)
    assert largest_difference(several[0]["weights"], one["weights"]) > 1e-2


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 3), (3, 2)])
def test_a_checkpoint_of_n_learners_resumes_with_m_as_with_one(processes, before, after, tmp_path):
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


# -- single properties: what each learner does ---


def value_shards(reducer, rows=24, parts=3, seed=0):
    """This learner's rows of a batch that is cut into `parts` unequal shards; one learner gets all."""
    batch = value_batch(rows, seed)
    batch["row_id"] = np.arange(rows)
    if reducer.world_size == 1:
        return batch
    ends = [0, 5, 6, rows] if parts == 3 else [0, 5, rows]
    return batch[ends[reducer.rank] : ends[reducer.rank + 1]]


def with_reducer(cls, reducer, **options):
    learner = value_learner(cls, build=False, **options)
    learner.reducer = reducer
    return learner.build()


def recorded_rows(reducer, shuffle):
    """Row numbers in each minibatch of three updates, those of this learner."""

    class Recorder(ValueLearner):
        rows = []

        def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
            self.rows.append(batch["row_id"].tolist() if self.rows_in_step else [])
            return super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)

    learner = with_reducer(Recorder, reducer)
    options = {"minibatch_size": 7, "num_epochs": 2, "shuffle_batch_per_epoch": shuffle}
    for _ in range(3):
        learner.update_from_batch(value_shards(reducer), **options)
    return learner.rows


def every_reduction(reducer):
    """What is logged of rows in each way, and the learner's state after it."""

    class Logging(ValueLearner):
        def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
            errors = (fwd_out["vf_preds"] - batch["value_targets"]).detach()
            mean = self.masked_mean(errors, batch)
            for reduce in ("min", "max", "sum", "percentiles", "lifetime_sum"):
                self.metrics.log_value((module_id, "row", reduce), errors, reduce=reduce)
            for reduce in ("mean", "ema", "item"):
                self.metrics.log_value((module_id, "step", reduce), mean, reduce=reduce)
            self.metrics.log_value((module_id, "step", "own"), errors.mean())
            return super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)

    learner = with_reducer(Logging, reducer, lr=1e-2)
    for update in range(3):
        results = learner.update_from_batch(value_shards(reducer, seed=update), minibatch_size=7, num_epochs=2)
    found = {name: number for name, number in results["default_policy"].items() if name.startswith(("row/", "step/"))}
    return found, learner.get_state("metrics")["metrics"]["numbers"].tolist()


def custom_loss(reducer):
    """A square of means, and a penalty on parameters."""

    class Custom(ValueLearner):
        def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
            error = fwd_out["vf_preds"] - batch["value_targets"]
            bias = self.masked_mean(error, batch)
            penalty = sum(p.square().sum() for p in self.module[module_id].parameters())
            self.log(module_id, bias=bias, largest=error.abs().max())
            return self.masked_mean(error.square(), batch) + bias.square().exp() + self.once(1e-2 * penalty)

    learner = with_reducer(Custom, reducer, lr=1e-2)
    for update in range(10):
        results = learner.update_from_batch(
            value_shards(reducer, seed=update), minibatch_size=7, num_epochs=2, shuffle_batch_per_epoch=True
        )
    return report(learner, results)


def stop_on_one(reducer):
    """Passes of an update that learner 1 alone wants to end after the first."""

    class Stopper(ValueLearner):
        def should_stop_passes(self):
            return self.reducer.rank == 1

    results = with_reducer(Stopper, reducer).update_from_batch(value_shards(reducer), minibatch_size=8, num_epochs=5)
    return results[ALL]["num_passes"]


def bad_row(reducer, policy):
    """One row that is not a number, on the last learner, in the second of three updates."""
    learner = build(Case(training={"nan_policy": policy, "lr": 1e-2}), reducer)
    counts = []
    for update in range(3):
        batch = ppo_batch(30, update)
        if update == 1:
            batch["advantages"][29] = np.nan
        own = batch if reducer.world_size == 1 else batch[[0, 11, 30][reducer.rank] : [0, 11, 30][reducer.rank + 1]]
        results = learner.update_from_batch(own)
        counts.append(results[ALL]["num_bad_gradients"])
    return counts, {name: value.numpy() for name, value in parameters(learner).items()}


def nothing_to_train(reducer, who):
    """Two empty updates and a full one."""
    learner = build(Case(), reducer)
    learner.policies_to_train = who
    skipped = [learner.update_from_episodes([])[ALL]["num_updates_skipped"] for _ in range(2)]
    own = episodes_of(np.random.default_rng(0)) if reducer.rank == 0 else []
    last = learner.update_from_episodes(own)[ALL]
    return skipped, last["num_updates_skipped"], learner.lifetime["num_updates_skipped"]


def one_bad_batch(reducer):
    """The last learner's batch lacks a column; afterwards all go on."""
    learner = build(Case(), reducer)
    before = parameters(learner)
    batch = ppo_batch(8, reducer.rank)
    given = batch if reducer.rank == 0 else SampleBatch({k: v for k, v in batch.items() if k != "advantages"})
    try:
        learner.update_from_batch(given)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
    unchanged = all(torch.equal(value, before[name]) for name, value in parameters(learner).items())
    return text, unchanged, learner.update_from_batch(batch)[ALL]["num_env_steps_trained"]


def different_options(reducer):
    build(Case(), reducer).update_from_batch(ppo_batch(8), num_epochs=1 + reducer.rank)


def custom_statistics(reducer):
    """A connector with statistics that does not say how they are joined."""

    class Own(NormalizeObs):
        def update_joined(self, data, join):
            return super(NormalizeObs, self).update_joined(data, join)

    learner = build(Case(), reducer)
    learner.connectors[MODULE] = ModuleConnectors(obs=ObsPipeline([Own()], BOX), join=learner.connectors[MODULE].join)
    learner.update_from_episodes(episodes_of(np.random.default_rng(reducer.rank)))


def silent_learner(reducer, folder):
    """Learner 1 takes no part in a sum; then learner 0 tries again."""
    own = DistributedReducer(reducer.rank, 2, folder / "silent", timeout_s=60.0)
    own.gather("here")
    if reducer.rank == 1:
        own.close()
        return own.rank
    texts = []
    for _ in range(2):
        try:
            own.sum_(torch.zeros(1))
        except Exception as error:
            texts.append(f"{type(error).__name__}: {error}")
    return texts


def absent_learner(reducer, folder):
    """Nobody else joins."""
    DistributedReducer(0, 2, folder / "absent", timeout_s=0.5)


def over_tcp(reducer, port):
    own = DistributedReducer(reducer.rank, 2, f"tcp://127.0.0.1:{port}", timeout_s=20.0)
    total = float(own.sum_(torch.ones(1)))
    own.gather(0)
    return total


# -- and what that gives ---


@pytest.mark.parametrize("shuffle", [False, True])
def test_minibatch_k_holds_the_same_rows_however_many_learners_share_it(processes, shuffle):
    several = processes.run(3, recorded_rows, shuffle)
    one = recorded_rows(LocalReducer(), shuffle)
    assert len(one) == 3 * 2 * (24 // 7)
    for number, rows in enumerate(one):
        together = list(itertools.chain(*(learner[number] for learner in several)))
        assert sorted(together) == sorted(rows)
        assert len(rows) == 7
    assert any(not rows for learner in several for rows in learner)


def test_functions_of_means_and_penalties_equal_those_of_one_learner(processes):
    several, one = processes.run(3, custom_loss), custom_loss(LocalReducer())
    for learner in several:
        assert largest_difference(one["weights"], learner["weights"]) <= 1e-12
    for name in ("total_loss", "bias"):
        expected = one["results"]["default_policy"][name]
        assert several[0]["results"]["default_policy"][name] == pytest.approx(expected, abs=1e-11)
    assert several[0]["results"] == several[1]["results"] == several[2]["results"]


def test_metrics_of_every_reduction_are_those_of_one_learner(processes):
    one, _ = every_reduction(LocalReducer())
    assert len(one) == 4 + 4 + 7
    several = processes.run(3, every_reduction)
    assert several[0] == several[1] == several[2]
    for name, number in one.items():
        assert several[0][0][name] == pytest.approx(number, abs=1e-12), name


def test_all_learners_stop_their_passes_where_one_wants_to(processes):
    assert processes.run(2, stop_on_one) == [1, 1]


@pytest.mark.parametrize("policy", ["skip", "zero"])
def test_a_bad_row_on_one_learner_has_the_same_effect_on_all(processes, policy):
    several = processes.run(2, bad_row, policy)
    with pytest.warns(RuntimeWarning, match="not finite"):
        one = bad_row(LocalReducer(), policy)
    for counts, weights in several:
        assert counts == one[0] == [0, 1, 0]
        assert largest_difference(one[1], weights) <= 1e-12


@pytest.mark.parametrize(("who", "last_is_skipped"), [(None, 0), ([], 1)])
def test_nothing_to_train_is_a_counted_no_op_on_all_learners(processes, who, last_is_skipped):
    for skipped, last, counted in processes.run(3, nothing_to_train, who):
        assert skipped == [1, 1]
        assert last == last_is_skipped
        assert counted == 2 + last_is_skipped


def test_a_batch_that_one_learner_refuses_changes_no_learner(processes):
    first, second = processes.run(2, one_bad_batch)
    assert first[0].startswith("LearnerError: no learner was updated, because of learner 1: KeyError")
    assert "lacks ['advantages']" in first[0]
    assert second[0].startswith("KeyError")
    assert first[1:] == second[1:] == (True, 16)


def test_learners_that_are_called_differently_all_refuse(processes):
    for text in processes.run(2, different_options, kind="error"):
        assert text.startswith("ValueError: all learners must be called alike; learner 0 has")


def test_statistics_that_cannot_be_joined_are_refused(processes):
    for text in processes.run(2, custom_statistics, kind="error"):
        assert "Own has statistics but no update_joined(data, join)" in text


# -- the reducer itself ---


def test_a_learner_that_takes_no_part_ends_the_call_with_a_clear_error(processes, tmp_path):
    texts, _ = processes.run(2, silent_learner, tmp_path)
    assert texts[0].startswith("LearnerError: learner 0 of 2: a sum failed after")
    assert "(timeout_s=60). Another learner died, hangs, or makes other calls than this one" in texts[0]
    assert "has no connection to the others: a sum failed before; build the group again" in texts[1]


def test_a_learner_that_never_comes_ends_the_joining_with_a_clear_error(processes, tmp_path):
    (text,) = processes.run(1, absent_learner, tmp_path, kind="error")
    assert text.startswith("LearnerError: learner 0 of 2: joining the group failed after")


def test_learners_find_each_other_over_tcp(processes):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert processes.run(2, over_tcp, port) == [2.0] * 2


def test_reducer_refuses_illegal_arguments():
    for rank in (-1, 2):
        with pytest.raises(ValueError, match=f"rank={rank} is not one of 2 learners; ranks go from 0 to 1"):
            DistributedReducer(rank, 2, "nowhere")
    with pytest.raises(ValueError, match="'tcp://host:port'"):
        DistributedReducer(0, 2, "tcp://somewhere")
