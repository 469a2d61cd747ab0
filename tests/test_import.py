"""What `import headwise` loads: nothing that only pages and bars need."""

import subprocess
import sys


def test_neither_figures_nor_bars_are_loaded():
    code = "import sys, headwise; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "headwise" in loaded
    assert loaded & {"matplotlib", "rich", "typer", "sacrebleu", "datasets"} == set()
