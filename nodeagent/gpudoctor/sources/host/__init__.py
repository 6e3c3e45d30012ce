"""Host files, links, directories and bounded commands: live, mounted elsewhere, or recorded."""
