"""What torch lets one do to a learner's networks: the next update goes on with it, or names what it cannot take."""

import copy
import uuid

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from learner_parts import (
    ALL,
    BOX,
    MODULE,
    THREE,
    ValueLearner,
    WholeLearner,
    assert_near,
    assert_same,
    differs,
    parameters,
    ppo_batch,
    ppo_config,
    spec,
    told,
    train,
    transitions,
    value_batch,
    value_learner,
)  # fmt: skip
from parts import examples
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from lockstep import DQNConfig
from lockstep.algorithms.ppo import PPOLearner
from lockstep.data import MultiAgentBatch
from lockstep.learner import watch
from lockstep.modules import RecurrentActor, TorchActor


class OwnOptimizer(WholeLearner):
    """One optimizer of the user's, which steps single parameters."""

    def configure_optimizers_for_module(self, module_id, config):
        params = list(self.module[module_id].parameters())
        adam = torch.optim.Adam(params, lr=config.lr)
        self.register_optimizer(module_id=module_id, optimizer=adam, params=params)


KINDS = pytest.mark.parametrize("cls", [WholeLearner, OwnOptimizer])


def pair(cls=WholeLearner, **options):
    """Two equal learners after an update each."""
    learners = [value_learner(cls, **options) for _ in range(2)]
    train(learners, value_batch())
    return learners


def assert_go_on_alike(learner, other):
    """Two more updates give both the same parameters to the last bit, and move all of them."""
    for seed in (1, 2):
        before = parameters(learner)
        train((learner, other), value_batch(seed=seed))
        assert_same(parameters(learner), parameters(other))
        assert len(differs(before, parameters(learner))) == len(before)


# -- gradients, memory and objects replaced ---


def zeroed_in_part(module):
    module.policy_head.zero_grad()
    assert module.policy_head.weight.grad is None


def other_gradients(module):
    module.value_head.bias.grad = None
    module.value_head.weight.grad = torch.ones(1, 4, dtype=torch.float64)
    module.policy_head.bias.grad.data = torch.ones(3, dtype=torch.float64)


def replace_one(module):
    module.value_head.weight.data = module.value_head.weight.data.clone()


def replace_all(module):
    for param in module.parameters():
        param.data = param.data.clone()


def through_a_vector(module):
    vector_to_parameters(parameters_to_vector(module.parameters()).detach().clone(), module.parameters())


def there_and_back(module):
    module.float().double()


def assign(module):
    module.load_state_dict({name: value.clone() for name, value in module.state_dict().items()}, assign=True)


def assign_a_part(module):
    assign(module.policy_head)


def new_layer(module):
    head = nn.Linear(4, 1, dtype=torch.float64)
    head.load_state_dict(module.value_head.state_dict())
    module.value_head = head


def turned_around(module):
    """The same memory read by columns."""
    weight = module.encoder.mlp[0].weight
    weight.data = weight.data.T.contiguous().T


def swapped(module):
    """Each of two lies in the other's memory."""
    one, two = module.encoder.mlp[0].weight, module.value_encoder.mlp[0].weight
    first, second = one.data, two.data
    values = first.clone(), second.clone()
    one.data, two.data = second, first
    with torch.no_grad():
        one.copy_(values[0]), two.copy_(values[1])


HABITS = [
    replace_one, replace_all, through_a_vector, there_and_back, assign, assign_a_part, new_layer, turned_around, swapped
]  # fmt: skip


@KINDS
@pytest.mark.parametrize("habit", [zeroed_in_part, other_gradients, *HABITS])
def test_a_network_learns_with_its_replacement_and_keeps_moments(habit, cls):
    learner, other = pair(cls)
    habit(learner.module[MODULE])
    if habit is there_and_back:
        other.module[MODULE].load_state_dict(learner.module[MODULE].state_dict())  # float32 has fewer digits
    assert_go_on_alike(learner, other)
    flat = {p.untyped_storage().data_ptr() for p in learner.module.parameters()}
    assert len(flat) == 1  # clipping and reducing are one operation again


class WithinUpdates(WholeLearner):
    """Its gradients are zeroed, and its networks lie elsewhere after each forward pass, as on CUDA after
    `LSTM.flatten_parameters`.
    """

    def forward_train(self, batch):
        self.habit(self.module[MODULE])
        return super().forward_train(batch)


