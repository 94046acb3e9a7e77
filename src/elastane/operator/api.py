"""The Kubernetes API as the operator uses it: objects of many kinds, in all namespaces."""

from __future__ import annotations

from dataclasses import dataclass

from elastane.model.cluster_documents import JOB_RESOURCE_API_VERSION
from elastane.model.job_spec import API_VERSION
from elastane.platform.kubernetes.connection import Connection, NotFound
from elastane.platform.kubernetes.pods import Manifest


@dataclass(frozen=True)
class Kind:
    """A kind of object: where it is found in the API."""

    api_version: str
    plural: str

    def path(self, namespace: str | None, name: str = "", subresource: str = "") -> str:
        root = "api" if "/" not in self.api_version else "apis"
        where = [] if namespace is None else ["namespaces", namespace]
        return "/".join(part for part in (root, self.api_version, *where, self.plural, name, subresource) if part)


JOBS = Kind(API_VERSION, "elasticjobs")
SCALE_PLANS = Kind(API_VERSION, "scaleplans")
JOB_RESOURCES = Kind(JOB_RESOURCE_API_VERSION, "jobresources")
PODS = Kind("v1", "pods")
SECRETS = Kind("v1", "secrets")
SERVICES = Kind("v1", "services")
SERVICE_ACCOUNTS = Kind("v1", "serviceaccounts")
ROLE_BINDINGS = Kind("rbac.authorization.k8s.io/v1", "rolebindings")
EVENTS = Kind("v1", "events")
LEASES = Kind("coordination.k8s.io/v1", "leases")


class Api(Connection):
    """Calls to the API server. Each raises ApiError."""

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest:
        return await self.request("GET", kind.path(namespace, name))

    async def create(self, kind: Kind, namespace: str, manifest: Manifest) -> Manifest:
        return await self.request("POST", kind.path(namespace), content=manifest)

    async def replace(self, kind: Kind, namespace: str, manifest: Manifest) -> Manifest:
        return await self.request("PUT", kind.path(namespace, manifest["metadata"]["name"]), content=manifest)

    async def patch(self, kind: Kind, namespace: str, name: str, patch: Manifest, subresource: str = "") -> Manifest:
        """Change some fields; one that is None is removed, and a resourceVersion must still be the object's."""
        return await self.request(
            "PATCH", kind.path(namespace, name, subresource), content=patch, media="application/merge-patch+json"
        )

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str, grace_s: int | None = None) -> Manifest:
        """Delete the object if it is still that one; the result is the object, if it goes later, or a Status."""
        options: Manifest = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid},
            "propagationPolicy": "Background",
        }
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        return await self.request("DELETE", kind.path(namespace, name), content=options)

    async def can_list(self, kind: Kind, namespace: str | None) -> bool:
        """Whether the cluster knows a kind of object."""
        try:
            await self.request("GET", kind.path(namespace), params={"limit": "1"})
        except NotFound:
            return False
        return True

    async def list_identities(self, kind: Kind, namespace: str | None, selector: str = "") -> tuple[set[str], int]:
        """The uids of all objects of a kind, and the version at which they were all."""
        params = {"labelSelector": selector} if selector else {}
        accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
        uids: set[str] = set()
        version = 0
        async for page in self.pages(kind.path(namespace), params, accept):
            uids.update(found["metadata"]["uid"] for found in page["items"] or ())
            version = int(page["metadata"]["resourceVersion"])
        return uids, version
