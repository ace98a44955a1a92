"""The default actor-critic for every observation and action space: shapes, gradients, masks, clear errors."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from picture_env import PictureEnv
from torch import nn

from lockstep.algorithms import PPOConfig
from lockstep.data.trees import map_tree
from lockstep.modules import ActionDist, DefaultActorCriticModule, ModelConfig, RLModuleSpec, wrap_module
from lockstep.modules.encoders import ImageFeatures

BOX = spaces.Box(-np.inf, np.inf, (4,), np.float32)
THREE = spaces.Discrete(3)
NESTED = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (40, 44, 3), np.uint8),
        "pose": spaces.Tuple([spaces.Box(-1, 1, (2, 3), np.float64), spaces.Discrete(4, start=-1)]),
        "switches": spaces.MultiBinary(5),
        "gears": spaces.MultiDiscrete([3, 2]),
    }
)
OBSERVATIONS = {
    "box": BOX,
    "box_scalar": spaces.Box(-1, 1, (), np.float32),
    "box_2d": spaces.Box(-1, 1, (3, 5), np.float64),
    "discrete": spaces.Discrete(7, start=2),
    "multi_discrete": spaces.MultiDiscrete([3, 4]),
    "multi_discrete_2d": spaces.MultiDiscrete([[3, 4], [2, 5]]),
    "multi_binary": spaces.MultiBinary(6),
    "multi_binary_2d": spaces.MultiBinary((2, 3)),
    "image_last": spaces.Box(0, 255, (84, 84, 4), np.uint8),
    "image_first": spaces.Box(0, 255, (4, 84, 84), np.uint8),
    "image_grey": spaces.Box(0, 255, (42, 42), np.uint8),
    "image_small": spaces.Box(0, 1, (10, 10, 4), np.float32),
    "image_floats": spaces.Box(0, 255, (10, 10, 4), np.float32),
    "nested": NESTED,
    "tuple": spaces.Tuple([BOX, spaces.Discrete(3)]),
}
ACTIONS = {
    "discrete": (spaces.Discrete(3), 3, ()),
    "multi_discrete": (spaces.MultiDiscrete([2, 4]), 6, (2,)),
    "multi_binary": (spaces.MultiBinary(5), 5, (5,)),
    "box": (spaces.Box(-2, 2, (2, 2), np.float32), 8, (4,)),
}


def sample(space, n):
    """`n` observations of a space, as tensors."""
    batched = batch_space(space, n)
    batched.seed(0)
    return map_tree(torch.from_numpy, batched.sample())


def make(observation_space, action_space=THREE, **config):
    spec = RLModuleSpec(DefaultActorCriticModule, observation_space, action_space, model_config=config)
    return spec.build(seed=0)


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("name", OBSERVATIONS)
def test_every_observation_space_gives_outputs_and_gradients(name, share):
    module = make(OBSERVATIONS[name], vf_share_layers=share)
    batch = {"obs": sample(OBSERVATIONS[name], 5)}
    out = module.forward_train(batch)
    assert out["action_dist_inputs"].shape == (5, 3)
    assert out["vf_preds"].shape == (5,)
    assert torch.equal(module.compute_values(batch), out["vf_preds"])
    for act in (module.forward_inference, module.forward_exploration):
        assert list(act(batch)) == ["action_dist_inputs"]
        assert torch.equal(act(batch)["action_dist_inputs"], out["action_dist_inputs"])
    (out["action_dist_inputs"].square().sum() + out["vf_preds"].sum()).backward()
    without = [key for key, p in module.named_parameters() if p.grad is None or not p.grad.any()]
    assert without == []


@pytest.mark.parametrize("name", ACTIONS)
def test_every_action_space_has_a_head_of_its_size(name):
    space, num_inputs, shape = ACTIONS[name]
    module = make(BOX, space)
    inputs = module.forward_train({"obs": torch.randn(6, 4)})["action_dist_inputs"]
    assert inputs.shape == (6, num_inputs)
    dist = module.action_dist_cls.from_inputs(inputs)
    noise = module.action_dist_cls.draw_noise(np.random.default_rng(0), (6,))
    actions = dist.sample_with_noise(torch.from_numpy(noise))
    assert actions.shape == (6, *shape)
    assert dist.log_prob(actions).shape == (6,)
    for action in module.action_dist_cls.to_env(actions.detach().numpy()):
        # A Gaussian knows no bounds: ClipActions is what keeps it inside them.
        assert space.contains(np.clip(action, space.low, space.high) if name == "box" else action)


def test_the_value_network_is_separate_or_shared():
    names = {key.partition(".")[0] for key, _ in make(BOX).named_parameters()}
    assert names == {"encoder", "policy_head", "value_encoder", "value_head"}
    names = {key.partition(".")[0] for key, _ in make(BOX, vf_share_layers=True).named_parameters()}
    assert names == {"encoder", "policy_head", "value_head"}
    module = make(BOX)
    module.compute_values({"obs": torch.randn(3, 4)}).sum().backward()
    assert all(p.grad is None for p in module.encoder.parameters())


def test_acting_does_not_run_the_value_network():
    module = make(BOX)
    module.value_encoder.register_forward_hook(lambda *_: pytest.fail("the critic ran while acting"))
    module.value_head.register_forward_hook(lambda *_: pytest.fail("the critic ran while acting"))
    module.forward_exploration({"obs": torch.randn(3, 4)})
    module.forward_inference({"obs": torch.randn(3, 4)})


def test_one_hot_features_follow_parts_and_starts():
    module = make(spaces.MultiDiscrete([2, 3], start=[5, -1]))
    features = module.encoder.features(torch.tensor([[5, 1], [6, -1]]))
    assert features.int().tolist() == [[1, 0, 0, 0, 1], [0, 1, 1, 0, 0]]
    module = make(spaces.Discrete(3, start=2))
    assert module.encoder.features(torch.tensor([2, 4])).int().tolist() == [[1, 0, 0], [0, 0, 1]]


def test_image_layouts_are_the_same_picture_and_bytes_are_scaled():
    last, first = make(OBSERVATIONS["image_last"]), make(OBSERVATIONS["image_first"])
    picture = torch.randint(0, 256, (3, 84, 84, 4), dtype=torch.uint8)
    out = last.forward_train({"obs": picture})["vf_preds"]
    torch.testing.assert_close(first.forward_train({"obs": picture.permute(0, 3, 1, 2)})["vf_preds"], out)
    network = last.encoder.features.network
    by_hand = network(picture.permute(0, 3, 1, 2).float() / 255.0)
    torch.testing.assert_close(last.encoder.features(picture), by_hand)
    assert make(OBSERVATIONS["image_small"]).encoder.features.scale == 1.0


@pytest.mark.parametrize("name", ["image_first", "image_last", "image_grey", "image_floats"])
def test_memory_format_of_images_changes_no_result(name):
    features = make(OBSERVATIONS[name]).encoder.features
    obs = sample(OBSERVATIONS[name], 3)
    before = obs.clone()
    channels_first = {"image_first": obs, "image_grey": obs.unsqueeze(1)}.get(name, obs.movedim(-1, 1))
    contiguous = channels_first.contiguous().float() * features.scale
    out, expected = features(obs), features.network(contiguous)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    weight = features.network[0].weight
    gradients = [torch.autograd.grad(each.square().sum(), weight)[0] for each in (out, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)
    assert torch.equal(obs, before)  # scaled in place, but in a copy


def test_images_stay_bytes_until_the_encoder():
    config = PPOConfig().environment(PictureEnv).env_runners(num_envs_per_env_runner=2)
    config.training(train_batch_size=16, minibatch_size=8, num_epochs=1).evaluation(evaluation_interval=0)
    trainer = config.reporting(total_steps=16).build_trainer()
    seen = []
    images = [each for each in trainer.policy.module.modules() if isinstance(each, ImageFeatures)]
    for each in images:
        each.register_forward_pre_hook(lambda _, args: seen.append((len(args[0]), args[0].dtype)))
    trainer.run()
    assert {rows for rows, _ in seen} >= {2, 16, 8}  # acting, evaluating the rollout, learning
    assert {dtype for _, dtype in seen} == {torch.uint8}


def test_images_of_84_pixels_meet_the_nature_network():
    module = make(OBSERVATIONS["image_first"])
    convolutions = [layer for layer in module.encoder.features.network if isinstance(layer, torch.nn.Conv2d)]
    layers = [(c.out_channels, c.kernel_size[0], c.stride[0]) for c in convolutions]
    assert layers == [(32, 8, 4), (64, 4, 2), (64, 3, 1)]
    assert module.policy_head.in_features == 512
    assert len(module.encoder.mlp) == 0


@pytest.mark.parametrize("name", ["image_first", "image_last", "image_small"])
def test_the_impala_encoder_is_the_network_of_the_paper(name):
    """15 convolutions with the input's: three sections of one, a maximum, and two residual blocks of two; 256 units."""
    module = make(OBSERVATIONS[name], encoder="impala", image_hiddens=(256,), vf_share_layers=True)
    features = module.encoder.features
    layers = [each for each in features.network.modules() if isinstance(each, nn.Conv2d)]
    assert [layer.out_channels for layer in layers] == [16] * 5 + [32] * 10
    obs = sample(OBSERVATIONS[name], 3)
    x = obs.float() / (1.0 if name == "image_small" else 255.0)
    x = x if name == "image_first" else x.permute(0, 3, 1, 2)
    convolve = iter(layers)
    for _ in range(3):
        x = F.max_pool2d(next(convolve)(x), 3, 2, 1)
        for _ in range(2):
            inner = next(convolve)(F.relu(x))
            x = x + next(convolve)(F.relu(inner))
    (dense,) = (each for each in features.network if isinstance(each, nn.Linear))
    wanted = F.relu(dense(F.relu(x).flatten(1)))
    assert wanted.shape == (3, 256) == (3, module.policy_head.in_features)
    torch.testing.assert_close(features(obs), wanted)
    assert 0.3 < features(obs).std().item() < 3.0