@pytest.mark.parametrize("habit", [replace_all, zeroed_in_part])
def test_parameters_replaced_during_an_update_are_bound_again(habit):
    learner, other = value_learner(WithinUpdates), value_learner(WholeLearner)
    learner.habit = habit
    train((learner, other), value_batch(), minibatch_size=2)
    assert_same(parameters(learner), parameters(other))


def test_a_parameter_of_another_dtype_or_shape_is_refused_until_it_fits():
    learner, other = pair()
    module = learner.module[MODULE]
    before = parameters(learner)
    module.value_head.float()
    for _ in range(2):
        with pytest.raises(ValueError, match=r"default_policy\.value_head\.weight was \(1, 4\) torch\.float64 on cpu"):
            learner.update_from_batch(value_batch(seed=1))
    module.value_head.double()
    module.load_state_dict({name.split(".", 2)[2]: value for name, value in before.items()})
    assert_go_on_alike(learner, other)


def test_layer_of_another_size_or_one_that_is_gone_is_refused_by_name():
    learner, other = pair()
    module = learner.module[MODULE]
    head = module.value_head
    module.value_head = nn.Linear(4, 2, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"value_head\.weight was \(1, 4\).* and is \(2, 4\)"):
        learner.update_from_batch(value_batch(seed=1))
    del module.value_head
    with pytest.raises(ValueError, match=r"value_head\.weight is no longer in its module"):
        learner.update_from_batch(value_batch(seed=1))
    module.value_head = head
    assert_go_on_alike(learner, other)


def test_shared_parameter_that_is_not_shared_any_more_is_refused_by_name():
    learner = value_learner(build=False)
    made = learner._make_module()
    made[MODULE].value_encoder.mlp[0].weight = made[MODULE].encoder.mlp[0].weight
    learner._make_module = lambda: made
    learner.build().update_from_batch(value_batch())
    assign(learner.module[MODULE])
    with pytest.raises(ValueError, match=r"value_encoder\.mlp\.0\.weight was shared with another layer"):
        learner.update_from_batch(value_batch())


# -- frozen parameters ---


@KINDS
def test_frozen_parameter_stays_as_it_is_and_learns_again_when_thawed(cls):
    learner = value_learner(cls, lr=0.01)
    for seed in range(3):
        learner.update_from_batch(value_batch(seed=seed))  # moments that would move it on
    module = learner.module[MODULE]
    module.policy_head.requires_grad_(False)
    module.value_head.bias.requires_grad_(False)
    before = parameters(learner)
    for seed in range(3):
        learner.update_from_batch(value_batch(seed=seed))
    start = f"rl_modules.{MODULE}."
    frozen = {start + "policy_head.weight", start + "policy_head.bias", start + "value_head.bias"}
    assert set(before) - set(differs(before, parameters(learner))) == frozen
    module.requires_grad_(True)
    learner.update_from_batch(value_batch())
    assert set(differs(before, parameters(learner))) == set(before)


def test_a_frozen_parameter_does_not_count_in_the_clipped_norm():
    learner = value_learner(WholeLearner)
    learner.module[MODULE].policy_head.requires_grad_(False)
    norm = learner.update_from_batch(value_batch())[MODULE]["gradients_default_optimizer_global_norm"]
    grads = [p.grad for p in learner.module.parameters() if p.requires_grad]
    assert norm == pytest.approx(float(torch.linalg.vector_norm(torch.cat([g.reshape(-1) for g in grads]))))


# -- targets, acting, compiled code ---


def dqn_learner():
    config = DQNConfig().environment(observation_space=BOX, action_space=THREE)
    config.training(target_update_interval=1, tau=0.5).rl_module(model_config={"hiddens": (4,)})
    return config.build_learner()


@pytest.mark.parametrize("whose", ["module", "target"])
@pytest.mark.parametrize("habit", [replace_all, through_a_vector, assign])
def test_target_network_follows_replaced_parameters(habit, whose):
    learner, other = dqn_learner(), dqn_learner()
    for seed in range(3):
        train((learner, other), transitions(16, seed))
        target = learner.registered[f"{MODULE}/target"]
        habit(learner.module[MODULE] if whose == "module" else target.module)
    assert_same(parameters(learner), parameters(other))
    expected = other.registered[f"{MODULE}/target"].module.state_dict()
    assert_same(dict(target.module.state_dict()), dict(expected))


