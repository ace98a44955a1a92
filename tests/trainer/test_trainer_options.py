"""Options of trainers: declared once, as fields of `lockstep.trainer.options`."""

import ast
import inspect
import re
from contextlib import nullcontext
from dataclasses import dataclass, fields
from itertools import pairwise

import numpy as np
import pytest
from scenario_tools import TRAINERS, config_of, trainer_of
from trainer_tools import learned

from lockstep import OfflineTrainer, OffpolicyTrainer, OnpolicyTrainer
from lockstep.options.section import option
from lockstep.rollout import CollectorTraits
from lockstep.trainer import BaseTrainer, options
from lockstep.trainer.counters import Counter, Counters

CLASSES = (OnpolicyTrainer, OffpolicyTrainer, OfflineTrainer)
REQUIRED = {
    OnpolicyTrainer: "max_epoch, step_per_epoch, train_collector, batch_size, repeat_per_collect",
    OffpolicyTrainer: "max_epoch, step_per_epoch, train_collector, batch_size",
    OfflineTrainer: "max_epoch, step_per_epoch, buffer, batch_size",
}
WHOLE = ("max_epoch", "step_per_epoch", "batch_size", "total_steps", "test_interval", "episode_per_test")
COLLECTS = ("step_per_collect",)
OWN = {"on": (*COLLECTS, "repeat_per_collect"), "off": (*COLLECTS, "learning_starts"), "offline": ()}


@pytest.mark.parametrize("trainer", CLASSES)
def test_what_has_no_default_must_be_given(trainer):
    policy = trainer_of({OnpolicyTrainer: "on", OffpolicyTrainer: "off", OfflineTrainer: "offline"}[trainer]).policy
    with pytest.raises(TypeError, match=re.escape(f"{trainer.__name__} needs {REQUIRED[trainer]}; give max_epoch=...")):
        trainer(policy)
    assert ", ".join(options.required_options(trainer.options_class)) == REQUIRED[trainer]


@pytest.mark.parametrize("kind", TRAINERS)
def test_whole_numbers_of_numpy_are_kept_as_those_of_python(kind):
    names = (*WHOLE, *OWN[kind])
    trainer = trainer_of(kind, **dict.fromkeys(names, np.int64(8)))
    assert {name: getattr(trainer, name) for name in names} == dict.fromkeys(names, 8)
    assert {type(getattr(trainer, name)) for name in names} == {int}


def test_the_size_of_minibatches_is_chosen_for_the_policy():
    assert trainer_of("on", batch_size="auto").batch_size == 64


@dataclass(kw_only=True)
class OwnOptions(options.OnpolicyOptions):
    """Options of a trainer of one's own."""

    patience: int = option(3, ge=1)


@pytest.mark.parametrize(("given", "message"), [({"patience": 5}, ""), ({"patience": 0}, "patience=0 is not allowed")])
def test_a_trainer_of_ones_own_has_the_options_of_its_class(given, message):
    own = type("OwnTrainer", (OnpolicyTrainer,), {"options_class": OwnOptions})
    config = config_of("on")
    policy = config.build_policy()
    required = {"train_collector": config.build_collector(policy), "step_per_collect": 8, "batch_size": 8}
    required |= {"max_epoch": 1, "step_per_epoch": 8, "repeat_per_collect": 1}
    with nullcontext() if not message else pytest.raises(ValueError, match=message):
        assert own(policy, **required, **given).run().train_step == 8


def test_a_trainer_has_each_counter_as_an_attribute():
    attributes = {name for name, value in vars(BaseTrainer).items() if isinstance(value, Counter)}
    assert attributes == {each.name for each in fields(Counters)} - {"stage"}


class OwnCollector:
    """A collector with what trainers needed in version 0.2: it does with another one what it is asked."""

    def __init__(self, inner):
        self.inner = inner

    policy = property(lambda self: self.inner.policy)
    env = property(lambda self: self.inner.env)
    num_envs = property(lambda self: self.inner.num_envs)
    episodes_cut = property(lambda self: self.inner.episodes_cut)
    observation_space = property(lambda self: self.inner.observation_space)

    @property
    def buffer(self):
        return self.inner.buffer

    @buffer.setter
    def buffer(self, buffer):
        self.inner.buffer = buffer

    def collect(self, *amounts, **options):
        return self.inner.collect(*amounts, **options)

    def reset(self, *which, **options):
        self.inner.reset(*which, **options)

    def get_state(self):
        return self.inner.get_state()

    def set_state(self, state):
        self.inner.set_state(state)

    def close(self):
        self.inner.close()


class OwnWholeCollector(OwnCollector, CollectorTraits):
    """The same with all that trainers need now."""

    is_seeded = True

    def reseed(self, streams):
        self.inner.reseed(streams)

    def set_callbacks(self, callbacks):
        self.inner.set_callbacks(callbacks)


def test_a_collector_of_ones_own_is_refused_with_what_it_lacks():
    lacks = (
        "agents_of_modules, counts_afterwards, fit_replay, in_runners, is_seeded, launches_updates, "
        "leave_episodes_of, may_evaluate, reseed, set_callbacks, takes_state_of_one"
    )
    with pytest.raises(ValueError, match=f"CollectorLike, and this one lacks {lacks}. Its base class CollectorTraits"):
        trainer_of("on", train_collector=lambda policy: OwnCollector(config_of("on").build_collector(policy)))


def test_a_collector_of_ones_own_collects_what_the_inner_one_does():
    plain = trainer_of("on")
    own = trainer_of("on", train_collector=lambda policy: OwnWholeCollector(config_of("on").build_collector(policy)))
    for trainer in (plain, own):
        trainer.run()
    assert learned(own) == learned(plain)


def test_each_option_has_a_sentence_of_its_own():
    without = []
    for declared in ast.parse(inspect.getsource(options)).body:
        if not isinstance(declared, ast.ClassDef):
            continue
        for part, below in pairwise([*declared.body, ast.Pass()]):
            if isinstance(part, ast.AnnAssign) and not ast.unparse(part.annotation).startswith("ClassVar"):
                text = (
                    below.value.value if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) else ""
                )
                if not str(text).endswith("."):
                    without.append(f"{declared.name}.{ast.unparse(part.target)}")
    assert without == []
