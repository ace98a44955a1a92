"""The same groups on Ray actors; the only folder that imports ray."""
