"""Build what a release consists of, and check that it is complete: `make dist`, `make release`. Not in the wheel."""
