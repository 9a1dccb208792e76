"""What is judged of a GPU without profiling counters, compared with what is judged of it with them."""
