"""MLflow, seen from the engine: a sender of journals (finery.spool) that never raises into what it watches.

Importing this package imports no mlflow; the sender's thread does, while the first stage already works. It stays
empty, since finery.spool takes the names' rules from it and finery.tracking.sender takes the spool.
"""
