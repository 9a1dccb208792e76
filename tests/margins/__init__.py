"""How far each judgement is from flipping, on every recorded phase."""
