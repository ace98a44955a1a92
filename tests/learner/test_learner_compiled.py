"""`compile=True` and `mixed_precision=True`: what gradient steps read, give out and write in either.

Most traces are run as they are, not compiled: the fast suite compiles once, for the tests of a loss of one's own.
"""

import math

import numpy as np
import pytest
import torch
from agent_games import Duel, game_config
from algorithm_cases import ALGORITHM_CASES, OFF_POLICY, has_option, taking
from learner_parts import (
    ALL,
    BOX,
    MODULE,
    THREE,
    assert_near,
    assert_same,
    parameters,
    ppo_batch,
    ppo_config,
    train,
    transitions,
    value_batch,
    value_learner,
)
from parts import one_in
from torch import nn

from lockstep import get_config
from lockstep.algorithms.ppo import PPOLearner
from lockstep.data import MultiAgentBatch, SampleBatch
from lockstep.learner import optimizers
from lockstep.learner.compile.update import ModuleBuffers
from lockstep.trainer import SelfPlay

NOW = {"num_env_steps_sampled_lifetime": 50}
STEPS = {"minibatch_size": 8, "num_epochs": 5, "shuffle_batch_per_epoch": True}


class MyLearner(PPOLearner):
    """The example of the contract, word for word."""

    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        loss = super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)
        penalty = self.masked_mean(fwd_out["action_dist_inputs"].pow(2).sum(-1), batch)
        self.log(module_id, penalty=penalty)
        return loss + 1e-3 * penalty


class HalvedGradients(MyLearner):
    """Halves the gradients of the value head after clipping, bounds the policy's, and counts its eager steps."""

    eager_steps = 0
    bound = 2.0**-8

    @torch.no_grad()
    def constrain_weights(self, stepped):
        assert [entry.module_id for entry in stepped] == [MODULE]
        self.module[MODULE].policy_head.weight.clamp_(-self.bound, self.bound)

    def _update(self, batch):
        self.eager_steps += 1
        return super()._update(batch)

    def postprocess_gradients(self, gradients):
        gradients = super().postprocess_gradients(gradients)
        value_head = set(self.module[MODULE].value_head.parameters())
        return {param: 0.5 * value if param in value_head else value for param, value in gradients.items()}


def build(cls=HalvedGradients, compile_it=False, seed=0, **training):
    training = {"lr": [[0, 0.01], [100, 0.005]], "entropy_coeff": [[0, 0.1], [100, 0.0]], "grad_clip": 0.3, **training}
    config = ppo_config(learner_class=cls, vf_clip_param=0.2, **training).debugging(seed=seed)
    return config.framework(dtype="float32", compile=compile_it, compile_after=0).build_learner()


def batch(rows=32, seed=0, poisoned=False):
    made = ppo_batch(rows, seed=seed)
    made["vf_preds"] = made["value_targets"] * 0.5
    if poisoned:
        made["value_targets"][:] = float("nan")
    return made


@pytest.fixture(scope="module")
def compiled():
    """A learner whose gradient step on 8 rows of 32 is compiled."""
    learner = build(compile_it=True)
    learner.update_from_batch(batch(), minibatch_size=8)
    return learner


def pair(compiled):
    """The compiled learner at the state of a new eager one."""
    eager = build()
    eager.update_from_batch(batch(seed=4), minibatch_size=8)
    compiled.set_state(eager.get_state())
    return compiled, eager


def test_a_custom_loss_takes_ten_lines_and_shows_in_results():
    mine, plain = build(MyLearner), build(PPOLearner)
    assert_same(parameters(mine), parameters(plain))
    results = [learner.update_from_batch(batch())[MODULE] for learner in (mine, plain)]
    assert results[0]["total_loss"] == pytest.approx(results[1]["total_loss"] + 1e-3 * results[0]["penalty"])
    assert results[0]["penalty"] > 0
    assert "penalty" not in results[1]
    assert results[0]["policy_loss"] == pytest.approx(results[1]["policy_loss"], rel=1e-5)
    heads = [learner.module[MODULE].policy_head.weight.detach() for learner in (mine, plain)]
    assert not torch.equal(*heads)


@pytest.mark.long
def test_compiled_update_equals_the_eager_one_over_twenty_minibatches(compiled):
    compiled, eager = pair(compiled)
    results = [learner.update_from_batch(batch(seed=1), timesteps=NOW, **STEPS) for learner in (compiled, eager)]
    assert results[0][ALL]["num_minibatches"] == 20
    assert (compiled.eager_steps, eager.eager_steps) == (0, 24)
    assert_near(compiled, eager)
    for name, value in results[1][MODULE].items():
        assert results[0][MODULE][name] == pytest.approx(value, abs=1e-4), name
    for key, series in eager.last_series.items():
        assert compiled.last_series[key] == pytest.approx(series, abs=1e-4), key


