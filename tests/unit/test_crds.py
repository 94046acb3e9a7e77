"""The manifests: the definitions are what an API server takes, and refuse what the documents refuse."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from elastane.model.errors import InvalidInput, InvalidJobSpec
from elastane.operator.crds import custom_resource_definitions
from elastane.operator.deploy_files import deploy_files, main
from elastane.operator.install import MASTER_RULES, OPERATOR_RULES, VALUES, installation, operator_manifests
from tests.bad_manifests import BAD_MANIFESTS, BAD_ON_KUBERNETES, LOADERS, BadManifest, good_manifest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples/kubernetes").glob("*.yaml"))
ANY = "x-kubernetes-preserve-unknown-fields"


def _schema(kind: str) -> dict[str, Any]:
    (found,) = (each for each in custom_resource_definitions().values() if each["spec"]["names"]["kind"] == kind)
    schema: dict[str, Any] = found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def _parts(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for key, part in schema.get("properties", {}).items():
        yield from _parts(part, f"{path}.{key}")
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from _parts(schema[key], f"{path}[]")


def _at(kind: str, path: str) -> dict[str, Any]:
    return dict(_parts(_schema(kind)))[f".{path}"]


@pytest.mark.parametrize("kind", LOADERS)
def test_schemas_are_structural(kind: str) -> None:
    for path, part in _parts(_schema(kind)):
        assert "type" in part or part.get(ANY) or part.get("x-kubernetes-int-or-string"), path
        assert not part.keys() & {"$ref", "$defs", "title", "default", "const", "allOf", "oneOf", "examples"}, path
        assert not ("properties" in part and "additionalProperties" in part), path
        assert not isinstance(part.get("additionalProperties"), bool), path
        assert isinstance(part.get("exclusiveMinimum", True), bool), path


@pytest.mark.parametrize("kind", LOADERS)
def test_every_field_is_described(kind: str) -> None:
    for path, part in _parts(_schema(kind)):
        if path.startswith((".spec", ".status")) and not path.endswith("[]"):
            assert part.get("description"), path


def test_schemas_say_what_the_documents_say() -> None:
    assert _at("ElasticJob", "spec")["required"] == ["worker"]
    assert _at("ElasticJob", "spec.distributionStrategy")["enum"] == ["parameter_server", "ring-allreduce", "none"]
    replicas = _at("ElasticJob", "spec.parameterServer.replicas")
    assert (replicas["type"], replicas["minimum"], replicas["maximum"]) == ("integer", 1, 1000)
    timeout = _at("ElasticJob", "spec.heartbeatTimeoutSeconds")
    assert (timeout["minimum"], timeout["exclusiveMinimum"]) == (0, True)
    assert timeout["description"].endswith("Unless given: 10.")
    memory = _at("JobResource", "spec.parameter_server.resource.memory")
    assert memory["x-kubernetes-int-or-string"] is True
    assert re.fullmatch(memory["pattern"], "1.5Gi")
    assert not re.fullmatch(memory["pattern"], "512.0")
    assert _at("ElasticJob", "spec.worker.template.spec")[ANY] is True
    assert _at("ElasticJob", "status")[ANY] is True
    assert ANY not in _at("ElasticJob", "spec.worker")


def test_definitions_have_short_names_columns_and_a_status_of_their_own() -> None:
    columns = {}
    for definition in custom_resource_definitions().values():
        (version,) = definition["spec"]["versions"]
        assert version["subresources"] == {"status": {}}
        (short,) = definition["spec"]["names"]["shortNames"]
        columns[short] = [each["name"] for each in version["additionalPrinterColumns"] if not each.get("priority")]
    assert columns == {
        "jr": ["Job", "Workers", "PS", "State", "Age"],
        "ej": ["State", "Workers", "PS", "Restarts", "Age"],
        "sp": ["Job", "Type", "State", "Age"],
    }


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_examples_are_documents_that_are_read_and_written_back(file: Path) -> None:
    manifest = yaml.safe_load(file.read_text())
    load = LOADERS[manifest["kind"]]
    document = load(manifest)
    assert load(document.document()) == document
    assert document.document()["apiVersion"] == manifest["apiVersion"]


@pytest.mark.parametrize("bad", BAD_MANIFESTS, ids=str)
def test_what_a_schema_refuses_the_document_refuses_too(bad: BadManifest) -> None:
    load = LOADERS[bad.kind]
    load(good_manifest(bad.kind))
    with pytest.raises(InvalidJobSpec) as caught:
        load(bad.manifest())
    (problem,) = caught.value.problems
    assert problem.startswith(bad.place)


@pytest.mark.parametrize("bad", BAD_ON_KUBERNETES, ids=str)
def test_what_only_kubernetes_needs_a_local_job_does_without(bad: BadManifest) -> None:
    LOADERS[bad.kind](bad.manifest())


def test_the_files_that_are_checked_in_are_current(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check", str(ROOT / "deploy")]) == 0
    assert main([str(tmp_path)]) == 0
    assert main(["--check", str(tmp_path)]) == 0
    file = tmp_path / "crds/elastic.easydl.org_jobresources.yaml"
    file.write_text("")
    assert main(["--check", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"{file} is not current; run `make manifests`\n"


def test_the_chart_installs_what_the_command_does() -> None:
    texts = deploy_files()
    release = {"Values": yaml.safe_load(texts["helm/elastane/values.yaml"]), "Release": {"Namespace": "training"}}

    def rendered(expression: re.Match[str]) -> str:
        top, key = expression[1].split(".")
        return json.dumps(release[top][key])

    text = re.sub(r"\{\{ toJson \.(\w+\.\w+) \}\}", rendered, texts["helm/elastane/templates/operator.yaml"])
    assert list(yaml.safe_load_all(text)) == operator_manifests("training", VALUES)
    crds = {file.name: file.read_text() for file in (ROOT / "deploy/helm/elastane/crds").iterdir()}
    assert crds == {file.name: file.read_text() for file in (ROOT / "deploy/crds").iterdir()}
    assert crds.keys() == custom_resource_definitions().keys()


def test_an_installation_is_in_the_order_in_which_it_is_applied() -> None:
    manifests = installation("registry/elastane:1", "training")
    kinds = [manifest["kind"] for manifest in manifests]
    assert kinds[:4] == ["Namespace", *["CustomResourceDefinition"] * 3]
    assert kinds[-1] == "Deployment"
    deployment = manifests[-1]
    assert deployment["metadata"]["namespace"] == "training"
    assert deployment["spec"]["replicas"] == 2
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == "registry/elastane:1"


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"namespace": "My_Jobs"}, 'namespace: "My_Jobs" is not a namespace'),
        ({"image": ""}, 'image: "" is not an image'),
        ({"image": "a b"}, 'image: "a b" is not an image'),
    ],
)
def test_an_installation_that_cannot_be_is_refused(wrong: dict[str, str], line: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{line}"):
        installation(**wrong)


def test_a_master_may_do_less_than_the_operator() -> None:
    def allowed(rules: Any) -> set[tuple[str, str, str]]:
        return {(rule.group, resource, verb) for rule in rules for resource in rule.resources for verb in rule.verbs}

    operator, master = allowed(OPERATOR_RULES), allowed(MASTER_RULES)
    assert "*" not in str(operator | master)
    assert len(master) < len(operator)
    assert master - operator == {("elastic.iml.github.io", "scaleplans", "create")}
