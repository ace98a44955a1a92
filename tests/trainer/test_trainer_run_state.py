"""A user's trainer that overrides how its state is saved and restored is asked by checkpoints, too."""

from scenario_tools import config_of
from trainer_tools import by_hand

METHODS = ("set_state", "own_folders", "set_own_folders", "checkpoint_folders")


def test_methods_that_a_subclass_overrides_are_asked(tmp_path):
    asked = []
    config = config_of("off")

    def recording(name):
        def method(self, *arguments):
            asked.append(name)
            return getattr(super(type(self), self), name)(*arguments)

        return method

    methods = {name: recording(name) for name in METHODS}
    first, again = (by_hand(config, evaluate=False, methods=methods) for _ in range(2))
    next(first)
    path = first.save_to_path(tmp_path / "checkpoint")
    assert asked == ["checkpoint_folders", "own_folders"]
    asked.clear()
    again.restore_from_path(path)
    assert asked == ["set_own_folders", "set_state"]
    assert again.get_state()["counters"] == first.get_state()["counters"]