def test_compiled_update_takes_batches_of_about_one_size_with_one_graph(compiled):
    """An environment whose reset rows are left out gives another number of rows in every batch."""
    compiled, eager = pair(compiled)
    steps = compiled.eager_steps
    for rows in (31, 30, 29, 27, 26, 25, 24):
        train((compiled, eager), batch(seed=rows)[:rows], **STEPS)
        assert_near(compiled, eager)
    assert compiled.eager_steps == steps


def test_compiled_update_takes_columns_of_any_memory_layout(compiled):
    compiled, eager = pair(compiled)
    for learner in (compiled, eager):
        for rows in (32, 31):
            turned = batch(seed=rows)[:rows]
            turned["obs"] = np.asfortranarray(turned["obs"])
            turned["advantages"] = np.repeat(turned["advantages"], 2)[::2]
            learner.update_from_batch(turned, **STEPS)
    assert_near(compiled, eager)


def test_compiled_update_has_the_hooks_of_a_subclass_in_it(compiled):
    compiled, eager = pair(compiled)
    plain = build(MyLearner)
    plain.set_state(eager.get_state())
    for learner in (compiled, eager, plain):
        learner.get_optimizer(MODULE).param_groups[0]["eps"] = 1e-5
        learner.update_from_batch(batch(seed=2), **STEPS)
    assert "penalty" in {name for _, name in compiled.last_series}
    assert_near(compiled, eager)
    heads = [learner.module[MODULE].value_head.weight.detach() for learner in (compiled, plain)]
    assert float((heads[0] - heads[1]).abs().max()) > 1e-4  # the hook changed what the plain learner does
    largest = [float(learner.module[MODULE].policy_head.weight.abs().max()) for learner in (compiled, plain)]
    assert largest[0] <= HalvedGradients.bound < largest[1]


def test_compiled_update_follows_schedules_between_updates(compiled):
    compiled, eager = pair(compiled)
    for step in (0, 50, 100, 500):
        now = {"num_env_steps_sampled_lifetime": step}
        results = [
            learner.update_from_batch(batch(seed=step), minibatch_size=8, timesteps=now)[MODULE]
            for learner in (compiled, eager)
        ]
        rates = [result["default_optimizer_learning_rate"] for result in results]
        assert rates[0] == rates[1] == pytest.approx(max(0.005, 0.01 - step * 5e-5))
        assert results[0]["total_loss"] == pytest.approx(results[1]["total_loss"], abs=1e-5)
    assert_near(compiled, eager)


def test_compiled_update_skips_gradients_that_are_not_finite(compiled):
    compiled, _ = pair(compiled)
    before, state = parameters(compiled), compiled.get_state("optimizer")["optimizer"]
    results = compiled.update_from_batch(batch(poisoned=True), minibatch_size=8)
    assert results[ALL]["num_bad_gradients"] == 4
    assert_same(parameters(compiled), before)
    ((first,), (second,)) = (part.values() for part in (state, compiled.get_state("optimizer")["optimizer"]))
    assert_same(first["state"][0], second["state"][0])
    assert compiled.update_from_batch(batch(), minibatch_size=8)[ALL]["num_bad_gradients"] == 0


def test_a_compiled_update_names_the_first_bad_tensor(compiled):
    compiled, _ = pair(compiled)
    made = batch()
    made["value_targets"][:8] = float("nan")
    with pytest.warns(RuntimeWarning, match=rf"1 gradient steps had .*first bad tensor: rl_modules\.{MODULE}\."):
        compiled.update_from_batch(made, minibatch_size=8)


@pytest.mark.parametrize("is_compiled", [True, False])
def test_moments_without_gradients_end_at_zero_and_not_denormal(compiled, is_compiled):
    """On some processors a step over denormal moments takes several times as long."""
    learner = pair(compiled)[0 if is_compiled else 1]
    state = next(iter(learner.optimizers)).optimizer.state
    moments = next(iter(state.values()))
    moments["exp_avg"].fill_(1e-31)
    moments["exp_avg_sq"].fill_(1e-37)
    moments["step"].fill_(optimizers.FLUSH_EVERY - 1)
    made = batch()
    made["obs"][:, 0] = 0.0
    learner.update_from_batch(made[:8] if not is_compiled else made, minibatch_size=8, num_epochs=1)
    for moment in (moments["exp_avg"], moments["exp_avg_sq"]):
        smallest = torch.finfo(moment.dtype).tiny
        assert not ((moment != 0) & (moment.abs() < smallest)).any()
        assert (moment == 0).any()
        assert (moment != 0).any()


