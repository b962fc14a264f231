"""The subcommands of ``kvboost``, one module each.

A module has ``HELP`` (one line), ``EXAMPLE`` (shown below its ``--help``), ``EXTRA`` (what must be installed for it,
empty for nothing beyond the client), ``configure(parser)``, which adds its
arguments, and ``run(args)``, which does the work and returns the exit status. Its name is the command's, with
``_`` for ``-``. It imports torch, grpc and the like inside ``run``, so that ``--help`` stays quick.
"""
