"""Who answers: the agents' registry, templates, bindings to channels and snapshots."""