class SgdLearner(MyLearner):
    """Something else than Adam."""

    def configure_optimizers_for_module(self, module_id, config):
        params = list(self.module[module_id].parameters())
        self.register_optimizer(module_id=module_id, optimizer=torch.optim.SGD(params, lr=0.1), params=params)


class NoisyLearner(MyLearner):
    """Adds noise to its gradients, from a stream of its own."""

    def postprocess_gradients(self, gradients):
        stream = self.streams.torch("noise")
        gradients = super().postprocess_gradients(gradients)
        return {param: value + torch.randn(value.shape, generator=stream) for param, value in gradients.items()}


class ShrinkingLearner(MyLearner):
    """Shrinks its value head after each step."""

    def apply_gradients(self, gradients):
        super().apply_gradients(gradients)
        with torch.no_grad():
            self.module[MODULE].value_head.weight.mul_(0.5)


class PlainNumberLearner(MyLearner):
    """Logs what is no tensor."""

    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        self.metrics.log_value((module_id, "rows"), len(batch["obs"]))
        return super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)


class OwnGradients(MyLearner):
    """Takes a tenth of the gradients."""

    def compute_gradients(self, loss_per_module):
        return {param: 0.1 * value for param, value in super().compute_gradients(loss_per_module).items()}


@pytest.mark.parametrize(
    "cls, options, reason",
    [
        (ShrinkingLearner, {}, "ShrinkingLearner overrides apply_gradients, which"),
        (OwnGradients, {}, "OwnGradients overrides compute_gradients, which"),
        (NoisyLearner, {}, "it draws random numbers"),
        (PlainNumberLearner, {}, r"it logs \['default_policy/rows'\] as plain numbers"),
        (SgdLearner, {}, r"\['default_policy.default_optimizer'\] are not plain Adam"),
        (MyLearner, {"nan_policy": "zero"}, "nan_policy='zero' is not compiled"),
    ],
)
def test_what_cannot_be_compiled_runs_eagerly_with_a_warning(cls, options, reason):
    learner, eager = build(cls, compile_it=True, **options), build(cls, **options)
    with pytest.warns(UserWarning, match=f"compile=True: this gradient step runs eagerly, because .*{reason}"):
        learner.update_from_batch(batch(), minibatch_size=8)
    eager.update_from_batch(batch(), minibatch_size=8)
    assert_same(parameters(learner), parameters(eager))


class LossesOfItsOwn(MyLearner):
    """Brings its losses itself."""

    def compute_losses(self, *, fwd_out, batch):
        return {MODULE: fwd_out[MODULE]["vf_preds"].mean() * math.inf}


def test_a_compiler_that_fails_leaves_the_update_to_single_operations(monkeypatch):
    def fails():
        raise RuntimeError("in a process:\na long explanation\nno such kernel")

    monkeypatch.setattr("lockstep.learner.compile.update.compile_graph", lambda *_: fails)
    eager, compiled = build(MyLearner), build(MyLearner, compile_it=True)
    said = "runs eagerly, because compiling it failed: RuntimeError: in a process: ... no such kernel$"
    with pytest.warns(UserWarning, match=said):
        compiled.update_from_batch(batch(), **STEPS)
    eager.update_from_batch(batch(), **STEPS)
    assert_same(parameters(eager), parameters(compiled))


@pytest.mark.parametrize("compile_it", [False, pytest.param(True, marks=pytest.mark.faults)])
def test_a_loss_from_an_overridden_compute_losses_is_in_the_results(compile_it):
    learner = build(LossesOfItsOwn, compile_it=compile_it, nan_policy="skip")
    with pytest.warns(RuntimeWarning, match="not finite"):
        found = learner.update_from_batch(batch())[MODULE]["total_loss"]
    assert not math.isfinite(found)


# -- traced: what a graph reads and writes ---


def learners(cls=PPOLearner):
    """One that traces and one that does not."""
    made = [
        ppo_config(learner_class=cls, lr=0.01).framework(dtype="float32", compile=both, compile_after=0)
        for both in (True, False)
    ]
    return [config.build_learner() for config in made]


