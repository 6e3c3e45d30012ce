"""The runbooks: one Markdown page a finding; its front matter is the catalogue entry."""
