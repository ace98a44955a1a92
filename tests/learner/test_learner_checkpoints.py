"""Checkpoints of learners and groups: new processes, components, damage, what a file cannot hold."""

import shutil
import sys

import numpy as np
import pytest
import torch
from learner_parts import (
    BOX,
    MODULE,
    ValueLearner,
    assert_same,
    differs,
    episodes,
    fingerprint,
    parameters,
    ppo_batch,
    ppo_config,
    spec,
    train,
    value_batches,
    value_learner,
)
from parts import one_in
from warm import run_python

from lockstep import A2CConfig, LearnerGroup
from lockstep.algorithms import A2CLearner, PPOLearner
from lockstep.data.sample_batch import MultiAgentBatch
from lockstep.learner.config import TrainingSection
from lockstep.learner.learner import Learner
from lockstep.modules import MultiRLModule, wrap_module
from lockstep.state.checkpoint import CheckpointError, read_checkpoint, verify_checkpoint, write_checkpoint

OPTIONS = {"minibatch_size": 4, "num_epochs": 2, "shuffle_batch_per_epoch": True}


class EverythingLearner(ValueLearner):
    """Has all that can be mutable: two optimizers, a trained multiplier, counts, a random stream, a schedule."""

    scheduled = ("share",)

    def setup_module(self, module_id):
        multiplier = self._get_tensor_variable([1.0, 2.0], dtype=self.dtype, trainable=True)
        self.register_state(f"{module_id}/multiplier", multiplier)
        self.register_state(f"{module_id}/seen", np.zeros(2))
        self.register_state(f"{module_id}/history", {"losses": []})

    def configure_optimizers_for_module(self, module_id, config):
        module = self.module[module_id]
        value = [*module.value_encoder.parameters(), *module.value_head.parameters()]
        policy = [*module.encoder.parameters(), *module.policy_head.parameters()]
        multiplier = [self.registered[f"{module_id}/multiplier"]]
        for name, params, make in (
            ("value", value, lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)),
            ("policy", policy, lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True)),
            ("multiplier", multiplier, lambda p: torch.optim.Adam(p, lr=0.1)),
        ):
            self.register_optimizer(module_id=module_id, optimizer_name=name, optimizer=make(params), params=params)

    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        loss = super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)
        noise = torch.randn((), generator=self.streams.torch("noise"), dtype=self.dtype)
        logits = self.masked_mean(fwd_out["action_dist_inputs"].square().sum(-1), batch)
        multiplier = self.registered[f"{module_id}/multiplier"]
        return loss + (self.coefficient(module_id, "share") + 0.1 * noise) * logits + multiplier.square().sum()

    def after_gradient_based_update(self, *, timesteps):
        for module_id in self.module:
            self.registered[f"{module_id}/seen"][0] += self.streams.numpy("own").random()
            self.registered[f"{module_id}/history"]["losses"].append(float(self.registered[f"{module_id}/seen"][0]))


def everything(seed=0, updates=3):
    learner = value_learner(EverythingLearner, modules=("a", "b"), share=[[0, 1.0], [100, 0.0]], seed=seed)
    for number in range(updates):
        advance(learner, number)
    return learner


def advance(learner, number):
    batch = value_batches("a", "b", rows=12, seed=number)
    return learner.update_from_batch(batch, timesteps={"num_env_steps_sampled_lifetime": 20 * number}, **OPTIONS)


# -- a new process ---

CONTINUE = """
import sys
sys.path[:0] = {path!r}
from learner_parts import fingerprint
from test_learner_checkpoints import advance, everything
learner = everything(seed=7, updates=1)
learner.restore_from_path(sys.argv[1])
for number in (3, 4):
    advance(learner, number)
print(fingerprint(learner))
"""


def test_all_mutable_state_is_saved_and_a_new_process_updates_equally(tmp_path):
    learner = everything()
    path = learner.save_to_path(tmp_path / "checkpoint")
    for number in (3, 4):
        advance(learner, number)
    script = CONTINUE.format(path=sys.path)
    other = run_python(["-c", script, path])
    assert other.returncode == 0, other.stderr
    assert other.stdout.split()[-1] == fingerprint(learner)


# -- components ---


