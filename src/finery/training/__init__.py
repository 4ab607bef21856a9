"""The torch zone: model loading and publishing, samplers, trainers, losses, merge kernels.

Importing the package alone imports nothing heavy; each module imports what it needs.
"""

import os

# TRL's profiler imports mlflow wherever it is installed, which takes seconds and may ask for the network
os.environ.setdefault("DISABLE_MLFLOW_INTEGRATION", "TRUE")
