"""The model every scheme splits: a GPT in one process, and what schemes share with it.

`model` is the reference network, `initial` the parameters every scheme starts from, `program` the
interface of a rank's training step and the reference's own.
"""