def test_layer_norm_is_between_each_encoder_layer_and_its_activation():
    dense = make(BOX, layer_norm=True, hiddens=(8, 9)).encoder.mlp
    assert [type(layer) for layer in dense] == [nn.Linear, nn.LayerNorm, nn.Tanh] * 2
    images = make(OBSERVATIONS["image_small"], layer_norm=True, conv_filters=((4, 3, 1),), image_hiddens=(8,))
    kinds = [nn.Conv2d, nn.GroupNorm, nn.ReLU, nn.Flatten, nn.Linear, nn.LayerNorm, nn.ReLU]
    assert [type(layer) for layer in images.encoder.features.network] == kinds
    normalised = images.encoder.features.network[:2](torch.rand(5, 4, 10, 10))
    torch.testing.assert_close(normalised.mean((1, 2, 3)), torch.zeros(5), atol=1e-5, rtol=0)  # over a whole image
    assert not [each for each in make(NESTED).modules() if isinstance(each, nn.LayerNorm | nn.GroupNorm)]


def test_encoders_by_name_are_for_images_and_leave_other_parts_alone():
    nested = make(NESTED, encoder="impala", image_hiddens=(24,), hiddens=(8,))
    kinds = [type(part).__name__ for part in nested.encoder.features.parts]
    assert sorted(kinds) == ["FlatFeatures", "ImageFeatures", "JoinedFeatures", "OneHotFeatures"]
    assert nested.encoder.features.parts[0].output_size == 24
    nature = make(OBSERVATIONS["image_grey"], encoder="nature")
    assert [each.out_channels for each in nature.encoder.features.network if isinstance(each, nn.Conv2d)] == [
        32,
        64,
        64,
    ]
    for mistake, words in (
        ({"encoder": "impala"}, "is for images, and there are none"),
        ({"encoder": "impala", "conv_filters": ((4, 3, 1),)}, "do not go with encoder='impala'"),
        ({"encoder": "impala", "encoder_config": {"size": 3}}, "needs an encoder of your own: set encoder"),
        ({"encoder": "impola"}, "one of nature, impala"),
        ({"encoder": "impala", "layer_norm": True}, "does not go with encoder='impala'"),
    ):
        with pytest.raises(ValueError, match=words):
            make(BOX, **mistake)
    config = ModelConfig(encoder="impala")
    assert ModelConfig.of(config.to_dict()) == config