@pytest.mark.parametrize("habit", [replace_all, through_a_vector, assign, there_and_back])
@pytest.mark.parametrize("memory", [None, "lstm"])
def test_a_policy_acts_with_replaced_weights_at_once(habit, memory):
    config = ppo_config(minibatch_size=None).framework(dtype="float64")
    config.rl_module(model_config={"hiddens": (4,), "recurrent": memory})
    policy = config.build_policy()
    obs = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)

    def actions():
        return policy.compute_actions(obs, policy.get_initial_state(50))[0] if memory else policy.compute_actions(obs)

    def expected():
        policy_module = policy.learner_group.learner.module[MODULE]
        actor = (RecurrentActor if memory else TorchActor)(policy_module)
        return actor.act_with_state(obs, None, actor.get_initial_state(50))[0] if memory else actor.act(obs)

    module = policy.learner_group.learner.module[MODULE]
    first = actions()
    habit(module)
    with torch.no_grad():
        for param in module.policy_head.parameters():
            param.mul_(-1)
    np.testing.assert_array_equal(actions(), expected())
    assert (actions() != first).any()
    if not memory:
        policy.learn_on_batch(ppo_batch(32))
    else:
        policy.learner_group.learner.follow_replaced_parameters()
    np.testing.assert_array_equal(actions(), expected())


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("habit", [replace_all, through_a_vector, assign])
def test_compiled_update_continues_with_replaced_parameters(habit):
    learners = [value_learner(WholeLearner, dtype="float32", compile_it=both) for both in (True, False)]
    for seed in range(3):
        train(learners, value_batch(seed=seed))
        if seed == 0:
            habit(learners[0].module[MODULE])
    assert_near(*learners)


@pytest.mark.usefixtures("traced")
def test_compiled_update_leaves_frozen_parameters_as_they_are():
    learners = [value_learner(WholeLearner, dtype="float32", compile_it=both, lr=0.01) for both in (True, False)]
    for learner in learners:
        learner.update_from_batch(value_batch())
        learner.module[MODULE].policy_head.requires_grad_(False)
        head = learner.module[MODULE].policy_head.weight.detach().clone()
        learner.update_from_batch(value_batch(seed=1))
        assert torch.equal(learner.module[MODULE].policy_head.weight, head)
        learner.module[MODULE].policy_head.requires_grad_(True)
        learner.update_from_batch(value_batch(seed=2))
        assert not torch.equal(learner.module[MODULE].policy_head.weight, head)
    assert_near(*learners)


# -- what is told ---


def test_parameters_that_get_no_gradient_in_a_whole_update_are_named_once():
    learner, results = value_learner(), []

    def update():
        results.append(learner.update_from_batch(value_batch(), minibatch_size=5)[ALL])

    (text,) = told(update)
    assert "had no gradient, or one of zeros only, in a whole update" in text
    assert "saturated (a tanh far from 0" in text
    assert text.index("saturated") < text.index("freeze")
    own = f"rl_modules.{MODULE}."
    for name in ("encoder.mlp.0.weight", "encoder.mlp.0.bias", "policy_head.weight", "policy_head.bias"):
        assert own + name in text
    assert "value" not in text
    assert not told(update)
    assert [found.get("parameters_without_gradient") for found in results] == [4, None]


def test_parameters_that_lose_their_gradient_later_are_named(monkeypatch):
    monkeypatch.setattr(watch, "STEPS_BETWEEN_LOOKS", 5)
    learner = value_learner(WholeLearner)
    assert not told(lambda: learner.update_from_batch(value_batch()))
    learner.compute_loss_for_module = ValueLearner.compute_loss_for_module.__get__(learner)
    (text,) = told(lambda: [learner.update_from_batch(value_batch()) for _ in range(20)])
    assert "policy_head.weight" in text


