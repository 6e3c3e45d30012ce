"""Facts about one node: driver, GPUs, kernel log, topology, RDMA, processes."""
