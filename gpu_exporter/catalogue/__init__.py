"""Everything that is known, as data: metrics, signals, conditions, faults, XIDs and failure modes."""
