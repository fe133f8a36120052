"""Ranks: processes that run one function each over a real ``torch.distributed`` group."""
