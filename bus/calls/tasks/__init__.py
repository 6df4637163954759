"""Tasks: calls that take long. Asked for now, answered with an id, done by whoever lives, looked at later (REG-8)."""
