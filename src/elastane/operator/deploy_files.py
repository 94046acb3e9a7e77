"""The files under deploy/ that are made from the models: `python -m elastane.operator.deploy_files [--check] FOLDER`.

Without `--check` they are written; with it, those that are not current are named, and the exit code is 1.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from elastane import __version__
from elastane.operator.crds import custom_resource_definitions
from elastane.operator.install import VALUES, operator_manifests
from elastane.operator.manifest_text import as_yaml
from elastane.prometheus.grafana import dashboard

_CHART = {
    "apiVersion": "v2",
    "name": "elastane",
    "description": "Elastic training jobs: the definitions of their resources, and the operator.",
    "type": "application",
    "version": __version__,
    "appVersion": __version__,
    "kubeVersion": ">=1.20.0-0",
}


def deploy_files() -> dict[str, str]:
    """The texts of the files, by their paths under deploy/."""
    chosen = {key: f"{{{{ toJson .Values.{key} }}}}" for key in VALUES}
    manifests = as_yaml(operator_manifests("{{ toJson .Release.Namespace }}", chosen))
    # JSON is YAML too, so what Helm puts in needs no quotes and may be of any type.
    templates = re.sub(r"'(\{\{ [^']* \}\})'", r"\1", manifests)
    crds = {f"crds/{name}": as_yaml([definition]) for name, definition in custom_resource_definitions().items()}
    return {
        **crds,
        # Helm wants them in the chart.
        **{f"helm/elastane/{path}": text for path, text in crds.items()},
        "helm/elastane/Chart.yaml": as_yaml([_CHART]),
        "helm/elastane/values.yaml": as_yaml([dict(VALUES)]),
        "helm/elastane/templates/operator.yaml": templates,
        "grafana/elastane.json": json.dumps(dashboard(), indent=2) + "\n",
    }


def main(words: list[str]) -> int:
    """Write the files or check them; the answer is the exit code."""
    check = "--check" in words
    (folder,) = (Path(word) for word in words if word != "--check")
    stale = []
    for path, text in deploy_files().items():
        file = folder / path
        if check and (not file.is_file() or file.read_text() != text):
            stale.append(f"{file} is not current; run `make manifests`\n")
        elif not check:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    sys.stderr.write("".join(stale))
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
