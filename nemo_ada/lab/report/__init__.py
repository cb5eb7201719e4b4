"""`nemo-ada report`: a page that compares runs and evaluations."""
