"""docs/gallery.md agrees with its pictures, its results and the list of recipes."""

from __future__ import annotations

import importlib.util
import sys

import numpy as np
import pytest
from imageio import v3 as imageio
from test_docs_pages import ROOT


def load_gallery():
    spec = importlib.util.spec_from_file_location("gallery", ROOT / "docs/gallery.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["gallery"] = module
    spec.loader.exec_module(module)
    return module


GALLERY = load_gallery()
RESULTS = GALLERY.read_results()
RECIPES = {GALLERY.name_of(recipe): recipe for recipe in GALLERY.gallery_recipes()}


def test_the_page_is_that_of_the_results_and_names_every_recipe():
    page = (ROOT / "docs/gallery.md").read_text()
    assert page == GALLERY.page_text(RESULTS), "python docs/gallery.py --page writes it"
    assert len(RESULTS) >= 15
    for recipe in RECIPES.values():
        assert f"{recipe.algorithm.upper()} on {recipe.env}" in page


def test_every_picture_belongs_to_a_result_and_they_are_small():
    expected = {f"{name}.png" for name in RESULTS}
    expected |= {f"{name}.gif" for name, result in RESULTS.items() if result["has_video"]}
    files = list(GALLERY.IMAGES.iterdir())
    assert {path.name for path in files} == expected | {"results.json"}
    assert sum(path.stat().st_size for path in files) < 3_000_000


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_is_that_of_a_whole_run_of_its_recipe(name):
    result, recipe = RESULTS[name], RECIPES[name]
    assert recipe.total_steps <= result["steps"] < 1.1 * recipe.total_steps
    assert result["final_return_std"] >= 0


def test_videos_are_small_and_move(tmp_path):
    frames = np.zeros((50, 100, 400, 3), np.uint8)
    for number, frame in enumerate(frames):
        frame[:, 8 * number : 8 * number + 8] = 255
    imageio.imwrite(tmp_path / "large.gif", frames)
    GALLERY.write_small_gif(tmp_path / "large.gif", tmp_path / "small.gif")
    small = imageio.imread(tmp_path / "small.gif", index=None)
    assert small.shape[1:3] == (50, 200)
    assert len({frame.tobytes() for frame in small}) == len(small) == 50
    assert (tmp_path / "small.gif").stat().st_size <= GALLERY.MAX_VIDEO_BYTES