@pytest.mark.parametrize(
    "component, parts",
    one_in(
        2,
        [
            ("rl_module/a", {"rl_module/a"}),
            ("rl_module", {"rl_module/a", "rl_module/b"}),
            ("optimizer/a.value", {"optimizer/a.value"}),
            ("registered/b/seen", {"registered/b/seen"}),
            ("connectors/a", set()),
            ("coefficients", {"coefficients/a/share", "coefficients/b/share"}),
            ("random", {"random"}),
            ("lifetime", {"lifetime/a/rows", "lifetime/b/rows", "lifetime/env_steps", "lifetime/gradient_steps"}),
        ],
    ),
)
def test_one_component_is_restored_and_the_rest_left(component, parts, tmp_path):
    learner, other = everything(updates=3), everything(seed=7, updates=1)
    path = learner.save_to_path(tmp_path / "checkpoint")
    group = LearnerGroup(everything(seed=7, updates=1))
    before = split_up(other.get_state())
    other.restore_from_path(path, component=component)
    group.restore_from_path(path, component=f"learner/{component}")
    changed_ones = [other, group.learner]
    if "/" not in component:
        changed_ones.append(everything(seed=7, updates=1))
        changed_ones[-1].set_state(learner.get_state(component))
    for each in changed_ones:
        after, saved = split_up(each.get_state()), split_up(learner.get_state())
        changed = {name for name in after if not np.array_equal(after[name], before[name])}
        assert changed == parts
        assert all(after[name] == saved[name] for name in parts)


def split_up(state):
    """`{component path: its content as text}`."""
    out = {}
    for head, part in state.items():
        inner = part if isinstance(part, dict) and head != "random" else {"": part}
        out |= {f"{head}/{name}".rstrip("/"): repr(flat(tree)) for name, tree in inner.items()}
    return out


def flat(tree):
    if isinstance(tree, dict):
        return [(key, flat(part)) for key, part in tree.items()]
    return np.asarray(tree).tolist() if isinstance(tree, torch.Tensor | np.ndarray) else tree


def test_unknown_component_of_a_checkpoint_raises_with_those_there_are(tmp_path):
    learner = everything(updates=0)
    path = learner.save_to_path(tmp_path / "checkpoint")
    for component, known in (
        ("optimizr", r"\['coefficients', 'connectors'"),
        ("optimizer/a.default_optimizer", r"'optimizer/a\.multiplier', 'optimizer/a\.policy'"),
        ("rl_module/c", r"\['rl_module/a', 'rl_module/b'\]"),
    ):
        with pytest.raises(KeyError, match=rf"no component '{component}'; there are .*{known}"):
            learner.restore_from_path(path, component=component)


def test_who_learns_is_part_of_the_state():
    learner, other = (value_learner(modules=("a", "b"), policies_to_train=ids) for ids in (["b"], None))
    other.set_state(learner.get_state("should_module_be_updated"))
    assert other.policies_to_train == ["b"]
    other.set_state(value_learner(modules=("a", "b")).get_state("should_module_be_updated"))
    assert other.policies_to_train is None
    chosen = value_learner(modules=("a", "b"), policies_to_train=lambda module_id, batch: module_id == "a")
    state = chosen.get_state("should_module_be_updated")
    with pytest.raises(ValueError, match=r"should_module_be_updated was the function .*: set policies_to_train to it"):
        other.set_state(state)
    chosen.set_state(state)
    assert not chosen.should_module_be_updated("b")
    with pytest.raises(ValueError, match=r"should_module_be_updated names \['c'\]"):
        other.set_state({"should_module_be_updated": ["a", "c"]})


# -- from_checkpoint ---


def test_learner_is_built_from_its_checkpoint_alone(tmp_path):
    learner = ppo_config(kl_coeff=0.2, lr=[[0, 0.01], [1000, 0.0]], clip_param=0.1).build_learner()
    learner.update_from_episodes(episodes(), **OPTIONS)
    learner.add_module(module_id="second", module_spec=spec(), config_overrides={"lr": 0.5})
    path = learner.save_to_path(tmp_path / "checkpoint")
    made = Learner.from_checkpoint(path)
    assert type(made) is PPOLearner
    assert made.config == learner.config
    assert made.config_of("second").lr == 0.5
    assert fingerprint(made) == fingerprint(learner)
    group = LearnerGroup.from_checkpoint(path)
    inputs = np.zeros((24, 3))
    parts = {mid: ppo_batch(seed=seed, action_dist_inputs=inputs) for seed, mid in enumerate((MODULE, "second"))}
    batch = MultiAgentBatch(parts, 24)
    train((learner, made, group), batch, **OPTIONS)
    assert fingerprint(made) == fingerprint(learner) == fingerprint(group.learner)


def test_parts_that_a_file_cannot_hold_have_to_be_passed_in(tmp_path):
    config = ppo_config(lr=lambda step: 0.01).environment(normalize_observations=True)
    learner = config.build_learner()
    learner.update_from_episodes(episodes(), **OPTIONS)
    path = learner.save_to_path(tmp_path / "checkpoint")
    with pytest.raises(ValueError, match=r"had connectors with statistics.*pass connectors="):
        Learner.from_checkpoint(path)
    fresh = config.build_learner().connectors
    with pytest.raises(ValueError, match=r"the options \['lr'\] are functions or objects.*pass config="):
        Learner.from_checkpoint(path, connectors=fresh)
    made = PPOLearner.from_checkpoint(path, connectors=fresh, config=learner.config)
    assert fingerprint(made) == fingerprint(learner)


