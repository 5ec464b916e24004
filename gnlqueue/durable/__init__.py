"""What a task knows of its own run."""
