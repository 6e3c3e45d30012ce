"""Raw input to typed facts: no judgement, and never an exception past a module's own door."""