def test_vectors_that_only_look_like_images_stay_vectors():
    for space in (spaces.Box(-1, 1, (3, 4, 5), np.float32), spaces.Box(0, 255, (4, 128), np.uint8)):
        assert not isinstance(make(space).encoder.features, ImageFeatures)


def test_leading_dimensions_may_be_more_than_one():
    for name in ("box", "nested", "image_small", "discrete"):
        module = make(OBSERVATIONS[name])
        flat = sample(OBSERVATIONS[name], 6)
        folded = map_tree(lambda leaf: leaf.reshape(2, 3, *leaf.shape[1:]), flat)
        out = module.forward_train({"obs": folded})
        assert out["action_dist_inputs"].shape == (2, 3, 3)
        expected = module.forward_train({"obs": flat})
        torch.testing.assert_close(out["vf_preds"].reshape(-1), expected["vf_preds"])


# Masks


def masked(action_space, size, mask_space=None):
    mask_space = mask_space or spaces.Box(0, 1, (size,), np.int8)
    return make(spaces.Dict({"observations": BOX, "action_mask": mask_space}), action_space)


class OneHead(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.head = nn.Linear(4, size)

    def forward(self, obs):
        return self.head(obs["observations"])


def wrapped(action_space, size, outputs="action_dist_inputs"):
    space = spaces.Dict({"observations": BOX, "action_mask": spaces.Box(0, 1, (size,), np.int8)})
    return wrap_module(OneHead(size), space, action_space, outputs)


@pytest.mark.parametrize("make_masked", [masked, wrapped])
@pytest.mark.parametrize(
    "space, size",
    [(spaces.Discrete(4), 4), (spaces.MultiDiscrete([2, 3]), 5), (spaces.MultiBinary(3), 3)],
)
def test_masked_actions_are_never_taken_and_everything_stays_finite(space, size, make_masked):
    module = make_masked(space, size)
    rng = np.random.default_rng(1)
    mask = rng.random((500, size)) < 0.5
    if isinstance(space, spaces.MultiDiscrete):
        mask[np.arange(500), rng.integers(0, 2, 500)] = True
        mask[np.arange(500), rng.integers(2, 5, 500)] = True
    elif isinstance(space, spaces.Discrete):
        mask[np.arange(500), rng.integers(0, 4, 500)] = True
    batch = {"obs": {"observations": torch.randn(500, 4), "action_mask": torch.from_numpy(mask.astype(np.int8))}}
    dist_cls = module.action_dist_cls
    dist = dist_cls.from_inputs(module.forward_train(batch)["action_dist_inputs"])
    for act in (module.forward_inference, module.forward_exploration):
        assert torch.equal(act(batch)["action_dist_inputs"], module.forward_train(batch)["action_dist_inputs"])
    rows = np.arange(500)
    for actions in (dist.mode(), dist.sample_with_noise(torch.from_numpy(dist_cls.draw_noise(rng, (500,))))):
        chosen = actions.numpy()
        if isinstance(space, spaces.Discrete):
            assert mask[rows, chosen].all()
        elif isinstance(space, spaces.MultiDiscrete):
            assert mask[rows, chosen[:, 0]].all()
            assert mask[rows, 2 + chosen[:, 1]].all()
        else:
            assert not (chosen.astype(bool) & ~mask).any()
        assert dist.log_prob(actions).isfinite().all()
    entropy = dist.entropy()
    assert entropy.isfinite().all()
    (dist.log_prob(dist.mode()).sum() + entropy.sum()).backward()
    assert all(p.grad.isfinite().all() for p in module.parameters() if p.grad is not None)


REST = {
    "observations": {"observations": BOX},
    "observation": {"observation": BOX},
    "any other name": {"obs": BOX},
    "several": {"pose": BOX, "gear": spaces.Discrete(3)},
}


@pytest.mark.parametrize("rest", REST.values(), ids=REST)
def test_a_mask_is_used_whatever_other_keys_there_are(rest):
    space = spaces.Dict({**rest, "action_mask": spaces.MultiBinary(4)})
    module = make(space, spaces.Discrete(4))
    obs = {**sample(space, 200), "action_mask": torch.eye(4).repeat(50, 1)}
    actions = module.action_dist_cls.from_inputs(module.forward_inference({"obs": obs})["action_dist_inputs"]).mode()
    np.testing.assert_array_equal(actions, np.arange(200) % 4)
    other = {**obs, "action_mask": torch.ones(200, 4)}  # the network itself does not see the mask
    torch.testing.assert_close(module.compute_values({"obs": obs}), module.compute_values({"obs": other}))


MASK = spaces.MultiBinary(4)
REFUSED_MASKS = {
    "deeper": (spaces.Dict(board=spaces.Dict(cells=BOX, action_mask=MASK)), spaces.Discrete(4), r"\['board'\]"),
    "in a tuple": (spaces.Tuple([BOX, spaces.Dict(action_mask=MASK)]), spaces.Discrete(4), "move it to the top"),
    "alone": (spaces.Dict(action_mask=MASK), spaces.Discrete(4), "nothing but an action mask"),
    "another size": (spaces.Dict(obs=BOX, action_mask=MASK), spaces.Discrete(5), r"must have shape \(5,\)"),
    "no choices": (spaces.Dict(obs=BOX, action_mask=MASK), spaces.Box(-1.0, 1.0, (4,)), "cannot be masked"),
}


@pytest.mark.parametrize(("space", "action_space", "words"), REFUSED_MASKS.values(), ids=REFUSED_MASKS)
def test_a_mask_that_cannot_be_applied_is_refused(space, action_space, words):
    with pytest.raises(ValueError, match=words):
        make(space, action_space)


def test_masks_may_be_of_any_type_and_a_mask_of_ones_changes_nothing():
    module = masked(spaces.Discrete(4), 4, spaces.MultiBinary(4))
    obs = torch.randn(5, 4)
    masked_obs = {"observations": obs, "action_mask": torch.ones(5, 4)}
    plain = module.policy_head(module.encoder(masked_obs, torch.float32))
    for ones in (torch.ones(5, 4), torch.ones(5, 4, dtype=torch.bool), torch.ones(5, 4, dtype=torch.int64)):
        out = module.forward_train({"obs": {"observations": obs, "action_mask": ones}})
        assert torch.equal(out["action_dist_inputs"], plain)


def test_a_mask_that_forbids_all_is_uniform():
    module = masked(spaces.Discrete(4), 4)
    obs = {"observations": torch.randn(2, 4), "action_mask": torch.zeros(2, 4)}
    dist = module.action_dist_cls.from_inputs(module.forward_train({"obs": obs})["action_dist_inputs"])
    torch.testing.assert_close(dist.log_prob(torch.tensor([0, 3])), torch.full((2,), -np.log(4.0)).float())


# Refusals


def forward(space, obs):
    return make(space).forward_train({"obs": obs})


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (lambda: forward(BOX, torch.randn(2, 5)), r"\(2, 5\).*Box.*expected \[N, 4\]"),
        (lambda: forward(OBSERVATIONS["image_small"], torch.zeros(10, 10, 3)), r"\(10, 10, 3\).*\(10, 10, 4\)"),
        (lambda: forward(NESTED, {"pose": torch.zeros(1)}), r"\['pose'\].*camera"),
        (lambda: make(spaces.Text(5)), "no network for observation space Text"),
        (lambda: make(spaces.Dict({})), "has no parts"),
        (lambda: make(BOX, spaces.Tuple([spaces.Text(2)])), "no distribution for action space Text"),
        (lambda: make(BOX, spaces.Tuple([])), "no distribution for action space Tuple"),
        (lambda: make(BOX, spaces.Dict(a=spaces.Discrete(2**25))), r"no distribution.*2\*\*24"),
        (lambda: make(BOX, spaces.Box(0, 5, (2,), np.int32)), "MultiDiscrete"),
        (lambda: make(BOX, spaces.Discrete(2), squash_actions=True), "squashed actions need a Box"),
        (lambda: make(BOX, hidden=(3,)), r"unknown model_config key 'hidden'.*did you mean 'hiddens'"),
        (lambda: make(OBSERVATIONS["image_small"], conv_filters=((8, 11, 1),)), r"conv_filters.*do not fit"),
        (lambda: ModelConfig(hiddens=(0,)), "hiddens"),
        (lambda: ModelConfig(hiddens="64"), "hiddens"),
        (lambda: ModelConfig(activation="tahn"), "activation"),
        (lambda: ModelConfig(policy_gain=float("nan")), "policy_gain"),
        (lambda: ModelConfig(conv_filters=((8, 3),)), "triples"),
        (lambda: ModelConfig.of(3), "got int"),
        (lambda: wrapped(spaces.Box(-1, 1, (4,), np.float32), 8), "cannot be masked"),
        (lambda: wrapped(spaces.Discrete(4), 4, "actions"), "action_dist_inputs"),
    ],
)
def test_what_cannot_be_is_refused(mistake, words):
    with pytest.raises((ValueError, TypeError), match=words):
        mistake()


def test_actions_have_the_form_of_the_environment_and_back():
    dist = ActionDist(spaces.Discrete(3, start=5))
    assert dist.to_env(np.array([0, 2])).tolist() == [5, 7]
    assert dist.from_env(np.array([5, 7])).tolist() == [0, 2]
    dist = ActionDist(spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[0, 1], [2, 3]]))
    flat = np.array([[1, 2, 3, 4]])
    assert dist.to_env(flat).tolist() == [[[1, 3], [5, 7]]]
    assert dist.from_env(dist.to_env(flat)).tolist() == flat.tolist()
    dist = ActionDist(spaces.Box(-1, 1, (2, 2), np.float64))
    assert dist.to_env(np.zeros((3, 4), np.float32)).shape == (3, 2, 2)
    assert dist.to_env(np.zeros((3, 4), np.float32)).dtype == np.float64
    assert dist.from_env(np.zeros((3, 2, 2))).shape == (3, 4)
