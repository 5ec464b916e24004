"""What `manage.py runworker` and `manage.py gnlqueue` are made of; in `commands` they parse arguments and call this.

=========  ========================================================================================================
module     its job
=========  ========================================================================================================
flags      what the flags of several commands take, and which errors say enough by their message
running    a worker: its flags, and running it
reloading  a worker for development, which starts again when code changes
decisions  the decisions that wait for a human, and taking one
output     what several subcommands write
=========  ========================================================================================================
"""
