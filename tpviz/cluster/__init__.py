"""Clusters: devices and the links between them, as plain numbers. No torch here."""

from .description import Cluster, Device, Dimension, Level

__all__ = ["Cluster", "Device", "Dimension", "Level"]
