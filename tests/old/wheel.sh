#!/usr/bin/env bash
# Builds the source distribution and from that the wheel, installs the wheel into an empty
# environment, and uses it there: the modules first, which need no extra, then a tiny comparison.
# What pip installs beside is what the wheel asks for, in the versions of requirements/demo.txt.
#
# usage: tests/wheel.sh PYTHON TORCH    PYTHON has the package `build`; TORCH is what pip installs
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(command -v "$1")
torch=$2
unset PYTHONPATH VIRTUAL_ENV
work=$PWD/build/wheel
locked=$PWD/requirements/demo.txt
export HF_HUB_DISABLE_PROGRESS_BARS=1 PIP_DISABLE_PIP_VERSION_CHECK=1
rm -rf "$work"
mkdir -p "$work/empty"

fail() {
    echo "tests/wheel.sh: $1" >&2
    exit 1
}

echo "building"
# What an earlier build has left behind would be packed again.
rm -rf build/lib build/bdist.*
"$python" -m build --no-isolation --outdir "$work/dist" . >"$work/build.log" 2>&1 || {
    cat "$work/build.log"
    fail "python -m build failed"
}
wheel=$(echo "$work"/dist/headwise-*.whl)

(cd src && find headwise -type f -not -path '*/__pycache__/*' | LC_ALL=C sort) >"$work/sources"
"$python" -c 'import sys, zipfile; print(*zipfile.ZipFile(sys.argv[1]).namelist(), sep="\n")' \
    "$wheel" >"$work/all"
grep '^headwise/' "$work/all" | LC_ALL=C sort >"$work/packed"
diff "$work/sources" "$work/packed" || fail "the wheel has other files than src/ (< src, > wheel)"
grep -q '\.dist-info/licenses/LICENSE$' "$work/all" || fail "the wheel has no licence"

echo "installing the wheel into an empty environment"
"$python" -m venv "$work/venv"
bin=$work/venv/bin
install() {
    "$bin/pip" install -qq --no-compile --constraint "$locked" "$1"
}
install "$torch"
install "$wheel"
cd "$work/empty" # outside the checkout: nothing of it is found by chance

"$bin/python" - <<'EOF'
import sys

import torch

import headwise as hw

assert hw.__file__.startswith(sys.prefix), hw.__file__
layer = hw.MixtureOfAttentiveExperts(embed_dim=16, num_heads=4)
assert layer(torch.randn(2, 5, 16), is_causal=True).output.shape == (2, 5, 16)
config = hw.CausalLMConfig(vocab_size=9, embed_dim=16, num_heads=4, ffn_dim=16, attention="moa")
hw.CausalLM(config).save_pretrained("model")
assert hw.CausalLM.from_pretrained("model")(torch.tensor([[3, 4]])).logits.shape == (1, 2, 9)
EOF
if "$bin/headwise" compare lm-pydoc >"$work/without-extra.log" 2>&1; then
    fail "headwise compare works without the extra train: the environment was not empty"
fi
grep -qF "pip install 'headwise[train]'" "$work/without-extra.log" || {
    cat "$work/without-extra.log"
    fail "headwise compare without the extra train does not name the line to type"
}

echo "installing the extra train"
install "${wheel}[train]"
"$bin/headwise" --version
[ "$("$bin/headwise" recipes --papers | wc -l)" -gt 20 ] || fail "headwise recipes lists too few"
"$bin/headwise" compare lm-pydoc --systems standard,mae-7 --output run \
    --set training.max_steps=2 --set tokenizer.vocab_size=300 \
    --set model.embed_dim=16 --set model.ffn_dim=32 >"$work/compare.log" 2>&1 || {
    cat "$work/compare.log"
    fail "headwise compare failed"
}
grep -q 'mae-7' run/report.html || fail "the report does not name the systems"
"$bin/headwise" explore run/mae-7-seed1 --output explorer.html >/dev/null
grep -q '<script' explorer.html || fail "the explorer has no scripts"
rm -rf "$work/venv" # it is large
echo "the wheel works"
