"""Single properties of several learners that act as one: rows, losses, decisions, errors, and the reducer itself."""

import itertools
import socket

import numpy as np
import pytest
import torch
from distributed_parts import Case, batch_of, build, episodes_of, report
from learner_parts import ALL, BOX, MODULE, ValueLearner, parameters, value_batch, value_learner

from lockstep import SampleBatch
from lockstep.connectors import ModuleConnectors, NormalizeObs, ObsPipeline
from lockstep.learner.reduction import DistributedReducer, LocalReducer


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
        batch = batch_of(np.random.default_rng(update), 30)
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
    batch = batch_of(np.random.default_rng(reducer.rank), 8)
    given = batch if reducer.rank == 0 else SampleBatch({k: v for k, v in batch.items() if k != "advantages"})
    try:
        learner.update_from_batch(given)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
    unchanged = all(torch.equal(value, before[name]) for name, value in parameters(learner).items())
    return text, unchanged, learner.update_from_batch(batch)[ALL]["num_env_steps_trained"]


def different_options(reducer):
    build(Case(), reducer).update_from_batch(batch_of(np.random.default_rng(0), 8), num_epochs=1 + reducer.rank)


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
    own = DistributedReducer(reducer.rank, 2, folder / "silent", timeout_s=1.0)
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


def assert_weights_near(first, second, tolerance=1e-12):
    for name, value in first.items():
        np.testing.assert_allclose(second[name], value, rtol=0, atol=tolerance, err_msg=name)


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


def test_functions_of_means_and_penalties_on_parameters_are_those_of_one_learner(processes):
    several, one = processes.run(3, custom_loss), custom_loss(LocalReducer())
    for learner in several:
        assert_weights_near(one["weights"], learner["weights"])
    for name in ("total_loss", "bias"):
        expected = one["results"]["default_policy"][name]
        assert several[0]["results"]["default_policy"][name] == pytest.approx(expected, abs=1e-11)
    assert several[0]["results"] == several[1]["results"] == several[2]["results"]


def test_all_learners_stop_their_passes_where_one_wants_to(processes):
    assert processes.run(2, stop_on_one) == [1, 1]


@pytest.mark.parametrize("policy", ["skip", "zero"])
def test_a_bad_row_on_one_learner_has_the_same_effect_on_all(processes, policy):
    several = processes.run(2, bad_row, policy)
    with pytest.warns(RuntimeWarning, match="not finite"):
        one = bad_row(LocalReducer(), policy)
    for counts, weights in several:
        assert counts == one[0] == [0, 1, 0]
        assert_weights_near(one[1], weights)


@pytest.mark.parametrize(("who", "last_is_skipped"), [(None, 0), ([], 1)])
def test_nothing_to_train_is_a_counted_no_op_on_all_learners(processes, who, last_is_skipped):
    for skipped, last, counted in processes.run(3, nothing_to_train, who):
        assert skipped == [1, 1]
        assert last == last_is_skipped
        assert counted == 2 + last_is_skipped


def test_a_batch_that_one_learner_refuses_changes_none_and_all_go_on(processes):
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
    assert "(timeout_s=1). Another learner died, hangs, or makes other calls than this one" in texts[0]
    assert "has no connection to the others: a sum failed before; build the group again" in texts[1]


def test_a_learner_that_never_comes_ends_the_joining_with_a_clear_error(processes, tmp_path):
    (text,) = processes.run(1, absent_learner, tmp_path, kind="error")
    assert text.startswith("LearnerError: learner 0 of 2: joining the group failed after")


def test_learners_find_each_other_over_tcp(processes):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert processes.run(2, over_tcp, port) == [2.0] * 2


def test_reducer_refuses_what_cannot_be():
    for rank in (-1, 2):
        with pytest.raises(ValueError, match=f"rank={rank} is not one of 2 learners; ranks go from 0 to 1"):
            DistributedReducer(rank, 2, "nowhere")
    with pytest.raises(ValueError, match="'tcp://host:port'"):
        DistributedReducer(0, 2, "tcp://somewhere")
