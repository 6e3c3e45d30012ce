"""Where raw input comes from, live or recorded; no judgement and no parsing beyond containers."""
