"""Numpy and torch actors pick the same actions; what numpy cannot do goes to torch."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from lockstep.modules import (
    DefaultActorCriticModule,
    DefaultCrossQModule,
    DefaultSACModule,
    DefaultTD3Module,
    DefaultTQCModule,
    NumpyActor,
    RLModuleSpec,
    TorchActor,
    make_actor,
    wrap_module,
)
from lockstep.ops._dense_kernel import dense

BOX = spaces.Box(-np.inf, np.inf, (4,), np.float32)
DISCRETE = spaces.Discrete(3)
CONTINUOUS = spaces.Box(-1, 1, (2,), np.float32)


def build(action_space=DISCRETE, space=BOX, **config):
    config = {"policy_gain": 1.0, **config}  # actions that depend on the observation
    return RLModuleSpec(DefaultActorCriticModule, space, action_space, model_config=config).build(seed=3)


def rows(n, shape=(4,), seed=0, scale=2.0):
    return scale * np.random.default_rng(seed).standard_normal((n, *shape)).astype(np.float32)


def assert_same_actions(module, obs, noise, one, two):
    """Equal, or (for choices) different only where the two best are equal up to rounding."""
    if module.action_dist_cls.is_discrete:
        differ = one != two
        if differ.any():
            inputs = module.forward_inference({"obs": torch.from_numpy(obs)})["action_dist_inputs"].detach().numpy()
            scores = np.sort(inputs + (0 if noise is None else noise), axis=1)
            assert (scores[differ, -1] - scores[differ, -2]).max() < 1e-5
        assert one.dtype == two.dtype == np.int64
    else:
        np.testing.assert_allclose(one, two, atol=2e-6, rtol=1e-5)
        assert one.dtype == two.dtype
    assert one.shape == two.shape


SQUARE = spaces.Box(-1, 1, (2, 2), np.float32)
POLICIES = [
    (DefaultActorCriticModule, DISCRETE, {}),
    (DefaultActorCriticModule, DISCRETE, {"activation": "relu", "vf_share_layers": True}),
    (DefaultActorCriticModule, CONTINUOUS, {"hiddens": ()}),
    (DefaultActorCriticModule, CONTINUOUS, {"log_std_init": -0.7}),
    (DefaultActorCriticModule, CONTINUOUS, {"activation": "relu", "squash_actions": True, "log_std_init": 0.5}),
    (DefaultActorCriticModule, CONTINUOUS, {"squash_mean": True, "log_std_init": -0.7}),
    (DefaultActorCriticModule, SQUARE, {"squash_mean": True, "free_log_std": False}),
    (DefaultActorCriticModule, SQUARE, {"free_log_std": False, "log_std_init": -0.7, "vf_share_layers": True}),
    (DefaultActorCriticModule, SQUARE, {"free_log_std": False, "activation": "relu"}),
    (DefaultSACModule, CONTINUOUS, {"activation": "relu", "log_std_bounds": (-0.2, 0.1)}),
    (DefaultSACModule, DISCRETE, {"activation": "relu"}),
    (DefaultTQCModule, CONTINUOUS, {"activation": "relu", "num_value_outputs": 5}),
    (DefaultCrossQModule, CONTINUOUS, {"activation": "relu"}),
    (DefaultTD3Module, CONTINUOUS, {"activation": "relu", "hiddens": (16, 16)}),
]


@pytest.mark.parametrize(("cls", "action_space", "config"), POLICIES)
def test_numpy_and_torch_pick_the_same_actions(cls, action_space, config):
    """For any number of rows, and in arrays that the next call does not overwrite."""
    module = RLModuleSpec(cls, BOX, action_space, model_config={"policy_gain": 1.0, **config}).build(seed=3)
    actor, obs = NumpyActor.build(module), rows(5000)
    noise = np.random.default_rng(1).standard_normal((5000, module.action_dist_cls.noise_size), np.float32)
    for given in (noise, None):
        expected = TorchActor(module).act(obs, given)
        for part in (slice(None), slice(0, 8), slice(8, 9), slice(9, 17), slice(17, 117)):
            some = None if given is None else given[part]
            found = actor.act(obs[part], some)
            kept = found.copy()
            actor.act(-obs[part], some)
            np.testing.assert_array_equal(found, kept)
            assert_same_actions(module, obs[part], some, found, expected[part])


def test_observations_may_lie_in_memory_in_any_way():
    actor, obs = NumpyActor.build(build(CONTINUOUS)), rows(9)
    expected = actor.act(obs)
    compiled = len(dense.signatures)
    read_only = obs.copy()
    read_only.flags.writeable = False
    for given in (read_only, np.asfortranarray(obs), obs.astype(np.float64), np.repeat(obs, 2, axis=0)[::2]):
        np.testing.assert_array_equal(actor.act(given), expected)
    assert len(dense.signatures) == compiled


def test_acting_does_not_change_observations_or_noise():
    module = build()
    obs, noise = rows(8), module.action_dist_cls.draw_noise(np.random.default_rng(0), (8,))
    copies = obs.copy(), noise.copy()
    obs.flags.writeable = noise.flags.writeable = False
    for actor in (NumpyActor.build(module), TorchActor(module)):
        actor.act(obs, noise)
        np.testing.assert_array_equal(obs, copies[0])
        np.testing.assert_array_equal(noise, copies[1])


def test_new_values_act_at_once_and_new_storage_makes_an_actor_stale():
    module, other = build(), build(hidden_gain=0.3)
    actor = NumpyActor.build(module)
    obs = rows(500)
    before = actor.act(obs)
    module.set_state(other.get_state())
    expected = TorchActor(other).act(obs)
    assert (expected != before).any()
    np.testing.assert_array_equal(actor.act(obs), expected)

    assert not actor.is_stale()
    for p in module.parameters():
        p.data = torch.zeros_like(p)
    assert actor.is_stale()
    np.testing.assert_array_equal(actor.act(obs), expected)  # the old storage, as documented
    assert not make_actor(module).act(obs).any()


def test_float64_observations_and_modules():
    module = build(CONTINUOUS)
    obs = rows(20).astype(np.float64)
    np.testing.assert_allclose(NumpyActor.build(module).act(obs), TorchActor(module).act(obs), atol=1e-6)
    module = module.double()
    actor = NumpyActor.build(module)
    assert actor.act(obs).dtype == np.float64
    np.testing.assert_allclose(actor.act(obs), TorchActor(module).act(obs), atol=1e-14)


def test_more_batch_sizes_than_plans():
    module = build(space=spaces.Box(-1, 1, (3, 2), np.float32))
    actor = NumpyActor.build(module)
    obs = rows(60, (3, 2))
    expected = TorchActor(module).act(obs)
    for size in [*range(1, 60), 1, 2]:
        np.testing.assert_array_equal(actor.act(obs[:size]), expected[:size])


class Shift:
    """A pipeline, as the actors know one."""

    is_identity = False

    def __call__(self, data):
        return data * 0.5 + 1.0


def test_the_pipeline_comes_before_the_network():
    module = build(CONTINUOUS)
    obs = rows(30)
    for cls in (NumpyActor.build, TorchActor, make_actor):
        np.testing.assert_allclose(cls(module, Shift()).act(obs), TorchActor(module).act(Shift()(obs)), atol=1e-6)


class Overridden(DefaultActorCriticModule):
    """Always the last action."""

    def forward_exploration(self, batch):
        out = super().forward_exploration(batch)
        out["action_dist_inputs"][:, -1] += 1e6
        return out


class OnlyAnotherLoss(DefaultActorCriticModule):
    """Overrides what acting does not use."""

    def forward_train(self, batch):
        return super().forward_train(batch)


def test_modules_that_numpy_cannot_run_get_a_torch_actor():
    image = spaces.Box(0, 255, (40, 40, 3), np.uint8)
    masked = spaces.Dict({"observations": BOX, "action_mask": spaces.MultiBinary(3)})
    others = [
        build(spaces.MultiDiscrete([2, 3])),
        build(spaces.MultiBinary(3)),
        build(activation="gelu"),
        build(activation="silu"),
        build(space=image),
        build(space=masked),
        build(space=spaces.Discrete(5)),
        build(hiddens=(2048, 2048)),
        RLModuleSpec(Overridden, BOX, DISCRETE).build(),
        build().to(torch.bfloat16),
    ]
    hooked = build()
    hooked.encoder.mlp[0].register_forward_hook(lambda *_: None)
    replaced = build()
    replaced.encoder.mlp[1] = nn.Sequential(nn.Tanh(), nn.Dropout())
    instance = build()
    instance.forward_exploration = instance.forward_inference
    for module in [*others, hooked, replaced, instance]:
        assert NumpyActor.build(module) is None
        assert isinstance(make_actor(module), TorchActor)
    assert NumpyActor.build(RLModuleSpec(OnlyAnotherLoss, BOX, DISCRETE).build()) is not None


def test_an_overridden_method_is_used_for_acting():
    module = RLModuleSpec(Overridden, BOX, DISCRETE).build(seed=0)
    obs = rows(50)
    noise = module.action_dist_cls.draw_noise(np.random.default_rng(0), (50,))
    assert (make_actor(module).act(obs, noise) == 2).all()
    assert (make_actor(module).act(obs) != 2).any()  # greedily: forward_inference


def test_a_module_that_returns_actions():
    module = wrap_module(nn.Linear(4, 1), BOX, CONTINUOUS, "actions")
    np.testing.assert_allclose(
        make_actor(module).act(rows(3)), module.network(torch.from_numpy(rows(3))).detach().numpy(), atol=1e-6
    )


class Stateful(DefaultActorCriticModule):
    def get_initial_state(self):
        return {"h": torch.zeros(3)}


def test_an_actor_without_a_state_refuses_a_stateful_module():
    with pytest.raises(ValueError, match="Stateful keeps a state"):
        TorchActor(RLModuleSpec(Stateful, BOX, DISCRETE).build())


def test_a_wrong_observation_names_both():
    module = build()
    for actor in (NumpyActor.build(module), TorchActor(module)):
        with pytest.raises(ValueError, match=r"\(2, 5\).*Box"):
            actor.act(np.zeros((2, 5), np.float32))
