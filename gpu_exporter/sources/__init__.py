"""Ways to read fields, behind one protocol (`model.Source`)."""
