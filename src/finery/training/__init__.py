"""The torch zone: model loading and publishing, samplers, trainers, losses, merge kernels.

Importing the package alone imports nothing heavy; each module imports what it needs.
"""
