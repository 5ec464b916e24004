"""A payment gateway, as small as can be: another company's server, which knows nothing of the shop, Django or gnlqueue.

It takes **no idempotency keys**, on purpose: whoever posts a charge twice has charged twice. With keys the shop would
charge in an `idempotent_step`, repeat at will, and there would be nothing to learn here. Without them, as with many
banks and every mail server, it must call at most once, and ask when it does not know.
"""
