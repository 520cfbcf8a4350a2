#!/usr/bin/env bash
# One call on a lent machine with a GPU whose image has torch and triton and no network:
#   WHEELS=folder OUT=folder bash tools/gpu/lease.sh MINUTES
# WHEELS: what the image lacks (tools/gpu/gather_wheels.py). OUT: gets all.tgz, that is logs, answers, Records and boards.
# Nothing is written beside OUT and a temporary folder; no step ends another; all that was measured is kept.
set -u
minutes=${1:?minutes}
work=$(mktemp -d)
export PYTHONUNBUFFERED=1 HOME=$work/home PYTHONPYCACHEPREFIX=$work/bytecode TRITON_CACHE_DIR=$work/home/triton
mkdir -p "$HOME" "$work/site" "$work/project" "$OUT"
begun=$(date +%s)
python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$work/site" "$WHEELS"/*.whl || exit 3
python3 -m venv --system-site-packages "$work/venv"
packages=$("$work/venv/bin/python" -c 'import site; print(site.getsitepackages()[0])')
{ python3 -c 'import site; print("\n".join(site.getsitepackages()))'; echo "$work/site"; } > "$packages/base.pth"
# setuptools of the venv may be older than what pyproject.toml asks for
rm -rf "$packages"/setuptools*
git -C . ls-files -z -- ':!results' | xargs -0 cp --parents -t "$work/project" || cp -r . "$work/project"
cd "$work/project" || exit 3
"$work/venv/bin/python" -m pip install -q --no-index --no-deps --no-build-isolation -e . || exit 3
nvidia-smi --query-gpu=name,clocks.sm,power.draw --format=csv,noheader
echo "installed after $(($(date +%s) - begun)) s"
left=$(python3 -c "print(max(0.5, $minutes - ($(date +%s) - $begun) / 60))")
"$work/venv/bin/python" tools/gpu/everything.py --out "$work/gpu" --minutes "$left" ${REHEARSE:+--rehearse}
tar czf "$OUT/all.tgz" -C "$work" gpu
echo "ended after $(($(date +%s) - begun)) s"
