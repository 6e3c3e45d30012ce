"""The agent of one node: looks at it each period and publishes what stays true.

    pods (watch) and node ──> bundle ──> round (a child: reads the host, judges) ──> report
    report ──> truth (two agreeing rounds) ──> outbox (latest state per object) ──> API server

The parent, `loop`, only moves texts: it imports no rule, no NVML and no gRPC, so that it stays
small for as long as the node runs. What can hang, or grow, is in the child of `rounds`.
"""