@pytest.mark.usefixtures("traced")
def test_one_tensor_in_two_columns_is_two_inputs():
    pair = learners()
    for seed, shared in ((0, True), (1, False)):
        columns = {name: torch.as_tensor(column) for name, column in ppo_batch(32, seed=seed).items()}
        columns["value_targets"] = columns["value_targets"] * 3 + 5
        if shared:
            columns["advantages"] = columns["value_targets"] = columns["value_targets"].float()
        train(pair, SampleBatch(columns), minibatch_size=8)
    assert_near(*pair)


@pytest.mark.usefixtures("traced")
def test_a_minibatch_without_rows_of_some_module_is_traced_without_it():
    pair = [value_learner(modules=("a", "b"), dtype="float32", compile_it=both) for both in (True, False)]
    train(pair, MultiAgentBatch({"a": value_batch(40), "b": value_batch(3)}, 40), minibatch_size=8)
    assert_near(*pair)


def test_state_of_another_memory_layout_is_another_graph(traced):
    learner, eager = learners()

    def graphs_after(replace):
        for entry in learner.optimizers:
            (moments,) = entry.optimizer.state.values()
            moments["exp_avg"] = replace(moments["exp_avg"])
        train((learner, eager), ppo_batch(32), minibatch_size=16)
        assert_near(learner, eager)
        return len(traced)

    train((learner, eager), ppo_batch(32), minibatch_size=16)
    assert graphs_after(lambda moments: moments) == 1
    assert graphs_after(torch.clone) == 1
    assert graphs_after(lambda moments: moments.repeat_interleave(2)[::2]) == 2
    assert graphs_after(torch.Tensor.contiguous) == 3


class Scaled(nn.Module):
    """An encoder with a buffer."""

    def __init__(self, space):
        super().__init__()
        self.output_size = 5
        self.layer = nn.Linear(*space.shape, 5)
        self.register_buffer("scale", torch.ones(5))

    def forward(self, obs):
        return self.scale * self.layer(obs).tanh()


def test_a_buffer_that_was_replaced_is_read_by_the_next_update(traced):
    config = ppo_config().rl_module(model_config={"encoder": Scaled})
    learner, eager = (
        config.copy().framework(dtype="float32", compile=both, compile_after=0).build_learner()
        for both in (True, False)
    )
    train((learner, eager), ppo_batch(32), minibatch_size=16)
    assert traced
    for each in (learner, eager):
        for encoder in [part for part in each.module.modules() if isinstance(part, Scaled)]:
            encoder.scale = torch.full((5,), 3.0)
    train((learner, eager), ppo_batch(32), minibatch_size=16)
    assert_near(learner, eager)


def replaced_buffer(part):
    part.scale = torch.zeros(5)


def added_buffer(part):
    part.register_buffer("shift", torch.zeros(2))


def removed_buffer(part):
    del part.scale


def filled_buffer(part):
    part.empty = torch.zeros(2)


def added_module(part):
    part.norm = nn.BatchNorm1d(5)


def replaced_module(part):
    part.layer = nn.Sequential(nn.Linear(*BOX.shape, 5), nn.BatchNorm1d(5))


@pytest.mark.parametrize(
    "change", [replaced_buffer, added_buffer, removed_buffer, filled_buffer, added_module, replaced_module]
)
def test_the_buffers_of_modules_are_those_that_they_have_now(change):
    modules = [nn.Sequential(Scaled(BOX), nn.ReLU()), nn.BatchNorm1d(3)]
    modules[0][0].register_buffer("empty", None)
    buffers = ModuleBuffers()

    def assert_found():
        present = [buffer for module in modules for buffer in module.buffers()]
        found = buffers.of(modules)
        assert len(found) == len(present)
        assert all(a is b for a, b in zip(found, present))

    assert_found()
    change(modules[0][0])
    assert_found()
    assert_found()
    modules.append(nn.BatchNorm1d(2))
    assert_found()


class Doubled(nn.Module):
    """An encoder of the user's own."""

    def __init__(self, space):
        super().__init__()
        self.output_size = 5
        self.layer = nn.Linear(*space.shape, 5)

    def forward(self, obs):
        return self.layer(2.0 * obs).tanh()


ROWS = 8
SINGLE_Q = [name for name in OFF_POLICY if name in taking("discrete") and has_option(name, "double_q")]
"""algorithms whose targets come from one network or from two"""
CASES = [
    ("dqn", {"tau": 0.2, "target_update_interval": 2}, {"dueling": True, "activation": "relu"}),
    ("dqn", {"target_update_interval": 2}, {"encoder": Doubled}),
    *(
        (name, {**ALGORITHM_CASES[name].small, "target_update_interval": 4}, {})
        for name in taking("discrete")
        if name in OFF_POLICY
    ),
    *(
        (name, {**ALGORITHM_CASES[name].small, "target_update_interval": 4, "double_q": False}, {"dueling": True})
        for name in SINGLE_Q[::2]
    ),
]


