"""A real control plane as processes on this machine: etcd, kube-apiserver, controller manager and scheduler."""

from __future__ import annotations

import json
import shutil
import signal
import ssl
import subprocess
import time
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tests.support.tools import free_port, until

PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
CONTROLLERS = (
    "deployment,replicaset,statefulset,job,garbagecollector,podgc,namespace,nodelifecycle,serviceaccount,"
    "serviceaccount-token,root-ca-cert-publisher,disruption"
)
ADMINISTRATOR = "administrator-token"
# Somebody who may read everything, but unlike an administrator has to wait for a server that is busy.
READER = "reader-token"
ISSUER = "https://kubernetes.default.svc"
# Only what service accounts request is logged.
AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "rules": [{"level": "Metadata", "userGroups": ["system:serviceaccounts:gpu-monitoring"]}, {"level": "None"}],
}
# The version that Kubernetes 1.21 has added.
POLICY = "policy/v1"
COLLECTIONS: Mapping[str, str] = {
    "Namespace": "/api/v1/namespaces",
    "Node": "/api/v1/nodes",
    "Pod": "/api/v1/namespaces/{namespace}/pods",
    "ServiceAccount": "/api/v1/namespaces/{namespace}/serviceaccounts",
    "Deployment": "/apis/apps/v1/namespaces/{namespace}/deployments",
    "StatefulSet": "/apis/apps/v1/namespaces/{namespace}/statefulsets",
    "Job": "/apis/batch/v1/namespaces/{namespace}/jobs",
    "PodDisruptionBudget": f"/apis/{POLICY}/namespaces/{{namespace}}/poddisruptionbudgets",
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "Lease": "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
}