def test_parameter_thawed_that_has_no_optimizer_is_named(monkeypatch):
    monkeypatch.setattr(watch, "STEPS_BETWEEN_LOOKS", 5)
    learner = value_learner(WholeLearner, build=False)
    learner._make_module()[MODULE].policy_head.requires_grad_(False)
    learner.build()
    assert not told(lambda: learner.update_from_batch(value_batch()))
    learner.module.requires_grad_(True)
    (text,) = told(lambda: [learner.update_from_batch(value_batch()) for _ in range(20)])
    assert "policy_head.weight" in text
    assert "have no optimizer" in text


def test_updates_with_a_learning_rate_of_0_warn_once():
    learner = value_learner(WholeLearner, lr=[[0, 0.0], [10, 0.1], [20, 0.0]])

    def update(now):
        return told(lambda: learner.update_from_batch(value_batch(), timesteps={"num_env_steps_sampled_lifetime": now}))

    assert not update(0)  # it rises later
    assert not update(10)
    assert not update(20)  # the last update of a run with which the schedule ends
    (text,) = update(30)
    assert "the learning rate of optimizer 'default_policy.default_optimizer' is 0" in text
    assert not update(40)


# -- losses and builds of one's own ---


class OneLoss(WholeLearner):
    """One loss for all modules."""

    def compute_losses(self, *, fwd_out, batch):
        losses = super().compute_losses(fwd_out=fwd_out, batch=batch)
        return {ALL: torch.stack(list(losses.values())).sum()}


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("compile_it", [False, True])
def test_one_loss_for_all_modules_trains_every_module_in_it_and_no_other(compile_it):
    options = {"modules": ("a", "b", "c"), "dtype": "float32", "lr": 0.01}
    learner, other = value_learner(OneLoss, compile_it=compile_it, **options), value_learner(WholeLearner, **options)
    for learning in (("a", "b", "c"), ("a", "b")):  # momentum does not move the one that is not in the second
        batch = MultiAgentBatch({mid: value_batch(seed=seed) for seed, mid in enumerate(learning)}, 10)
        before = parameters(learner)
        train((learner, other), batch)
        moved = {name.split(".")[1] for name in differs(before, parameters(learner))}
        assert moved == set(learning)
    assert_near(learner, other, 1e-5 if compile_it else 0)


class BuildsSilently(PPOLearner):
    """Its `build` returns nothing."""

    def build(self):
        super().build()


def test_learner_whose_build_returns_none_is_built_grouped_and_restored(tmp_path):
    config = ppo_config(learner_class=BuildsSilently)
    learner = config.build_learner()
    learner.update_from_batch(ppo_batch())
    group = config.build_learner_group()
    group.update_from_batch(ppo_batch())
    again = BuildsSilently.from_checkpoint(learner.save_to_path(tmp_path / "saved"))
    assert_same(parameters(again), parameters(learner))


# -- random sequences of ordinary operations ---


class PlainLoop:
    """The same loss and torch's own Adam on a plain copy of a module. One rule is the default optimizer's: it has one
    step count, by which Adam's bias is corrected, and which goes on for frozen parameters, too.
    """

    def __init__(self, module, rate, one_count):
        self.module, self.rate, self.one_count = copy.deepcopy(module), rate, one_count
        self.module.requires_grad_(True)
        self.steps, self.moments = 0, {}

    def update(self, batch):
        params = dict(self.module.named_parameters())  # may be other objects now: what Adam remembers goes by name
        adam = torch.optim.Adam(params.values(), lr=self.rate)
        for name, moments in self.moments.items():
            adam.state[params[name]] = moments
        out = self.module.forward_train({"obs": torch.from_numpy(batch["obs"]).double()})
        loss = (out["vf_preds"] - torch.from_numpy(batch["value_targets"])).square().mean()
        self.module.zero_grad()
        (loss + out["action_dist_inputs"].square().sum(-1).mean()).backward()
        if self.one_count:
            for param in params.values():  # one that was frozen from the start has moments of 0
                zeros = {"exp_avg": torch.zeros_like(param), "exp_avg_sq": torch.zeros_like(param)}
                adam.state[param] = {**zeros, **adam.state[param], "step": torch.tensor(float(self.steps))}
        adam.step()
        self.steps += 1
        self.moments = {name: adam.state[param] for name, param in params.items() if param in adam.state}


