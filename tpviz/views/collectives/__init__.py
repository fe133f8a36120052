"""Collectives written over send and receive, and a microscope that shows what they really sent."""

from .result import Message, Microscope

__all__ = ["Message", "Microscope"]
