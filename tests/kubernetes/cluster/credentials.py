"""The cluster's certificates, keys and kubeconfigs."""

import base64
import datetime
import ipaddress
import json
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tests.kubernetes.cluster.layout import API_SERVICE, API_URL, NODE_ADDRESS, NODE_NAME, Layout


class Credentials:
    """Signs with the cluster's own CA, whose files are in the cluster's `pki` folder."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def write(self) -> None:
        """Make the CA, the key of service accounts, and what each component needs."""
        pki = self._layout.pki
        pki.mkdir(parents=True)
        key = _new_key(pki / "ca.key")
        name = _name("elastane-cluster-ca")
        builder = _builder(name, name, key).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        _write_certificate(pki / "ca.crt", builder.sign(key, hashes.SHA256()))
        accounts = _new_key(pki / "accounts.key")
        public = accounts.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        (pki / "accounts.pub").write_bytes(public)
        self._sign("apiserver", "kube-apiserver", None, addresses=("127.0.0.1", NODE_ADDRESS, API_SERVICE))
        self.write_user("admin", "admin", "system:masters")
        self.write_user("controller-manager", "system:kube-controller-manager")
        self.write_user("scheduler", "system:kube-scheduler")
        self.write_user("proxy", "system:kube-proxy", "system:node-proxier")
        self.write_user("kubelet", f"system:node:{NODE_NAME}", "system:nodes", addresses=(NODE_ADDRESS,))

    def write_user(self, file: str, user: str, group: str | None = None, addresses: tuple[str, ...] = ()) -> None:
        """Make a key, a certificate and a kubeconfig, all named `file`, of a user of the API."""
        self._sign(file, user, group, addresses)
        pki = self._layout.pki
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "elastane",
                    "cluster": {"server": API_URL, "certificate-authority-data": _base64(pki / "ca.crt")},
                }
            ],
            "users": [
                {
                    "name": file,
                    "user": {
                        "client-certificate-data": _base64(pki / f"{file}.crt"),
                        "client-key-data": _base64(pki / f"{file}.key"),
                    },
                }
            ],
            "contexts": [{"name": "elastane", "context": {"cluster": "elastane", "user": file}}],
            "current-context": "elastane",
        }
        self._layout.kubeconfig_of(file).write_text(json.dumps(config))

    def _sign(self, file: str, user: str, group: str | None, addresses: tuple[str, ...]) -> None:
        pki = self._layout.pki
        ca = x509.load_pem_x509_certificate((pki / "ca.crt").read_bytes())
        ca_key = serialization.load_pem_private_key((pki / "ca.key").read_bytes(), None)
        assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
        names: list[x509.GeneralName] = [x509.DNSName(file)]
        names += [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
        usage = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = (
            _builder(_name(user, group), ca.subject, _new_key(pki / f"{file}.key"))
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.ExtendedKeyUsage(usage), critical=False)
        )
        _write_certificate(pki / f"{file}.crt", builder.sign(ca_key, hashes.SHA256()))


def _new_key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    path.touch(0o600)
    path.write_bytes(pem)
    return key


def _name(user: str, group: str | None = None) -> x509.Name:
    """Kubernetes takes the common name for the user and the organisation for the group."""
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, user)]
    if group:
        attributes.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, group))
    return x509.Name(attributes)


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=365))
    )


def _write_certificate(path: Path, certificate: x509.Certificate) -> None:
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
