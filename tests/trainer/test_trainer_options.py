"""Options of trainers: declared once, as fields of `lockstep.trainer.options`."""

import ast
import inspect
import re
from itertools import pairwise

import numpy as np
import pytest
from scenario_tools import TRAINERS, trainer_of

from lockstep import OfflineTrainer, OffpolicyTrainer, OnpolicyTrainer
from lockstep.trainer import Callback, options

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


@pytest.mark.parametrize("kind", ["on", "off"])
def test_copied_options_have_the_same_parts_and_values_of_their_own(kind):
    trainer = trainer_of(kind)
    more = {"repeat_per_collect": 2} if kind == "on" else {}
    first = trainer.options_class(
        max_epoch=3,
        step_per_epoch=8,
        batch_size=4,
        step_per_collect=8,
        train_collector=trainer.train_collector,
        test_collector=trainer.test_collector,
        callbacks=[Callback()],
        logger=trainer.logger,
        **more,
    )
    second = first.copy()
    second.max_epoch = 5
    assert (first.max_epoch, second.max_epoch) == (3, 5)
    for name in ("train_collector", "test_collector", "callbacks", "logger"):
        assert getattr(second, name) is getattr(first, name)


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