@pytest.mark.parametrize("is_traced", [True, pytest.param(False, marks=pytest.mark.faults)])
@pytest.mark.parametrize("algorithm, training, model", one_in(3, CASES))
def test_compiled_steps_are_the_eager_ones_and_the_target_network_follows(
    algorithm, training, model, is_traced, request
):
    if is_traced:
        request.getfixturevalue("traced")
    config = get_config(algorithm).training(lr=1e-2, grad_clip=0.5, **training)
    config.rl_module(model_config={"hiddens": (8,), "policy_gain": 1.0, **model})
    compiled, eager = (
        config.copy().framework(compile=both, compile_after=0).build_learner(spaces=(BOX, THREE))
        for both in (True, False)
    )
    for update in range(3):
        batch = transitions(5 * ROWS, update)
        found, expected = (each.update_from_batch(batch, minibatch_size=ROWS)[MODULE] for each in (compiled, eager))
        for key in ("qf_loss", "q_mean", "td_error_mean", "gradients_default_optimizer_global_norm"):
            assert found[key] == pytest.approx(expected[key], rel=1e-4), key
    assert all(compiled.compiled._steps.values())
    torch.testing.assert_close(compiled.row_errors[MODULE], eager.row_errors[MODULE], rtol=1e-4, atol=1e-5)
    assert_near(compiled, eager)
    targets = [learner.registered[f"{MODULE}/target"] for learner in (compiled, eager)]
    assert targets[0].num_steps == targets[1].num_steps == 15
    torch.testing.assert_close(targets[0].flat, targets[1].flat, rtol=0, atol=1e-5)
    assert not torch.equal(targets[0].flat, compiled.optimizers.get(MODULE, "default_optimizer").flat.data)


# -- networks in bfloat16 ---


def mixed_learner(mixed, **model):
    config = ppo_config().framework(dtype="float32", mixed_precision=mixed).debugging(seed=3)
    return config.rl_module(model_config=model).build_learner()


@pytest.mark.parametrize(
    "model", [{}, {"vf_share_layers": True}, {"recurrent": "lstm"}, {"attention": {"memory": 4}}], ids=str
)
def test_mixed_precision_agrees_with_float32_to_the_precision_of_bfloat16(model):
    whole, mixed = mixed_learner(False, **model), mixed_learner(True, **model)
    batch = ppo_batch()
    if "recurrent" in model or "attention" in model:
        batch["seq_lens"] = np.array([6, 6, 6, 6])
        batch["state_in"] = {
            k: np.zeros((4, *v.shape), np.float32) for k, v in mixed.module[MODULE].get_initial_state().items()
        }
    results = [learner.update_from_batch(batch)[MODULE] for learner in (whole, mixed)]
    assert results[1]["total_loss"] == pytest.approx(results[0]["total_loss"], rel=0.02)
    assert results[1]["total_loss"] != results[0]["total_loss"]  # it was computed in another precision
    assert {own.dtype for own in parameters(mixed).values()} == {torch.float32}
    assert_near(mixed, whole, 1e-3)


def test_the_loss_reads_float32_whatever_the_networks_compute_in():
    learner = mixed_learner(True)
    batch = {MODULE: {"obs": torch.zeros(5, 3)}}
    assert {value.dtype for value in learner.forward_train(batch)[MODULE].values()} == {torch.float32}


# -- modules that come and go ---


def to_main(agent, episode):
    return "main"


def test_copies_that_join_and_leave_in_self_play_are_not_compiled_for(traced):
    """A graph holds what the learning module has; frozen copies come and go without another one."""
    config = game_config(Duel, num_envs=8, reporting={"total_steps": 128, "steps_per_epoch": 16})
    config.multi_agent(policies=["main"], policy_mapping_fn=to_main)
    config.framework(compile=True, compile_after=0)
    self_play = SelfPlay("main", win_rate_threshold=0.0, window=4, max_pool_size=2)
    trainer = config.build_trainer(callbacks=[self_play])
    next(trainer)
    compiled = trainer.policy.learner_group.learner.compiled
    copies = self_play.num_copies
    assert len(traced) == 1
    trainer.run()
    assert self_play.num_copies >= copies + 4
    assert trainer.policy.learner_group.learner.compiled is compiled
    assert len(traced) == 1

    trainer.policy.add_module("other", init_from="main")
    assert trainer.policy.learner_group.learner.compiled is not compiled
