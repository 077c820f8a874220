"""Views of a trace: a sequence diagram for a terminal, and a page for a browser."""
