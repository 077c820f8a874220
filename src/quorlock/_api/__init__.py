"""The parts that both APIs share: arguments, lease states, sessions, renewal, tickets."""
