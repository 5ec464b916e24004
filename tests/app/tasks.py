"""The tasks that tests run in workers of their own (``manage.py runworker`` finds them here)."""