PARTS = ("encoder", "policy_head", "value_encoder", "value_head")


def scaled(module):
    """Other values in other memory."""
    for param in module.parameters():
        param.data = param.data * 1.25


def no_gradients(module):
    for param in module.parameters():
        param.grad = None


def load(module):
    module.load_state_dict({name: value * 0.75 for name, value in module.state_dict().items()})


def freeze(module):
    module.requires_grad_(False)


def thaw(module):
    module.requires_grad_(True)


SPOILING = {"other dtype": lambda module: module.float(), "other shape": lambda module: setattr(
    module.value_head, "bias", nn.Parameter(torch.zeros(2, dtype=torch.float64)))}  # fmt: skip
ON_BOTH = {
    habit.__name__: habit
    for habit in (scaled, no_gradients, load, freeze, thaw, replace_all, through_a_vector, there_and_back, assign)
} | {"zero_grad": nn.Module.zero_grad}
OPERATIONS = st.one_of(
    st.tuples(st.sampled_from(sorted(ON_BOTH)), st.sampled_from(("", *PARTS))),
    st.tuples(st.just("rate"), st.sampled_from((0.003, 0.02))),
    st.tuples(st.sampled_from(("add", "remove", "keep", "go back", "checkpoint")), st.just("")),
    st.tuples(st.sampled_from(sorted(SPOILING)), st.just("")),
)


@examples(15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cls=st.sampled_from((WholeLearner, OwnOptimizer)), operations=st.lists(OPERATIONS, min_size=1, max_size=8))
def test_after_any_operations_an_update_equals_a_plain_loop_or_names_one(cls, operations, tmp_path):
    learner = value_learner(cls, lr=0.01)
    plain = PlainLoop(learner.module[MODULE], 0.01, one_count=cls is WholeLearner)
    kept = None
    for number, (name, detail) in enumerate([("", ""), *operations]):
        if name in SPOILING:
            before = plain.module.state_dict()
            SPOILING[name](learner.module[MODULE])
            with pytest.raises(ValueError, match=rf"{MODULE}\.\w+\..* was \(.*build the learner again"):
                learner.update_from_batch(MultiAgentBatch({MODULE: value_batch()}, 10))
            learner.module[MODULE].double()
            learner.module[MODULE].value_head.bias = nn.Parameter(torch.zeros(1, dtype=torch.float64))
            learner.module[MODULE].load_state_dict({key: value.clone() for key, value in before.items()}, assign=True)
            for own, other in zip(learner.module[MODULE].parameters(), plain.module.parameters()):
                own.requires_grad_(other.requires_grad)
        elif name in ON_BOTH:
            for module in (learner.module[MODULE], plain.module):
                ON_BOTH[name](module.get_submodule(detail))
        elif name == "rate":
            plain.rate = detail
            learner._set_optimizer_lr(learner.get_optimizer(MODULE), detail)
        elif name == "add" and "more" not in learner.module:
            learner.add_module(module_id="more", module_spec=spec())
            kept = None  # a state of other modules is refused
        elif name == "remove" and "more" in learner.module:
            learner.remove_module("more")
            kept = None
        elif name == "keep":
            kept = copy.deepcopy((learner.get_state(), plain.module.state_dict(), vars(plain)))
        elif name == "go back" and kept is not None:
            state, weights, loop = copy.deepcopy(kept)
            learner.set_state(state)
            plain.module.load_state_dict(weights)
            plain.steps, plain.moments, plain.rate = loop["steps"], loop["moments"], loop["rate"]
        elif name == "checkpoint":
            learner.restore_from_path(learner.save_to_path(tmp_path / f"{uuid.uuid4()}"))
        if not any(param.requires_grad for param in plain.module.parameters()):
            continue  # torch refuses a backward pass
        plain.update(value_batch(seed=number))
        learner.update_from_batch(MultiAgentBatch({mid: value_batch(seed=number) for mid in learner.module}, 10))
        for (key, own), expected in zip(learner.module[MODULE].named_parameters(), plain.module.parameters()):
            torch.testing.assert_close(own, expected, rtol=0, atol=1e-10, msg=f"{key} after {name} {detail}")
