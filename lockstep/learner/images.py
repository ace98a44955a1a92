"""Rows with their mirror images in one batch.

A row of a train batch has its mirror image in further columns, `mirrored_obs` and so on. So both belong to one learner
and to one minibatch, whichever rows these have. A gradient step appends the images to the rows: the losses see 2 N rows
as if all of them had been collected. A column without a mirrored one, such as the rewards, is the same for both images.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lockstep.data.columns import MIRRORED, Columns
from lockstep.data.trees import num_items, zip_trees
from lockstep.learner.minibatches import TensorColumns

IS_IMAGE = "is_mirror_image"
"""Column `[2 N]` bool of the rows that are mirror images."""


def with_images(columns: TensorColumns) -> TensorColumns:
    """Return the columns of N rows followed by those of their mirror images, `[2 N, ...]`."""
    rows: TensorColumns = {}
    for name, column in columns.items():
        if not name.startswith(MIRRORED):
            rows[name] = zip_trees(torch.cat, [column, columns.get(MIRRORED + name, column)], name)
    originals = columns[Columns.ACTIONS]
    is_image = torch.zeros(2, len(originals), dtype=torch.bool, device=originals.device)
    is_image[1] = True
    rows[IS_IMAGE] = is_image.flatten()
    return rows


def of_originals(values: Tensor, columns: TensorColumns) -> Tensor:
    """Return `values` `[N, ...]` with 0 for mirror images and twice the value for the other rows.

    Their mean over all rows is the mean over the rows that are not mirror images.
    """
    is_image = columns.get(IS_IMAGE)
    return values if is_image is None else torch.where(is_image, 0.0, 2.0 * values)


def mean_of_images(values: Tensor) -> Tensor:
    """Return one number `[N]` for each row from the numbers `[2 N]` of both its images."""
    return values.unflatten(0, (2, -1)).mean(0)


def num_rows(columns: TensorColumns) -> int:
    """Return the number of rows of the columns of one module."""
    return num_items(next(iter(columns.values())))
