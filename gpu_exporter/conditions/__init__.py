"""The language of conditions on signals: the tree, its values in Python, its PromQL, and its words."""
