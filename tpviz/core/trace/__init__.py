"""Traces: the table of events, what is read off it, and the formats it travels in."""

from .ledger import Ledger, LedgerRow, wire_bytes
from .table import Event, Trace

__all__ = ["Event", "Ledger", "LedgerRow", "Trace", "wire_bytes"]