class Refused(Exception):
    """An answer of the API server that is an error."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"{status}: {body[:300]}")
        self.status, self.body = status, body


class ControlPlane:
    """Runs the programs of a folder. `key_identifiers`: whether the certificates have them; many clusters' lack them.

    `restart_api` and `restore` are the interventions of an administrator. `close` kills everything.
    """

    def __init__(self, programs: Path, folder: Path, *, key_identifiers: bool = True) -> None:
        self._programs, self._folder = programs, folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._etcd, self._peer, self.port = free_port(), free_port(), free_port()
        write_certificates(folder, key_identifiers=key_identifiers)
        rights = {"admin": (ADMINISTRATOR, "system:masters"), "reader": (READER, "readers")}
        tokens = [f'{token},{name},{name},"{group}"' for name, (token, group) in rights.items()]
        (folder / "tokens.csv").write_text("\n".join(tokens))
        (folder / "audit.json").write_text(json.dumps(AUDIT))
        cluster = {"server": f"https://127.0.0.1:{self.port}", "insecure-skip-tls-verify": True}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": ADMINISTRATOR}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        (folder / "config.json").write_text(json.dumps(config))

    @property
    def audit_log(self) -> Path:
        """Return the log of the requests of service accounts."""
        return self._folder / "audit.log"

    @property
    def ca(self) -> Path:
        """Return the certificate of the CA."""
        return self._folder / "ca.crt"

    @property
    def minor(self) -> int:
        """Return the second number of the API server's version."""
        said = subprocess.run(
            [self._programs / "kube-apiserver", "--version"], capture_output=True, text=True, check=True
        )
        return int(said.stdout.split(".")[1])

    def start(self) -> None:
        """Start everything, and wait until the API server is ready."""
        self.start_etcd()
        self.start_api()
        self.start_controllers()

    def start_etcd(self) -> None:
        """Start etcd."""
        client, peer = f"http://127.0.0.1:{self._etcd}", f"http://127.0.0.1:{self._peer}"
        data = ("--data-dir", str(self._folder / "etcd"), "--unsafe-no-fsync")
        listen = ("--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer)
        cluster = ("--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}")
        self._run("etcd", *data, *listen, *cluster)

    def start_api(self, *arguments: str) -> None:
        """Start the API server, and wait until it is ready."""
        folder = self._folder
        self._run(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self._etcd}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self.port}",
            f"--tls-cert-file={folder}/api.crt",
            f"--tls-private-key-file={folder}/api.key",
            f"--cert-dir={folder}/certs",
            f"--service-account-issuer={ISSUER}",
            f"--service-account-key-file={folder}/account.key",
            f"--service-account-signing-key-file={folder}/account.key",
            f"--token-auth-file={folder}/tokens.csv",
            "--authorization-mode=Node,RBAC",
            "--service-cluster-ip-range=10.99.0.0/24",
            f"--audit-policy-file={folder}/audit.json",
            f"--audit-log-path={self.audit_log}",
            *arguments,
        )
        until(self._ready, 60, "the API server")

    def start_controllers(self) -> None:
        """Start controller manager and scheduler."""
        common = [f"--kubeconfig={self._folder}/config.json", "--leader-elect=false", "--secure-port=0"]
        if self.minor < 24:
            common.append("--port=0")
        keys = (
            f"--service-account-private-key-file={self._folder}/account.key",
            f"--root-ca-file={self.ca}",
            f"--controllers={CONTROLLERS}",
        )
        self._run("kube-controller-manager", *common, *keys)
        self._run("kube-scheduler", *common)

    def restart_api(self, *arguments: str) -> None:
        """Kill the API server, and start it with these arguments."""
        self.kill("kube-apiserver")
        self.start_api(*arguments)

    def back_up(self, to: Path) -> None:
        """Copy the data of etcd, which is paused meanwhile."""
        shutil.rmtree(to, ignore_errors=True)
        self._processes["etcd"].send_signal(signal.SIGSTOP)
        shutil.copytree(self._folder / "etcd", to)
        self._processes["etcd"].send_signal(signal.SIGCONT)

    def restore(self, backup: Path) -> None:
        """Replace the data of etcd, which must have ended."""
        shutil.rmtree(self._folder / "etcd")
        shutil.copytree(backup, self._folder / "etcd")

    def compact(self) -> None:
        """Remove all but the last revision from etcd."""
        version = int(self.ask("GET", "/api/v1/namespaces")["metadata"]["resourceVersion"])
        connection = HTTPConnection("127.0.0.1", self._etcd, timeout=30)
        connection.request("POST", "/v3/kv/compaction", json.dumps({"revision": version}))
        response = connection.getresponse()
        assert response.status == 200, response.read()
        connection.close()

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a program."""
        self._processes[name].send_signal(number)

    def kill(self, *names: str) -> None:
        """Kill programs, and wait for their end."""
        for name in names:
            process = self._processes.pop(name)
            process.kill()
            process.wait()

    def close(self) -> None:
        """Kill everything."""
        self.kill(*reversed(self._processes))

    def _run(self, name: str, *arguments: str) -> None:
        with (self._folder / f"{name}.log").open("ab") as log:
            command = [str(self._programs / name), *arguments]
            self._processes[name] = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._folder)

    def _ready(self) -> bool:
        code = self._processes["kube-apiserver"].poll()
        assert code is None, f"kube-apiserver ended with {code}: {self._folder}/kube-apiserver.log"
        try:
            self.ask("GET", "/readyz")
        except (OSError, HTTPException, Refused):
            return False
        return True

    # --- requests -------------------------------------------------------------------------------------------------

    def ask(self, method: str, path: str, content: object = None, token: str = ADMINISTRATOR) -> Any:
        """Return the answer to a request. Raises Refused, OSError, HTTPException."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = HTTPSConnection("127.0.0.1", self.port, timeout=30, context=context)
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Authorization": f"Bearer {token}", "Content-Type": kind}
        try:
            connection.request(method, path, None if content is None else json.dumps(content), headers)
            response = connection.getresponse()
            body = response.read().decode()
        finally:
            connection.close()
        if response.status >= 300:
            raise Refused(response.status, body)
        return json.loads(body) if response.headers.get_content_type() == "application/json" else body

    def create(self, item: Mapping[str, Any], namespace: str = "") -> Any:
        """Create an object, or replace the one of its name."""
        metadata = item["metadata"]
        path = COLLECTIONS[item["kind"]].format(namespace=metadata.get("namespace", namespace))
        try:
            return self.ask("POST", path, item)
        except Refused as error:
            if error.status != 409:
                raise
        return self.ask("PUT", f"{path}/{metadata['name']}", item)

    def collection(self, item: Mapping[str, Any], namespace: str) -> str:
        """Return the path at which objects of this kind are created, as the API server lists it."""
        version = item["apiVersion"]
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        kinds = {each["kind"]: each for each in self.ask("GET", root)["resources"] if "/" not in each["name"]}
        found = kinds[item["kind"]]
        where = f"/namespaces/{item['metadata'].get('namespace', namespace)}" if found["namespaced"] else ""
        return f"{root}{where}/{found['name']}"

    def apply(self, item: Mapping[str, Any], namespace: str, *, dry_run: bool = False) -> None:
        """Create an object, of which the API server must know every field; with `dry_run`, admit it only."""
        query = "?fieldValidation=Strict" + ("&dryRun=All" if dry_run else "")
        self.ask("POST", self.collection(item, namespace) + query, item)

    def write_account(self, folder: Path, namespace: str, name: str) -> None:
        """Write token and CA of a service account, as kubelet does for a pod."""
        path = COLLECTIONS["ServiceAccount"].format(namespace=namespace)
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": [ISSUER]}}
        token = self.ask("POST", f"{path}/{name}/token", request)["status"]["token"]
        folder.mkdir(exist_ok=True)
        shutil.copy(self.ca, folder / "ca.crt")
        (folder / "new").write_text(token)
        (folder / "new").rename(folder / "token")


def write_certificates(folder: Path, *, key_identifiers: bool) -> None:
    """Write a CA and the certificate that it issued to the API server, with keys, and a key for service accounts."""
    ca_key, api_key, account_key = (rsa.generate_private_key(65537, 2048) for _ in range(3))
    ca_name, api_name = (
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in ("kubernetes", "kube-apiserver")
    )
    addresses = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1")), x509.DNSName("localhost")])
    now = datetime.now(timezone.utc)

    def builder(subject: x509.Name, key: rsa.RSAPrivateKey, *, ca: bool) -> x509.CertificateBuilder:
        made = x509.CertificateBuilder(ca_name, subject, key.public_key(), x509.random_serial_number())
        made = made.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(days=30))
        made = made.add_extension(x509.BasicConstraints(ca, None), critical=True)
        made = made.add_extension(_usage(ca=ca), critical=True)
        if not key_identifiers:
            return made
        if ca:
            return made.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
        return made.add_extension(issuer, critical=False)

    server = builder(api_name, api_key, ca=False).add_extension(addresses, critical=False)
    server = server.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    for name, made in {"ca": builder(ca_name, ca_key, ca=True), "api": server}.items():
        certificate = made.sign(ca_key, hashes.SHA256())
        (folder / f"{name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    for name, key in {"api": api_key, "account": account_key}.items():
        text = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
        (folder / f"{name}.key").write_bytes(text)


def _usage(*, ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=not ca,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=ca,
        crl_sign=ca,
        encipher_only=False,
        decipher_only=False,
    )


def stamp() -> str:
    """Return the time as Kubernetes writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
