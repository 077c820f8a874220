"""What several tests need and users do not: nodes that misbehave."""
