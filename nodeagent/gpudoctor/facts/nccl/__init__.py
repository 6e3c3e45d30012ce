"""Facts from NCCL logs and nccl-tests output."""
