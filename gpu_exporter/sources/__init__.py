"""Ways to read a GPU, behind one protocol (`model.Source`), and the choice among them."""
