"""How each component of Kubernetes is told to run: its command and its files of settings."""

import json

from tests.kubernetes.cluster.layout import (
    API_PORT,
    CGROUP,
    ETCD_PEER_URL,
    ETCD_URL,
    NODE_ADDRESS,
    NODE_NAME,
    PAUSE_IMAGE,
    PODS,
    SERVICES,
    Layout,
)

HOLLOW = "elastane/hollow"


def etcd(layout: Layout) -> list[str]:
    """The store; it need not survive a crash of the machine, so it does not wait for the disk."""
    return [
        "etcd",
        *("--data-dir", str(layout.run / "etcd"), "--unsafe-no-fsync"),
        *("--listen-client-urls", ETCD_URL, "--advertise-client-urls", ETCD_URL),
        *("--listen-peer-urls", ETCD_PEER_URL, "--initial-advertise-peer-urls", ETCD_PEER_URL),
        *("--initial-cluster", f"default={ETCD_PEER_URL}"),
    ]


def apiserver(layout: Layout) -> list[str]:
    pki = layout.pki
    return [
        layout.binary("kube-apiserver"),
        *(f"--etcd-servers={ETCD_URL}", f"--secure-port={API_PORT}", f"--advertise-address={NODE_ADDRESS}"),
        *(f"--tls-cert-file={pki}/apiserver.crt", f"--tls-private-key-file={pki}/apiserver.key"),
        *(f"--client-ca-file={pki}/ca.crt", f"--cert-dir={pki}", f"--service-cluster-ip-range={SERVICES}"),
        f"--service-account-key-file={pki}/accounts.pub",
        f"--service-account-signing-key-file={pki}/accounts.key",
        "--service-account-issuer=https://kubernetes.default.svc",
        *("--authorization-mode=Node,RBAC", "--allow-privileged", "--kubelet-preferred-address-types=InternalIP"),
        *(f"--kubelet-client-certificate={pki}/admin.crt", f"--kubelet-client-key={pki}/admin.key"),
    ]


def controller_manager(layout: Layout) -> list[str]:
    return [
        layout.binary("kube-controller-manager"),
        *(f"--kubeconfig={layout.kubeconfig_of('controller-manager')}", "--leader-elect=false"),
        *(f"--service-account-private-key-file={layout.pki}/accounts.key", f"--root-ca-file={layout.pki}/ca.crt"),
        *("--use-service-account-credentials", "--controllers=*,-nodeipam"),
    ]


def scheduler(layout: Layout) -> list[str]:
    return [
        layout.binary("kube-scheduler"),
        f"--kubeconfig={layout.kubeconfig_of('scheduler')}",
        "--leader-elect=false",
    ]


def proxy(layout: Layout) -> list[str]:
    return [
        layout.binary("kube-proxy"),
        *(f"--kubeconfig={layout.kubeconfig_of('proxy')}", f"--hostname-override={NODE_NAME}"),
        *(f"--cluster-cidr={PODS}", f"--bind-address={NODE_ADDRESS}", "--proxy-mode=iptables"),
        # These are the machine's, and cannot be changed from a network namespace.
        *("--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0s"),
        "--conntrack-tcp-timeout-close-wait=0s",
    ]


def containerd(layout: Layout) -> list[str]:
    cni = layout.run / "cni"
    cni.mkdir()
    bridge = {
        "type": "bridge",
        "bridge": "pods0",
        "isGateway": True,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "dataDir": str(layout.run / "ipam"),
            "ranges": [[{"subnet": PODS}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    network = {"cniVersion": "0.4.0", "name": "elastane", "plugins": [bridge, {"type": "loopback"}]}
    (cni / "10-bridge.conflist").write_text(json.dumps(network))
    config = layout.run / "containerd.toml"
    config.write_text(f"""\
version = 2
root = "{layout.run}/containerd/root"
state = "{layout.run}/containerd/state"
[grpc]
  address = "{layout.containerd_socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{cni}"
""")
    return ["containerd", "--config", str(config)]


def kubelet(layout: Layout) -> list[str]:
    pki = layout.pki
    settings = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{pki}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": f"{pki}/kubelet.crt",
        "tlsPrivateKeyFile": f"{pki}/kubelet.key",
        "cgroupDriver": "cgroupfs",
        # Another kubelet on this machine would take pods under the same root for orphans, and end them.
        "cgroupRoot": f"/{CGROUP}",
        "enforceNodeAllocatable": [],
        "evictionHard": {"nodefs.available": "1%", "imagefs.available": "1%", "memory.available": "100Mi"},
        "failSwapOn": False,
        "maxPods": 200,
        "nodeStatusUpdateFrequency": "2s",  # it is ready so much sooner
        "volumePluginDir": str(layout.run / "volume-plugins"),
    }
    config = layout.run / "kubelet.json"
    config.write_text(json.dumps(settings))
    return [
        layout.binary("kubelet"),
        *(f"--config={config}", f"--kubeconfig={layout.kubeconfig_of('kubelet')}"),
        *(f"--hostname-override={NODE_NAME}", f"--node-ip={NODE_ADDRESS}", f"--root-dir={layout.run}/kubelet"),
        *("--container-runtime=remote", f"--container-runtime-endpoint=unix://{layout.containerd_socket}"),
    ]


def hollow_node(layout: Layout, number: int) -> list[str]:
    """A kubelet that says it runs pods, and runs none; only pods that tolerate the taint come to it."""
    name = hollow_name(number)
    # It leaves folders behind in /tmp: give it one of the cluster's own.
    own_tmp = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /tmp && exec "$@"', str(layout.run / "hollow")]
    return [
        *own_tmp,
        layout.binary("kubemark"),
        *("--morph=kubelet", f"--name={name}", f"--kubeconfig={layout.kubeconfig_of(name)}"),
        *(f"--node-labels={HOLLOW}=true", f"--register-with-taints={HOLLOW}=true:NoSchedule"),
        *(f"--kubelet-port={20000 + number}", f"--kubelet-read-only-port={30000 + number}"),
    ]


def hollow_name(number: int) -> str:
    return f"hollow-{number}"
