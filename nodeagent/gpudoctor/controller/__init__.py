"""The controller: what no agent can do for itself, done once for the whole cluster.

    Leases of the agents ──> silence ──> strip: labels, condition, Diagnoses of a silent node
    metadata of the nodes ──> brake (on the leader's Lease), taint, ConfigMap of the pools

Of several controllers one leads; the others wait for its Lease. What it may do, in the verbs of
RBAC, and what for (the chart grants exactly these, and a test takes each away):

    cluster-wide
      nodes              list, watch   metadata of all nodes; every few minutes their allocatable
                         get, patch    strip labels and annotations, set and lift the taint
      nodes/status       patch         the condition gpudoctor.io/Healthy: Unknown, AgentSilent
      diagnoses          list          which are of a silent node
      diagnoses/status   patch         mark them stale, and fresh again
    in its own namespace
      leases             list, get     the agents', and the leader's own
                         create, patch the leader's own
                         delete        the Lease of a node that is no more
      diagnoses          delete        the Diagnosis of a node that is no more
      configmaps         get, create, patch    gpudoctor-pools

and for `--clean-up`, which runs once under its own account when all else is gone:

    cluster-wide
      nodes              get, list, patch
      nodes/status       patch
      diagnoses          list, delete
    in its own namespace
      leases             list, delete
      configmaps         delete        gpudoctor-pools
"""
