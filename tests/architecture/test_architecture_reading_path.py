"""PPO can be read from end to end, and the pages that show the way of a run show the way that it takes."""

from __future__ import annotations

import pytest
from walks import PLACE, ROOMS, ROOT, WALKS, functions, pages, rooms, tree

SHOWN = {found[2]: found[3] for page in pages() for found in PLACE.finditer(page.read_text(encoding="utf-8"))}


def test_every_walk_has_its_place_in_a_page():
    assert set(SHOWN) == set(WALKS)


@pytest.mark.parametrize("name", WALKS)
def test_a_page_shows_the_functions_that_a_run_goes_through(name):
    again = "the way has changed: python tests/architecture/walks.py writes it into the pages anew"
    assert functions(SHOWN[name]) == functions(tree(WALKS[name].trace())), again


def test_a_run_reaches_the_optimizers_step_in_11_frames_and_6_files():
    walk = WALKS["ppo"]
    walk.trace()
    chain = walk.chains["RegisteredOptimizer._take_step"]
    names = [code.co_qualname for code in chain]
    frames = chain[names.index("BaseTrainer.run") : names.index("RegisteredOptimizer.step") + 1]
    assert len(frames) <= 11, names
    assert len({code.co_filename for code in frames}) <= 6, names


def test_the_architecture_page_lists_every_file_with_what_it_holds():
    found = ROOMS.search((ROOT / "docs/architecture.md").read_text(encoding="utf-8"))
    assert found is not None
    assert found[2] == rooms(), "files have changed: python tests/architecture/walks.py --rooms lists them anew"


def test_from_episodes_to_weights_nothing_calls_back_into_the_group():
    for chain in WALKS["episodes"].trace():
        in_group = [code.co_filename.endswith("lockstep/learner/group.py") for code in chain]
        assert in_group == sorted(in_group, reverse=True), [code.co_qualname for code in chain]
