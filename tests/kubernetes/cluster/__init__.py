"""A real one-node Kubernetes 1.20 on this machine, made from Debian's packages alone.

    python -m tests.kubernetes.cluster build     install and compile what it needs (minutes, once; then cached)
    python -m tests.kubernetes.cluster up        build it if need be, start it, and print its KUBECONFIG
    python -m tests.kubernetes.cluster down      end it; nothing of it stays but the cache
    python -m tests.kubernetes.cluster env       print `export KUBECONFIG=...`
    python -m tests.kubernetes.cluster hollow N  add N nodes where pods "run" without containers, for tests of scale
    python -m tests.kubernetes.cluster restart-apiserver

Pods run for real: API server, controller manager, scheduler, kube-proxy, kubelet, containerd, runc, a CNI bridge. There
is no DNS in it. It needs root and cgroup v1, lives in namespaces of its own beside whatever else runs on the machine,
and keeps its files under $ELASTANE_CLUSTER_CACHE (~/.cache/elastane-cluster). One can be up on a machine at a time.
"""
