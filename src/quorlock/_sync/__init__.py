"""The blocking API: the methods of Redlock, Lock and Lease, each a few lines over a flow."""