def test_classes_that_cannot_be_imported_have_to_be_passed_in(tmp_path):
    class Local(ValueLearner):
        """Not importable by name."""

    module = wrap_module(torch.nn.Linear(3, 4), BOX, spec().action_space, ("action_dist_inputs",))
    learner = Local(config=TrainingSection(), module_spec=MultiRLModule({"net": module})).build()
    path = learner.save_to_path(tmp_path / "checkpoint")
    with pytest.raises(ValueError, match=r"wrapped nn\.Module cannot be built from its spec alone"):
        Learner.from_checkpoint(path)
    other = wrap_module(torch.nn.Linear(3, 4), BOX, spec().action_space, ("action_dist_inputs",))
    with pytest.raises(ValueError, match=r"Local cannot be imported .*build it and use restore_from_path"):
        Learner.from_checkpoint(path, modules={"net": other})
    made = Local.from_checkpoint(path, modules={"net": other})
    assert_same(parameters(made), parameters(learner))


def test_checkpoint_of_another_kind_of_class_is_refused(tmp_path):
    path = ppo_config().build_learner().save_to_path(tmp_path / "checkpoint")
    folders = read_checkpoint(path)
    folders["learner"]["recipe"]["learner_class"] = "os:system"
    write_checkpoint(path, folders)
    with pytest.raises(ValueError, match="os:system is not a subclass of Learner; the file is foreign"):
        Learner.from_checkpoint(path)
    folders["learner"]["recipe"]["learner_class"] = "lockstep.algorithms.ppo:PPOLearner"
    folders["learner"]["recipe"]["training"]["class"] = "subprocess:Popen"
    write_checkpoint(path, folders)
    with pytest.raises(ValueError, match="subprocess:Popen is not a subclass of TrainingSection"):
        Learner.from_checkpoint(path)


# -- damage, other versions ---


def test_every_damaged_file_is_named_and_nothing_is_changed(tmp_path):
    good = everything()
    path = tmp_path / "checkpoint"
    good.save_to_path(path)
    learner = everything(seed=7, updates=1)
    before = fingerprint(learner)
    files = [name for name in verify_checkpoint(path)["files"] if not name.endswith("manifest.json")]
    assert len(files) > 8
    for number, name in enumerate(files):
        damaged = tmp_path / "damaged"
        shutil.copytree(path, damaged)
        content = bytearray((damaged / name).read_bytes())
        if number % 3 == 0:
            content[len(content) // 2] ^= 1
        elif number % 3 == 1:
            del content[-1]
        (damaged / name).unlink()
        if number % 3 < 2:
            (damaged / name).write_bytes(content)
        with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
            learner.restore_from_path(damaged)
        with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
            Learner.from_checkpoint(damaged)
        shutil.rmtree(damaged)
    assert fingerprint(learner) == before


def test_older_checkpoint_names_missing_parts_and_restores_the_rest(tmp_path):
    learner, other = value_learner(), value_learner(seed=1)
    folders = read_checkpoint(learner.save_to_path(tmp_path / "checkpoint"))
    for name in ("random", "lifetime"):
        del folders["learner"]["state"][name]
    del folders["learner"]["recipe"]
    old = write_checkpoint(tmp_path / "old", folders)
    before = fingerprint(other)
    with pytest.raises(ValueError, match=r"lacks \['lifetime', 'random'\]: it is of an older version.*component="):
        other.restore_from_path(old)
    assert fingerprint(other) == before
    other.restore_from_path(old, component="rl_module")
    other.restore_from_path(old, component=f"optimizer/{MODULE}.default_optimizer")
    assert differs(parameters(other), parameters(learner)) == []
    folders["learner"]["state"] |= learner.get_state(["random", "lifetime"])
    whole = write_checkpoint(tmp_path / "whole", folders)
    other.restore_from_path(whole)
    with pytest.raises(ValueError, match="does not say how its learner is built; build one and use restore_from_path"):
        Learner.from_checkpoint(whole)


def test_checkpoint_of_another_algorithm_is_refused_with_the_names(tmp_path):
    spaces = ppo_config().observation_space, ppo_config().action_space
    a2c = A2CConfig().rl_module(model_config={"hiddens": (4,)}).framework(dtype="float64").build_learner(spaces=spaces)
    learner = ppo_config().build_learner()
    before = fingerprint(learner)
    path = a2c.save_to_path(tmp_path / "checkpoint")
    with pytest.raises(ValueError, match=r"coefficients: missing \['default_policy/clip_param'\]"):
        learner.restore_from_path(path)
    assert fingerprint(learner) == before
    learner.restore_from_path(path, component="rl_module")
    assert_same(parameters(learner), parameters(a2c))
    assert type(Learner.from_checkpoint(path)) is A2CLearner
