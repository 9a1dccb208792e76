"""Live tests of the job socket."""
