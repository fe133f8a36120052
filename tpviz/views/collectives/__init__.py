"""Collectives written over send and receive, and a microscope that shows what they really sent."""

from .result import ArrivedMessage, Microscope

__all__ = ["ArrivedMessage", "Microscope"]
