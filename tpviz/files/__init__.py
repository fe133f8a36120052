"""Traces of others, in and out: Chrome and Kineto files, profiles of HTA, flight records."""
